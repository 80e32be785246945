// Attacks inside a session of SLP: streams, records, and transfers that lie: l2 and l2://udp.
#include <algorithm>

#include "tests/hostile/attacker/slp.h"

namespace hostile {
namespace {

using Peers = std::vector<std::unique_ptr<SlpPeer>>;
constexpr uint64_t kAddressBase = uint64_t{1} << 32;  // where addresses of windows begin
constexpr uint64_t kGiftBytes = 256 << 10;

Peers open_some(Siege& siege, uint64_t count) {
  Peers all;
  while (all.size() < count && siege.more()) {
    auto peer = std::make_unique<SlpPeer>(siege);
    if (!peer->greet()) break;
    all.push_back(std::move(peer));
  }
  siege.must(!all.empty(), "a session");
  return all;
}

void listen_all(Peers& all) {
  for (auto& peer : all) {
    (void)peer->listen(0);
    peer->answers.clear();
    peer->controls.clear();
  }
}

// Pieces of the stream with holes before them, which nobody fills.
void stream_with_holes(Siege& siege) {
  Peers all = open_some(siege, 24 * siege.dose);
  for (auto& peer : all) {
    for (uint32_t k = 0; k < 60; ++k) {
      Frame f = peer->frame(kSlpEager);
      put<uint32_t>(f.extension, 200 + k * 150 + static_cast<uint32_t>(siege.random() % 40));
      put<uint32_t>(f.extension, k % 2);
      f.payload = Bytes(100, static_cast<uint8_t>(k));
      (void)peer->put_out(f);
    }
  }
  siege.must(siege.seen.frames_out >= 60, "60 frames");
  siege.hold([&] { listen_all(all); });
}

void stream_beyond_credit(Siege& siege) {
  Peers all = open_some(siege, 1);
  if (all.empty()) return;
  for (uint32_t k = 0; k < 4000 * siege.dose && siege.more(); ++k) {
    Frame f = all[0]->frame(kSlpEager);
    put<uint32_t>(f.extension, 11'000 + k * 7919);
    put<uint32_t>(f.extension, k % 3);
    f.payload = Bytes(1200, 1);
    (void)all[0]->put_out(f);
    if (k % 32 == 0) listen_all(all);
  }
  siege.must(siege.seen.frames_out >= 1000, "1000 frames");
  siege.hold([&] { listen_all(all); });
}

// One place of the stream, and other bytes each time.
void stream_contradicts(Siege& siege) {
  Peers all = open_some(siege, 4);
  for (auto& peer : all) {
    for (uint32_t k = 0; k < 300 * siege.dose; ++k) {
      Frame f = peer->frame(kSlpEager);
      put<uint32_t>(f.extension, 104 + k % 50);
      put<uint32_t>(f.extension, 0);
      f.payload = siege.junk(1 + k % 400);
      (void)peer->put_out(f);
      if (k % 16 == 0) (void)peer->listen(0);
    }
  }
  siege.must(siege.seen.frames_out >= 300, "300 frames");
}

void records_of_no_kind(Siege& siege) {
  uint64_t tried = 0, ended = 0;
  for (uint64_t i = 0; i < 24 * siege.dose && siege.more(); ++i) {
    SlpPeer peer(siege);
    if (!peer.greet()) continue;
    ++tried;
    static constexpr uint8_t kKinds[] = {6,           7,           255,         kRecordGrant,
                                         kRecordDone, kRecordPush, kRecordPull, kRecordRts};
    uint8_t kind = kKinds[i % 8];
    (void)peer.send_record(i / 8 % 2 == 0 ? 0 : 1, kind,
                           Bytes(i % 3 == 0   ? 0
                                 : i % 3 == 1 ? 7
                                              : 200,
                                 1));
    auto end = Siege::Clock::now() + std::chrono::milliseconds(200);
    while (peer.alive() && Siege::Clock::now() < end) (void)peer.listen(5);
    ended += peer.alive() ? 0 : 1;
  }
  siege.note(std::to_string(ended) + " of " + std::to_string(tried) + " ended");
  siege.must(tried >= 8 && ended * 2 >= tried, "half of them end the session");
}

// Records longer than any may be.
void records_too_long(Siege& siege) {
  uint64_t tried = 0, ended = 0;
  for (uint64_t i = 0; i < 12 * siege.dose && siege.more(); ++i) {
    SlpPeer peer(siege);
    if (!peer.meet()) continue;
    ++tried;
    Frame f = peer.frame(kSlpEager);
    put<uint32_t>(f.extension, 0);
    put<uint32_t>(f.extension, static_cast<uint32_t>(i % 2));
    put<uint32_t>(f.payload, i % 3 == 0 ? 0xffffffu : i % 3 == 1 ? 5633u : 0x03ffffffu);
    f.payload.resize(1000, 1);
    (void)peer.put_out(f);
    auto end = Siege::Clock::now() + std::chrono::milliseconds(300);
    while (peer.alive() && Siege::Clock::now() < end) (void)peer.listen(5);
    ended += peer.alive() ? 0 : 1;
  }
  // One that is longer than its stream's buffer may also wait for ever for its end.
  siege.must(
      tried >= 6 && ended * 2 >= tried,
      "half of them end the session: " + std::to_string(ended) + " of " + std::to_string(tried));
}

Bytes words(std::initializer_list<uint64_t> wide, std::initializer_list<uint32_t> narrow_first) {
  Bytes b;
  for (uint32_t v : narrow_first) put(b, v);
  for (uint64_t v : wide) put(b, v);
  return b;
}

// Transfers and handles that there are not.
void control_floods(Siege& siege) {
  Peers all = open_some(siege, 4);
  uint64_t sent = 0;
  for (auto& peer : all) {
    for (uint32_t k = 0; k < 2000 * siege.dose && peer->alive() && siege.more(); ++k) {
      uint32_t transfer = k % 16 | (k + 1) << 16;
      if (k % 4 == 0) sent += peer->send_record(1, kRecordGrant, words({~0ull}, {transfer, 0}));
      if (k % 4 == 1) sent += peer->send_record(1, kRecordDone, words({}, {transfer, 6}));
      if (k % 4 == 2)
        sent += peer->send_record(
            1, kRecordPull,
            words({0, 1 << 20, 1 << 20}, {transfer, static_cast<uint32_t>(siege.random())}));
      if (k % 4 == 3) {
        Bytes push = words({0, 8}, {transfer | 0x8000, static_cast<uint32_t>(siege.random())});
        put<uint32_t>(push, k);
        put<uint32_t>(push, 1);
        sent += peer->send_record(1, kRecordPush, push);
      }
      if (k % 64 == 0) listen_all(all);
    }
  }
  siege.must(sent >= 100, "100 records");
}

// Pulls from handles that were given to nobody, by number and by what its own handle looks like.
void handles_guessed(Siege& siege) {
  Peers all = open_some(siege, 1);
  if (all.empty()) return;
  SlpPeer& peer = *all[0];
  uint64_t data = 0;
  peer.on_data = [&](const Frame&) { ++data; };
  uint64_t sent = 0, most = siege.dose == 1 ? 12'000 : 1 << 20;
  for (; sent < most && peer.alive() && siege.more(); ++sent) {
    uint32_t handle =
        static_cast<uint32_t>(sent % 64 | (sent % 2 == 0 ? sent / 64 << 16 : siege.random() << 16));
    if (!peer.send_record(
            1, kRecordPull,
            words({0, 8, 8}, {static_cast<uint32_t>(sent % 16 | (sent / 16 + 1) << 16), handle})))
      break;
    if (sent % 32 == 0) {
      (void)peer.listen(0);
      peer.controls.clear();
    }
  }
  (void)peer.listen(50);
  siege.note(std::to_string(sent) + " handles, " + std::to_string(data) + " answers with bytes");
  siege.seen.hits += data;
  siege.must(sent >= 1000 || !peer.alive(), "1000 handles");
}

// Offers what the other end posted room for, is asked for it, and does not send it.
void pulls(Siege& siege, bool some_bytes) {
  Peers all = open_some(siege, 24 * siege.dose);
  uint64_t asked = 0;
  for (auto& peer : all) {
    Bytes answer = ask(*peer, "take 1 " + std::to_string(kGiftBytes));
    if (answer.size() != 6) continue;
    (void)peer->send(offer(9, kTagged, kGiftTag, kGiftBytes)
                         .tlv(kSegment, segment(0x10001, kAddressBase, kGiftBytes))
                         .whole());
  }
  siege.hold([&] {
    for (auto& peer : all) {
      if (!peer->alive()) continue;
      (void)peer->listen(0);
      for (const Control& control : peer->controls) {
        if (control.kind != kRecordPull) continue;
        ++asked;
        if (!some_bytes) continue;
        // Every other unit, so that there is always one missing.
        for (uint64_t unit = 1; unit < 12; unit += 2) {
          Frame f = peer->frame(kSlpData);
          put<uint64_t>(f.extension, unit * kUnit);
          put(f.extension, take<uint32_t>(control.bytes.data()));
          put<uint32_t>(f.extension, 0);
          f.payload = Bytes(kUnit, 7);
          (void)peer->put_out(f);
        }
      }
      peer->controls.clear();
      peer->answers.clear();
    }
  });
  siege.note(std::to_string(asked) + " pulls");
  siege.must(asked >= 1, "the other end pulls");
}
void pulls_stopped(Siege& siege) { pulls(siege, false); }
void pulls_with_gaps(Siege& siege) { pulls(siege, true); }

// Is asked, cancels, offers again: a pull that never ends and never moves.
void pulls_refused(Siege& siege) {
  Peers all = open_some(siege, 8);
  uint64_t asked = 0;
  auto begin = [&](SlpPeer& peer) {
    Bytes answer = ask(peer, "take 1 " + std::to_string(kGiftBytes));
    if (answer.size() == 6)
      (void)peer.send(offer(asked + 1, kTagged, kGiftTag, kGiftBytes)
                          .tlv(kSegment, segment(0x10001, kAddressBase, kGiftBytes))
                          .whole());
  };
  for (auto& peer : all) begin(*peer);
  siege.hold([&] {
    for (auto& peer : all) {
      if (!peer->alive()) continue;
      (void)peer->listen(0);
      bool again = false;
      for (const Control& control : peer->controls) {
        if (control.kind != kRecordPull) continue;
        ++asked;
        again = true;
        (void)peer->send_record(
            1, kRecordDone,
            words({}, {take<uint32_t>(control.bytes.data()), asked % 2 == 0 ? 3u : 7u}));
      }
      peer->controls.clear();
      peer->answers.clear();
      if (again && asked < 2000) begin(*peer);
    }
  });
  siege.must(asked >= 2, "2 pulls");  // on a busy machine some end by their time
}

// Pulls its own grant, and acknowledges nothing of it.
void pulls_unacknowledged(Siege& siege) {
  Peers all = open_some(siege, 8 * siege.dose);
  for (auto& peer : all) {
    Bytes answer = ask(*peer, "grant");
    if (answer.size() != 47) continue;
    uint32_t handle = take<uint32_t>(answer.data() + 7 + 28);
    uint64_t length = take<uint64_t>(answer.data() + 15);
    peer->acknowledge = false;
    for (uint32_t k = 0; k < 16; ++k)
      (void)peer->send_record(1, kRecordPull, words({0, length, length}, {k | 1u << 16, handle}));
  }
  siege.hold([&] { listen_all(all); });
  siege.must(siege.seen.frames_in > 50, "bytes come");
}

// DATA for transfers that nobody asked for, at offsets that there are not.
void data_of_no_transfer(Siege& siege) {
  Peers all = open_some(siege, 1);
  if (all.empty()) return;
  for (uint32_t k = 0; k < 8000 * siege.dose && all[0]->alive() && siege.more(); ++k) {
    Frame f = all[0]->frame(kSlpData);
    put<uint64_t>(f.extension, k % 3 == 0 ? ~0ull - kUnit : uint64_t{k} * kUnit);
    put<uint32_t>(f.extension, k % 16 | (k % 2 == 0 ? 0x8000u : 0u) | k << 16);
    put<uint32_t>(f.extension, 0);
    f.payload = Bytes(k % 2 == 0 ? kUnit : 100, 3);
    (void)all[0]->put_out(f);
    if (k % 32 == 0) listen_all(all);
  }
  siege.must(siege.seen.frames_out >= 2000, "2000 frames");
}

// Everything is late: acknowledges the least and gives no credit, so that content is sent again and
// again.
void acknowledges_nothing(Siege& siege) {
  Peers all = open_some(siege, 8 * siege.dose);
  for (auto& peer : all) {
    for (uint64_t k = 0; k < 10; ++k)
      (void)peer->send(inline_message(k, kCommandTag, {'w', 'h', 'o'}));
    peer->acknowledge = false;
    peer->leave_unread(true);
  }
  siege.hold([&] { listen_all(all); });
  siege.must(siege.seen.frames_in > 20, "frames come");
}

const std::initializer_list<Attack> kAttacks = {
    {"stream_with_holes", "a stream with holes that nobody fills", stream_with_holes},
    {"stream_beyond_credit", "a stream beyond its credit", stream_beyond_credit},
    {"stream_contradicts", "other bytes each time at one place of a stream", stream_contradicts},
    {"records_of_no_kind", "records that belong on no stream", records_of_no_kind},
    {"records_too_long", "records longer than any may be", records_too_long},
    {"control_floods", "GRANT, DONE, PULL and PUSH of what there is not", control_floods},
    {"handles_guessed", "pulls from handles that it was not given", handles_guessed},
    {"pulls_stopped", "offers, and sends nothing when it is asked", pulls_stopped},
    {"pulls_with_gaps", "offers, and sends every other unit", pulls_with_gaps},
    {"pulls_refused", "offers, refuses, and offers again", pulls_refused},
    {"pulls_unacknowledged", "pulls, and acknowledges nothing", pulls_unacknowledged},
    {"data_of_no_transfer", "DATA of transfers that there are not", data_of_no_transfer},
    {"acknowledges_nothing", "messages whose answers are not acknowledged", acknowledges_nothing},
};
const Registered udp("udp", kAttacks), l2("l2", kAttacks), kmod("kmod", kAttacks);

}  // namespace
}  // namespace hostile
