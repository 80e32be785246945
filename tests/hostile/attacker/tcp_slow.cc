// Attacks on TCP connections after the greeting: slow readers, pulls that are never served, what
// is read after a revoke.
#include <poll.h>

#include <algorithm>

#include "tests/hostile/attacker/tcp.h"

namespace hostile {
namespace {

constexpr uint8_t kBeforeRevoke = 0x11, kAfterRevoke = 0xee;  // victim/service.h
constexpr const char* kWeights = "weights";

// Reads of a grant are under way and unread when it is revoked; then everything is read. Bytes that
// were written after revoke() had returned must not be among them.
void read_after_revoke(Siege& siege) {
  uint64_t before = 0, after = 0, rounds = 0;
  for (; rounds < 20 * siege.dose && siege.more(); ++rounds) {
    TcpPeer peer(siege);
    if (!peer.greet({.receive_bytes = 4096})) continue;
    Bytes answer = ask(peer, "grant");
    if (answer.size() != 47) continue;
    uint64_t grant = take<uint64_t>(answer.data() + 7), length = take<uint64_t>(answer.data() + 15);
    uint32_t epoch = take<uint32_t>(answer.data() + 31);
    peer.on_payload = [&](const uint8_t* bytes, size_t count) {
      before += static_cast<uint64_t>(std::count(bytes, bytes + count, kBeforeRevoke));
      after += static_cast<uint64_t>(std::count(bytes, bytes + count, kAfterRevoke));
    };
    peer.leave_unread(true);
    for (uint64_t i = 0; i < 16; ++i)
      (void)peer.send(want(i, kRead, grant, epoch, 0, length).whole());
    // Its answers fill the way here; then the command, whose answer comes behind them.
    ::poll(nullptr, 0, static_cast<int>(rounds % 4));
    std::string command = "revoke";
    (void)peer.send(inline_message(99, kCommandTag, Bytes(command.begin(), command.end())));
    ::poll(nullptr, 0, 20);
    peer.leave_unread(false);
    auto end = Siege::Clock::now() + std::chrono::seconds(2);
    bool revoked = false;
    while (peer.alive() && !revoked && Siege::Clock::now() < end) {
      (void)peer.listen(20);
      for (const Answer& a : peer.answers)
        revoked = revoked || (a.type == kOffer && a.at<uint64_t>(24) == kAnswerTag);
      peer.answers.clear();
    }
  }
  siege.must(rounds > 0 && before > 0, "reads are answered before the revoke");
  siege.note(std::to_string(before) + " bytes from before the revoke, " + std::to_string(after) +
             " from after it");
  siege.seen.hits += after;
}

void trickle(Siege& siege) {
  std::vector<std::unique_ptr<TcpPeer>> all;
  for (uint64_t i = 0; i < 16 * siege.dose && siege.more(); ++i) {
    auto peer = std::make_unique<TcpPeer>(siege);
    if (!peer->greet({.receive_bytes = 2048})) break;
    peer->leave_unread(true);
    for (uint64_t k = 0; k < 40; ++k) (void)peer->send(want_key(k, 0, k == 0 ? kWeights : "", 0));
    all.push_back(std::move(peer));
  }
  siege.must(!all.empty(), "a conversation");
  uint64_t start = siege.seen.bytes_in;
  siege.hold([&] {
    for (auto& peer : all) {
      if (peer->alive()) (void)peer->read_some(1);
    }
  });
  siege.must(siege.seen.bytes_in > start, "bytes are read, one at a time");
}

void pings_unread(Siege& siege) {
  std::vector<std::unique_ptr<TcpPeer>> all;
  for (int i = 0; i < 8; ++i) {
    auto peer = std::make_unique<TcpPeer>(siege);
    if (!peer->greet({.receive_bytes = 2048})) break;
    peer->leave_unread(true);
    auto until = std::min(siege.end, Siege::Clock::now() + std::chrono::milliseconds(500));
    while (peer->alive() && Siege::Clock::now() < until) {
      std::vector<Bytes> batch;
      for (uint64_t k = 0; k < 512; ++k) batch.push_back(ping(k, false));
      Bytes bytes;
      for (const Bytes& one : batch) bytes.insert(bytes.end(), one.begin(), one.end());
      // Only what the socket takes at once: the other end stops reading, or ends this.
      pollfd room{.fd = peer->fd(), .events = POLLOUT, .revents = 0};
      if (::poll(&room, 1, 50) <= 0 ||
          !peer->send_raw(bytes.data(), std::min<size_t>(bytes.size(), 4096)))
        break;
    }
    all.push_back(std::move(peer));
  }
  siege.must(siege.seen.bytes_out >= 100'000, "100 KB of PINGs");
  siege.hold();
}

// Offers of the largest size, each of which is asked for when it is received, and never comes.
void pulls_unserved(Siege& siege) {
  std::vector<std::unique_ptr<TcpPeer>> all;
  for (uint64_t i = 0; i < 16 * siege.dose && siege.more(); ++i) {
    auto peer = std::make_unique<TcpPeer>(siege);
    if (!peer->greet()) break;
    for (uint64_t k = 0; k < 200; ++k)
      (void)peer->send(offer(k, kTagged, 0x7000 + k, (1ull << 63) - 1).whole());
    // The one that a receive is posted for.
    (void)peer->send(offer(999, kTagged, kCommandTag, 200).whole());
    all.push_back(std::move(peer));
  }
  siege.hold([&] {
    for (auto& peer : all) (void)peer->listen(0);
  });
  siege.must(siege.seen.answers[kWant] > 0, "the other end asks for one");
}

void offers_cancelled(Siege& siege) {
  TcpPeer peer(siege);
  siege.must(peer.greet(), "a conversation");
  (void)flood(siege, peer, 20'000 * siege.dose, [](uint64_t i) {
    return i % 2 == 0 ? offer(i, kTagged, 0x7000, 1 << 20).whole() : cancel(i - 1, true);
  });
  settle(siege, peer);
  siege.must(siege.seen.answers[kDone] > 100 || siege.seen.cut_off > 0, "100 of them end");
}

// The same id for every offer, and for every want.
void ids_repeated(Siege& siege) {
  TcpPeer peer(siege);
  siege.must(peer.greet(), "a conversation");
  (void)flood(siege, peer, 200,
              [](uint64_t i) { return offer(5, kTagged, 0x7000 + i, 1 << 20).whole(); });
  (void)flood(siege, peer, 10'000 * siege.dose, [](uint64_t i) {
    return i % 2 == 0 ? want_key(5, 0, i == 0 ? kWeights : "", i % 4) : cancel(5, i % 4 == 1);
  });
  settle(siege, peer);
}

// DATA whose bytes stop in the middle, for a pull that the other end made.
void data_stalls(Siege& siege) {
  std::vector<std::unique_ptr<TcpPeer>> all;
  for (uint64_t i = 0; i < 16 * siege.dose && siege.more(); ++i) {
    auto peer = std::make_unique<TcpPeer>(siege);
    if (!peer->greet()) break;
    (void)peer->send(offer(999, kTagged, kCommandTag, 200).whole());
    Answer wanted;
    if (peer->await(kWant, wanted)) {
      Bytes part = Message(kData, wanted.id).u64(0).promising(200);
      part.resize(part.size() + 100, 'x');
      (void)peer->send(part);
    }
    all.push_back(std::move(peer));
  }
  siege.must(siege.seen.answers[kWant] > 0, "the other end asks for one");
  siege.hold([&] {
    for (auto& peer : all) (void)peer->listen(0);
  });
}

// More DATA than was asked for, beside it, and again.
void data_contradicts(Siege& siege) {
  for (uint64_t i = 0; i < 60 * siege.dose && siege.more(); ++i) {
    TcpPeer peer(siege);
    if (!peer.greet()) continue;
    (void)peer.send(offer(999, kTagged, kCommandTag, 200).whole());
    Answer wanted;
    if (!peer.await(kWant, wanted)) continue;
    Bytes some(100, 'x');
    const uint64_t wrong[] = {150, 200, 1ull << 40, ~0ull - 50, 0};
    for (int k = 0; k < 3; ++k) (void)peer.send(data(wanted.id, wrong[i % 5], some));
    (void)peer.listen(5);
  }
  siege.must(siege.seen.answers[kWant] > 0, "the other end asks");
}

const Registered registered(
    "tcp", {
               {"read_after_revoke", "reads that are under way when their grant is revoked",
                read_after_revoke},
               {"trickle", "takes one byte at a time of what it asked for", trickle},
               {"pings_unread", "PINGs whose answers are not read", pings_unread},
               {"pulls_unserved", "offers that never come", pulls_unserved},
               {"offers_cancelled", "offers and cancels by turns", offers_cancelled},
               {"ids_repeated", "one id for all that it offers and wants", ids_repeated},
               {"data_stalls", "DATA that stops in the middle", data_stalls},
               {"data_contradicts", "DATA beside and beyond what was asked for", data_contradicts},
           });

}  // namespace
}  // namespace hostile
