// Attacks before and in the greeting of TCP.
#include <vector>

#include "tests/hostile/attacker/tcp.h"

namespace hostile {
namespace {

using Peers = std::vector<std::unique_ptr<TcpPeer>>;

// As many connections as asked for, each as far as `step` takes it.
template <typename Step>
Peers many(Siege& siege, size_t count, Step&& step) {
  Peers peers;
  while (peers.size() < count && siege.more()) {
    auto peer = std::make_unique<TcpPeer>(siege);
    bool in = peer->connect();
    if (in) step(*peer);
    // One that is refused is given back: this process has not more descriptors than the other.
    if (peer->alive()) peers.push_back(std::move(peer));
    if (!in) break;
    if (siege.seen.turned_away + siege.seen.cut_off > 2 * count) break;
  }
  return peers;
}

void drain(Peers& peers) {
  for (auto& peer : peers) (void)peer->listen(0);
}

void silent(Siege& siege) {
  Peers peers = many(siege, 600 * siege.dose, [](TcpPeer&) {});
  siege.must(siege.seen.connections >= 500, "500 connections");
  siege.hold([&] { drain(peers); });
}

void half_hello(Siege& siege) {
  Bytes half = hello().whole();
  half.resize(50);
  Peers peers = many(siege, 600 * siege.dose, [&](TcpPeer& peer) { (void)peer.send(half); });
  siege.must(siege.seen.messages_out >= 500, "500 halves of HELLO");
  siege.hold([&] { drain(peers); });
}

void no_choice(Siege& siege) {
  Peers peers = many(siege, 600 * siege.dose,
                     [](TcpPeer& peer) { (void)(peer.say_hello() && peer.hear_hello()); });
  siege.must(siege.seen.answers[kHello] >= 64, "64 HELLOs answered");
  siege.hold([&] { drain(peers); });
}

void finished(Siege& siege) {
  Peers peers = many(siege, 1100 * siege.dose, [](TcpPeer& peer) {
    (void)(peer.say_hello() && peer.hear_hello() && peer.choose());
  });
  siege.must(siege.seen.greeted >= 16, "16 greetings finished");
  siege.must(siege.seen.connections >= 1000, "1000 connections");
  siege.note(std::to_string(peers.size()) + " stayed");
  siege.hold([&] { drain(peers); });
}

void finished_from_everywhere(Siege& siege) {
  Peers peers;
  for (size_t i = 0; i < 1100 * siege.dose && siege.more(); ++i) {
    auto peer = std::make_unique<TcpPeer>(siege);
    if (peer->greet({.source = "127.0." + std::to_string(1 + i / 200 % 200) + "." +
                               std::to_string(1 + i % 200)}))
      peers.push_back(std::move(peer));
  }
  siege.must(siege.seen.greeted >= 16, "16 greetings finished");
  siege.must(siege.seen.connections >= 1000, "1000 connections");
  siege.note(std::to_string(peers.size()) + " stayed");
  siege.hold([&] { drain(peers); });
}

void churn(Siege& siege) {
  for (size_t i = 0; i < 1500 * siege.dose && siege.more(); ++i) {
    TcpPeer peer(siege);
    (void)peer.greet();
  }
  siege.must(siege.seen.connections >= 500, "500 connections");
}

void resets(Siege& siege) {
  for (size_t i = 0; i < 1500 * siege.dose && siege.more(); ++i) {
    TcpPeer peer(siege);
    if (!peer.connect()) break;
    if (i % 3 > 0) (void)peer.say_hello();
    if (i % 3 > 1) (void)peer.choose();
    peer.reset();
  }
  siege.must(siege.seen.connections >= 500, "500 connections");
}

// Each kind of a HELLO that must be refused, on a connection of its own.
void malformed_hello(Siege& siege) {
  std::vector<Bytes> wrong;
  auto add = [&](const HelloFields& fields) { wrong.push_back(hello(fields).whole()); };
  add({.magic = 0x12345678});
  add({.min_version = 0});
  add({.min_version = 3, .max_version = 2});
  add({.min_version = 7, .max_version = 9});
  Bytes good = hello().whole();
  for (auto [at, value] : std::vector<std::pair<size_t, uint8_t>>{{0, 0},
                                                                  {0, 11},
                                                                  {0, 255},
                                                                  {1, 1},
                                                                  {1, 128},
                                                                  {2, 97},
                                                                  {2, 88},
                                                                  {3, 5},
                                                                  {4, 1},
                                                                  {7, 255}}) {
    wrong.push_back(good);
    wrong.back()[at] = value;
  }
  wrong.push_back(hello().tlv(0x8777, Bytes(8, 1)).whole());        // unknown and critical
  wrong.push_back(hello().tlv(kRendezvous, Bytes(31, 1)).whole());  // too short
  wrong.push_back(
      hello().tlv(kRendezvous, Bytes(32, 1)).tlv(kRendezvous, Bytes(32, 1)).whole());  // twice
  wrong.push_back(hello().tlv(0x0005, Bytes(4, 0)).whole());                           // port 0
  wrong.push_back(hello().tlv(0x0006, Bytes(4, 0)).whole());
  wrong.push_back(hello().u16(7).u16(9999).u32(0).whole());  // reaches beyond
  for (uint8_t type = kOffer; type <= kBye; ++type)
    wrong.push_back(Message(type, 1).raw(Bytes(32, 0)).whole());
  wrong.push_back(siege.junk(200));
  const char* web = "GET / HTTP/1.1\r\nHost: sluice\r\n\r\n";
  wrong.emplace_back(web, web + 31);
  uint64_t before = siege.seen.turned_away, sent = 0;
  for (uint64_t round = 0; round < 4 * siege.dose && siege.more(); ++round) {
    for (const Bytes& bytes : wrong) {
      TcpPeer peer(siege);
      if (!peer.connect() || !peer.send(bytes)) continue;
      ++sent;
      while (siege.more() && peer.listen(50)) {}
    }
  }
  siege.must(sent >= wrong.size(), "each was sent");
  siege.must(siege.seen.turned_away - before >= sent, "each was refused");
}

void longest_hello(Siege& siege) {
  Message message = hello();
  for (int i = 0; i < 114; ++i) message.tlv(static_cast<uint16_t>(0x0100 + i), Bytes(4, 9));
  uint64_t met = 0;
  for (uint64_t i = 0; i < 300 * siege.dose && siege.more(); ++i) {
    TcpPeer peer(siege);
    met +=
        peer.connect() && peer.send(message.whole()) && peer.hear_hello() && peer.choose() ? 1 : 0;
  }
  siege.must(met > 0, "a HELLO of 1008 bytes is taken");
}

void byte_by_byte(Siege& siege) {
  Peers peers = many(siege, 200, [](TcpPeer&) {});
  Bytes all = hello().whole();
  size_t at = 0;
  siege.hold([&] {
    for (auto& peer : peers) {
      if (peer->alive() && at + 1 < all.size()) (void)peer->send_raw(all.data() + at, 1);
      (void)peer->listen(0);
    }
    ++at;
  });
  siege.must(siege.seen.bytes_out >= 400, "400 bytes, one at a time");
}

void every_choice(Siege& siege) {
  for (uint64_t choice = 0; choice < 40 * siege.dose && siege.more(); ++choice) {
    for (uint32_t code : {0u, 1u, 12u, 13u}) {
      if (choice == kChoiceTcp && code == 0) continue;
      TcpPeer peer(siege);
      if (!peer.connect() || !peer.say_hello() || !peer.hear_hello() ||
          !peer.choose(choice < 32 ? choice : ~choice, code))
        continue;
      while (siege.more() && peer.listen(50)) {}
    }
  }
  siege.must(siege.seen.answers[kBye] >= 40, "40 choices were refused by BYE");
}

void second_hello(Siege& siege) {
  for (uint64_t i = 0; i < 100 * siege.dose && siege.more(); ++i) {
    TcpPeer peer(siege);
    if (!peer.connect() || !peer.say_hello() || !peer.hear_hello()) continue;
    (void)peer.say_hello();
    while (siege.more() && peer.listen(50)) {}
  }
  siege.must(siege.seen.answers[kHello] >= 8, "8 HELLOs answered");
}

void leaves_after_choice(Siege& siege) {
  for (uint64_t i = 0; i < 600 * siege.dose && siege.more(); ++i) {
    TcpPeer peer(siege);
    if (!peer.connect() || !peer.say_hello() || !peer.hear_hello() || !peer.choose()) continue;
    (void)peer.send(bye(i % 13));
  }
  siege.must(siege.seen.greeted >= 16, "16 greetings finished");
}

const Registered registered(
    "tcp", {
               {"silent", "connects by the hundred and says nothing", silent},
               {"half_hello", "half a HELLO on each of many connections", half_hello},
               {"no_choice", "HELLO and then no choice, by the hundred", no_choice},
               {"finished", "more finished greetings than the other end has descriptors", finished},
               {"finished_from_everywhere", "the same from 200 addresses and more",
                finished_from_everywhere, true},
               {"churn", "connects, greets and leaves, again and again", churn},
               {"resets", "connects and resets at each step of the greeting", resets},
               {"malformed_hello", "every kind of HELLO that must be refused", malformed_hello},
               {"longest_hello", "HELLOs of 1008 bytes of unknown TLVs", longest_hello},
               {"byte_by_byte", "HELLOs of one byte a packet", byte_by_byte},
               {"every_choice", "chooses every path that is not served", every_choice},
               {"second_hello", "HELLO in the place of the choice", second_hello},
               {"leaves_after_choice", "BYE right behind the choice", leaves_after_choice},
           });

}  // namespace
}  // namespace hostile
