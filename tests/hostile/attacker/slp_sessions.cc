// Attacks by how sessions of SLP begin and end, and by frames that belong to none: l2 and l2://udp.
#include <cstdio>
#include <map>

#include "tests/hostile/attacker/slp.h"

namespace hostile {
namespace {

using Peers = std::vector<std::unique_ptr<SlpPeer>>;

void listen_all(Peers& all) {
  for (auto& peer : all) {
    (void)peer->listen(0);
    peer->answers.clear();
    peer->controls.clear();
  }
}

// The n-th of many places that somebody can come from.
std::string place(const Siege& siege, uint64_t n) {
  char text[40];
  if (siege.path == "udp")
    std::snprintf(text, sizeof(text), "127.1.%u.%u", static_cast<unsigned>(n / 200 % 200 + 1),
                  static_cast<unsigned>(n % 200 + 1));
  else
    std::snprintf(text, sizeof(text), "02:66:00:00:%02x:%02x", static_cast<unsigned>(n / 256 % 256),
                  static_cast<unsigned>(n % 256));
  return text;
}

Frame greeting_frame(const Carrier& carrier, const Greeting& greeting) {
  Frame f;
  f.type = kSlpHello;
  f.source_port = carrier.own_port;
  f.destination_port = carrier.peer_port;
  f.extension = greeting.extension();
  return f;
}

uint64_t drain(Carrier& carrier, std::map<uint8_t, uint64_t>* kinds = nullptr) {
  Frame f;
  uint64_t count = 0;
  for (; carrier.receive(f); ++count) {
    if (kinds != nullptr) ++(*kinds)[f.type];
  }
  return count;
}

void hellos(Siege& siege, uint64_t count, bool forge_cookie) {
  auto carrier = open_carrier(siege);
  if (carrier == nullptr) return siege.must(false, "a carrier");
  std::map<uint8_t, uint64_t> kinds;
  for (uint64_t i = 0; i < count && siege.more(); ++i) {
    Greeting greeting{.nonce = i + 1,
                      .cookie = forge_cookie ? siege.random() : 0,
                      .connection = static_cast<uint32_t>(i + 1)};
    (void)carrier->send(greeting_frame(*carrier, greeting).whole());
    if (i % 16 == 0) (void)drain(*carrier, &kinds);
  }
  auto end = Siege::Clock::now() + std::chrono::milliseconds(300);
  while (Siege::Clock::now() < end && kinds[kSlpRetry] == 0) (void)drain(*carrier, &kinds);
  siege.must(siege.seen.frames_out >= count / 2, "HELLOs");
  siege.must(kinds[kSlpRetry] > 0, "some are answered by RETRY");
  siege.seen.hits += kinds[kSlpHelloAck];  // without a cookie that is right
}
void hellos_without_cookie(Siege& siege) { hellos(siege, 20'000 * siege.dose, false); }
void hellos_with_forged_cookies(Siege& siege) { hellos(siege, 20'000 * siege.dose, true); }

// With the cookie, and then nothing.
void sessions_silent(Siege& siege) {
  Peers all;
  for (uint64_t i = 0; i < 200 * siege.dose && siege.more(); ++i) {
    auto peer = std::make_unique<SlpPeer>(siege);
    if (peer->meet()) all.push_back(std::move(peer));
    if (siege.seen.turned_away > 3) break;
  }
  siege.note(std::to_string(all.size()) + " sessions");
  siege.must(all.size() >= 8, "8 sessions");
  siege.hold([&] { listen_all(all); });
}

void finished(Siege& siege) {
  Peers all;
  for (uint64_t i = 0; i < 600 * siege.dose && siege.more(); ++i) {
    auto peer = std::make_unique<SlpPeer>(siege);
    if (peer->greet()) all.push_back(std::move(peer));
    if (siege.seen.turned_away > 3) break;
    if (i % 32 == 0) listen_all(all);
  }
  siege.note(std::to_string(all.size()) + " sessions");
  siege.must(all.size() >= 8, "8 sessions");
  siege.hold([&] { listen_all(all); });
}

void finished_from_everywhere(Siege& siege) {
  Peers all;
  for (uint64_t i = 0; i < 600 * siege.dose && siege.more(); ++i) {
    auto peer = std::make_unique<SlpPeer>(siege, place(siege, i));
    if (peer->greet()) all.push_back(std::move(peer));
    if (siege.seen.turned_away > 3) break;
    if (i % 32 == 0) listen_all(all);
  }
  siege.note(std::to_string(all.size()) + " sessions");
  siege.must(all.size() >= 8, "8 sessions");
  siege.hold([&] { listen_all(all); });
}

void churn(Siege& siege) {
  for (uint64_t i = 0; i < 400 * siege.dose && siege.more(); ++i) {
    SlpPeer peer(siege);
    if (i % 2 == 0)
      (void)peer.greet();
    else
      (void)peer.meet();
  }
  siege.must(siege.seen.connections >= 100, "100 sessions");
}

// Gone without a word: the other end finds out by silence.
void vanishes(Siege& siege) {
  for (uint64_t i = 0; i < 100 * siege.dose && siege.more(); ++i) {
    SlpPeer peer(siege);
    if (!peer.greet()) continue;
    (void)peer.send(want_key(1, 0, "weights", 0));
    peer.vanish();
  }
  siege.must(siege.seen.greeted >= 8, "8 sessions");
}

// HELLO of another protocol or version, or none at all: each a session of its own.
void malformed_greetings(Siege& siege) {
  uint64_t refused = 0, tried = 0;
  for (uint64_t i = 0; i < 60 * siege.dose && siege.more(); ++i) {
    HelloFields fields;
    switch (i % 5) {
      case 0: fields.magic ^= 1; break;
      case 1: fields.min_version = 7, fields.max_version = 9; break;
      case 2: fields.min_version = 2, fields.max_version = 1; break;
      case 3: fields.credit_messages = fields.credit_bytes = ~0ull; break;
      default: break;
    }
    SlpPeer peer(siege);
    ++tried;
    if (i % 5 == 4) {
      if (!peer.meet() || !peer.send(ping(1, false))) continue;
    } else if (!peer.greet(hello(fields))) {
      ++refused;
      continue;
    }
    auto end = Siege::Clock::now() + std::chrono::milliseconds(200);
    while (peer.alive() && Siege::Clock::now() < end) (void)peer.listen(5);
    refused += peer.alive() ? 0 : 1;
  }
  siege.note(std::to_string(refused) + " of " + std::to_string(tried) + " refused");
  siege.must(tried >= 30 && refused * 2 >= tried, "half of them are refused");
}

// One place, another nonce: the one before ends each time.
void restarts(Siege& siege) {
  auto carrier = open_carrier(siege);
  if (carrier == nullptr) return siege.must(false, "a carrier");
  std::map<uint8_t, uint64_t> kinds;
  for (uint64_t i = 0; i < 300 * siege.dose && siege.more(); ++i) {
    Greeting greeting{.nonce = siege.random() | 1, .connection = static_cast<uint32_t>(i + 1)};
    for (int step = 0; step < 2; ++step) {
      (void)carrier->send(greeting_frame(*carrier, greeting).whole());
      auto end = Siege::Clock::now() + std::chrono::milliseconds(50);
      Frame f;
      bool heard = false;
      while (!heard && Siege::Clock::now() < end) {
        if (!carrier->receive(f)) continue;
        Greeting answer;
        ++kinds[f.type];
        if (f.type != kSlpRetry && f.type != kSlpHelloAck) continue;
        answer.parse(f.extension);
        heard = answer.peer_nonce == greeting.nonce;
        if (f.type == kSlpRetry) greeting.cookie = answer.cookie;
      }
      // The same HELLO again and again is answered, and makes nothing new.
      for (int k = 0; step == 1 && k < 5; ++k)
        (void)carrier->send(greeting_frame(*carrier, greeting).whole());
    }
  }
  (void)drain(*carrier, &kinds);
  siege.must(kinds[kSlpHelloAck] >= 8, "8 sessions");
}

// Each field of a good frame made wrong, on a session that goes on as if nothing had been.
void frames_malformed(Siege& siege) {
  SlpPeer peer(siege);
  if (!peer.greet()) return siege.must(false, "a session");
  for (uint64_t round = 0; round < 60 * siege.dose && siege.more() && peer.alive(); ++round) {
    for (int kind = 0; kind < 16; ++kind) {
      Frame f = peer.frame(kind % 2 == 0 ? kSlpPing : kSlpAck);
      Bytes bytes;
      switch (kind) {
        case 0: f.version = 2; break;
        case 1: f.type = static_cast<uint8_t>(10 + round % 6); break;
        case 2: f.flags |= 0x80; break;
        case 3: f.flags |= kFlagSealed; break;
        case 4: f.source_port ^= 1; break;
        case 5: f.connection ^= 1; break;
        case 6: f.session ^= 1; break;
        case 7: f.number += 20'000; break;
        case 8: f.number = 1; break;
        case 9: f.ack += 5000, f.flags |= kFlagAck; break;
        case 10: f.extension.assign(f.extension.size(), 0xff); break;
        case 11: f.payload = Bytes(3, 1), f.extension = Bytes(4, 0xff); break;
        case 12: f.flags |= kFlagPcrc, f.payload_crc = 7, f.payload = Bytes(8, 1); break;
        case 13: f.connection = 0; break;
        case 14: bytes = f.whole(), bytes[28] ^= 1; break;
        case 15: bytes = f.whole(), bytes.resize(bytes.size() / 2); break;
      }
      (void)peer.carrier().send(bytes.empty() ? f.whole() : bytes);
    }
    (void)peer.listen(0);
  }
  settle(siege, peer);
  siege.must(siege.seen.frames_out >= 500, "500 frames");
}

// Frames of its own, sent before, sent again.
void frames_replayed(Siege& siege) {
  SlpPeer peer(siege);
  if (!peer.greet()) return siege.must(false, "a session");
  std::vector<Bytes> sent;
  for (int i = 0; i < 50; ++i) {
    Frame f = peer.frame(i % 2 == 0 ? kSlpPing : kSlpAck);
    sent.push_back(f.whole());
    (void)peer.carrier().send(sent.back());
  }
  for (uint64_t round = 0; round < 400 * siege.dose && siege.more(); ++round) {
    for (const Bytes& bytes : sent) (void)peer.carrier().send(bytes);
    (void)peer.listen(0);
  }
  settle(siege, peer);
  siege.must(siege.seen.frames_out >= 5000, "5000 frames");
}

void junk(Siege& siege) {
  auto carrier = open_carrier(siege);
  if (carrier == nullptr) return siege.must(false, "a carrier");
  uint64_t most = siege.path == "udp" ? 9000 : 1400;
  for (uint64_t i = 0; i < 20'000 * siege.dose && siege.more(); ++i) {
    Bytes bytes = siege.junk(1 + siege.random() % (i % 10 == 0 ? most : 200));
    // Half of them with a head that goes some way.
    if (i % 2 == 0 && bytes.size() >= kBaseBytes) {
      Frame f;
      f.type = static_cast<uint8_t>(1 + i % 9);
      f.source_port = carrier->own_port;
      f.destination_port = carrier->peer_port;
      f.connection = static_cast<uint32_t>(siege.random());
      f.session = static_cast<uint32_t>(siege.random());
      f.extension = Bytes(bytes.begin(), bytes.begin() + 40);
      bytes = f.whole();
    }
    (void)carrier->send(bytes);
    if (i % 64 == 0) (void)drain(*carrier);
  }
  siege.must(siege.seen.frames_out >= 10'000, "10,000 frames");
}

// Blind: BYE, NACK, DATA and EAGER with guessed connections and sessions, in the honest client's
// name where the carrier lets it: on a wire.
void frames_forged(Siege& siege) {
  auto carrier = open_carrier(siege, siege.path == "udp" ? "" : "02:00:00:00:00:0b");
  if (carrier == nullptr) return siege.must(false, "a carrier");
  uint64_t count = siege.dose == 1 ? 50'000 : 1'000'000;
  uint64_t sent = 0;
  for (; sent < count && siege.more(); ++sent) {
    static constexpr uint8_t kKinds[] = {kSlpBye, kSlpNack, kSlpData, kSlpEager, kSlpAck};
    Frame f;
    f.type = kKinds[sent % 5];
    f.source_port = sent % 3 == 0 ? carrier->own_port : static_cast<uint16_t>(siege.random());
    f.destination_port = carrier->peer_port;
    // Connections may be counted, or dice.
    f.connection = static_cast<uint32_t>(sent % 2 == 0 ? sent / 2 % 4096 | (sent / 8192) << 16
                                                       : siege.random());
    f.session = static_cast<uint32_t>(siege.random());
    f.number = static_cast<uint32_t>(siege.random() % 1000);
    f.flags = kFlagAck;
    f.extension = Bytes(f.type == kSlpNack || f.type == kSlpEager ? 8
                        : f.type == kSlpData                      ? 16
                        : f.type == kSlpAck                       ? 4
                                                                  : 0);
    (void)carrier->send(f.whole());
    if (sent % 64 == 0) (void)drain(*carrier);
  }
  uint64_t least = siege.dose < 16 ? 10'000 : count;
  siege.must(sent >= least, std::to_string(least) + " frames");
}

void finds(Siege& siege) {
  auto carrier = open_carrier(siege);
  if (carrier == nullptr) return siege.must(false, "a carrier");
  for (uint64_t i = 0; i < 20'000 * siege.dose && siege.more(); ++i) {
    Frame f;
    f.type = i % 4 == 0 ? kSlpFound : kSlpFind;
    f.source_port = carrier->own_port;
    f.destination_port = i % 2 == 0 ? carrier->peer_port : uint16_t{0};
    put<uint64_t>(f.extension, i + 1);
    f.extension.resize(72);
    f.extension[8] = 'a';
    (void)carrier->send(f.whole());
    if (i % 64 == 0) (void)drain(*carrier);
  }
  siege.must(siege.seen.frames_out >= 10'000, "10,000 frames");
}

const std::initializer_list<Attack> kAttacks = {
    {"hellos_without_cookie", "HELLO by the thousand", hellos_without_cookie},
    {"hellos_with_forged_cookies", "HELLO with cookies that nobody gave",
     hellos_with_forged_cookies},
    {"sessions_silent", "sessions that do not greet", sessions_silent, true},
    {"finished", "more sessions than an application has use for", finished},
    {"finished_from_everywhere", "the same, each from another address", finished_from_everywhere,
     true},
    {"churn", "sessions that come and go", churn},
    {"vanishes", "sessions that end without a word", vanishes},
    {"malformed_greetings", "HELLO of another protocol or version, or none at all",
     malformed_greetings},
    {"restarts", "one place that begins anew, again and again", restarts},
    {"frames_malformed", "each field of a frame made wrong", frames_malformed},
    {"frames_replayed", "frames that were here before", frames_replayed},
    {"junk", "frames of dice, of every length", junk},
    {"frames_forged", "frames of sessions of others, guessed", frames_forged},
    {"finds", "questions for names, and answers", finds},
};
const Registered udp("udp", kAttacks), l2("l2", kAttacks), kmod("kmod", kAttacks);

}  // namespace
}  // namespace hostile
