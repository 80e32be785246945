// Not an attack either: has the tables of the server filled, then sends one type of message for as
// long as it is told, so that somebody can see what a byte of it costs. Lines of standard input:
//   fill         keys, wants, messages, offers, grants, half-open connections: as many as get in;
//   "filled ..." send TYPE N  N messages of it on a conversation that took part in the filling, and
//   waits until they were read; "sent BYTES" end
#include <cstdio>
#include <iostream>
#include <sstream>

#include "tests/hostile/attacker/tcp.h"

namespace hostile {
namespace {

class Bench {
 public:
  explicit Bench(Siege& siege) : siege_(siege) {}

  void run() {
    std::string line;
    while (std::getline(std::cin, line)) {
      std::istringstream words(line);
      std::string verb, type;
      uint64_t count = 0;
      words >> verb >> type >> count;
      if (verb == "fill")
        fill();
      else if (verb == "send")
        std::printf("sent %llu\n", static_cast<unsigned long long>(send(type, count)));
      else
        break;
      std::fflush(stdout);
    }
  }

 private:
  void fill() {
    uint64_t keys = 0, messages = 0, offers = 0, wants = 0, half_open = 0, grants = 0;
    for (int i = 0; i < 24 && siege_.more(); ++i) {
      auto peer = std::make_unique<TcpPeer>(siege_);
      if (!peer->greet()) break;
      grants += ask(*peer, "grant").size() == 47 ? 1 : 0;
      // Half of a table of wants by names, and half by steps of one.
      keys += flood(siege_, *peer, 2000, [&](uint64_t k) {
        return want_key(k, static_cast<uint32_t>(k),
                        "fill/" + std::to_string(i) + "/" + std::to_string(k), 1);
      });
      wants += flood(siege_, *peer, 2000,
                     [&](uint64_t k) { return want_key(10'000 + k, 0, "", 2 + k); });
      messages += flood(siege_, *peer, 120, [](uint64_t k) {
        return inline_message(k, 0x7000 + k, Bytes(64, 1), kReport);
      });
      offers += flood(siege_, *peer, 120, [](uint64_t k) {
        return offer(20'000 + k, kTagged, 0x8000 + k, 1 << 20).whole();
      });
      settle(siege_, *peer);
      if (peer->alive()) full_.push_back(std::move(peer));
    }
    for (int i = 0; i < 200 && siege_.more(); ++i) {
      auto peer = std::make_unique<TcpPeer>(siege_);
      if (!peer->connect()) break;
      ++half_open;
      half_open_.push_back(std::move(peer));
    }
    std::printf(
        "filled %zu conversations, %llu keys, %llu more wants, %llu messages, %llu offers, %llu "
        "grants, %llu half open\n",
        full_.size(), static_cast<unsigned long long>(keys), static_cast<unsigned long long>(wants),
        static_cast<unsigned long long>(messages), static_cast<unsigned long long>(offers),
        static_cast<unsigned long long>(grants), static_cast<unsigned long long>(half_open));
  }

  // What each type costs where it is refused or finds nothing: with empty tables and with full ones
  // alike.
  static Bytes message(const std::string& type, uint64_t i) {
    if (type == "OFFER")
      return offer(i, kSupply, (1ull << 40) + i, 64, kInline)
          .tlv(kLayout, layout_of(64))
          .whole(Bytes(64, 1));
    if (type == "WANT") return want_key((1ull << 41) + i, 9999, "", i);
    if (type == "READ") return want(i, kRead, (1ull << 42) + i, 7, 0, 8).whole();
    if (type == "DATA") return data((1ull << 40) + i, 0, Bytes(64, 1));
    if (type == "DONE") return done((1ull << 40) + i, 1, 0);
    if (type == "RELEASE")
      return release({(1ull << 40) + i, (1ull << 41) + i, (1ull << 42) + i, (1ull << 43) + i});
    if (type == "CANCEL_WANT") return cancel((1ull << 40) + i, false);
    if (type == "CANCEL_OFFER") return cancel((1ull << 40) + i, true);
    if (type == "CREDIT") return credit(256, 1 << 20);
    return ping(i, true);
  }

  uint64_t send(const std::string& type, uint64_t count) {
    // HELLO and BYE: a connection for each.
    if (type == "HELLO" || type == "BYE") {
      uint64_t before = siege_.seen.bytes_out;
      for (uint64_t i = 0; i < count / 64 + 1; ++i) {
        TcpPeer peer(siege_);
        if (!peer.connect() || !peer.say_hello() || !peer.hear_hello()) continue;
        if (type == "BYE") (void)(peer.choose() && peer.send(bye(0)));
        while (type == "BYE" && peer.listen(20)) {}
      }
      return siege_.seen.bytes_out - before;
    }
    if (full_.empty() && other_ == nullptr) {
      other_ = std::make_unique<TcpPeer>(siege_);
      siege_.must(other_->greet(), "a conversation");
    }
    TcpPeer& peer = full_.empty() ? *other_ : *full_.front();
    uint64_t before = siege_.seen.bytes_out;
    (void)flood(siege_, peer, count, [&](uint64_t i) { return message(type, i); });
    settle(siege_, peer);
    return peer.alive() ? siege_.seen.bytes_out - before : 0;
  }

  Siege& siege_;
  std::vector<std::unique_ptr<TcpPeer>> full_, half_open_;
  std::unique_ptr<TcpPeer> other_;
};

void cost(Siege& siege) { Bench(siege).run(); }

const Registered registered("cost",
                            {{"tcp", "fills the tables of a server, and sends what it is told",
                              cost}});

}  // namespace
}  // namespace hostile
