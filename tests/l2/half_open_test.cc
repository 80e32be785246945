// Who has to go when a listener has as many half-open connections as it keeps.
#include <catch2/catch.hpp>

#include <netinet/in.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/base/status.h>
#include <sluice/l2/carrier/frames.h>
#include <sluice/l2/carrier/udp_socket.h>
#include <sluice/proto/half_open.h>

namespace sluice::l2 {
namespace {

Counter late("test.half_open_late");

struct Greeter {
  enum class State : uint8_t { kGreeting, kReady, kEnded };
  struct Place {
    PeerAddress peer;
  };
  State state() const { return now; }
  const Place& place() const { return at; }
  std::string peer_name() const { return {}; }
  Status failure() const { return Status(); }
  void stop() {}

  Place at;
  int number;
  State now = State::kGreeting;
};

PeerAddress udp(uint8_t machine, uint16_t port) {
  UdpPlace place{};
  place.address.s6_addr[15] = machine;
  place.port = port;
  return pack(place);
}

PeerAddress mac(uint8_t machine) {
  PeerAddress address;
  address.size = 6;
  address.bytes[5] = machine;
  return address;
}

struct Table {
  void add(const PeerAddress& peer, bool ready = false) {
    auto one = std::make_unique<Greeter>(Greeter{{peer}, added++});
    if (ready) one->now = Greeter::State::kReady;
    all.add(std::move(one), kNever);
  }
  bool make_room(const PeerAddress& newcomer) {
    return all.make_room(newcomer, [](const auto& entry) { return !entry.ready(); });
  }
  std::vector<int> gone;
  int added = 0;
  proto::HalfOpen<Greeter> all{
      late, [this](std::unique_ptr<Greeter> one) { gone.push_back(one->number); }};
};

TEST_CASE("the machine that has most makes room for others and none for itself, whatever its ports",
          "[l2]") {
  for (bool in_udp : {true, false}) {
    INFO(in_udp);
    auto at = [&](uint8_t machine, uint16_t port) {
      return in_udp ? udp(machine, port) : mac(machine);
    };
    Table table;
    table.add(at(1, 7));
    for (uint16_t port = 1; port <= 5; ++port) table.add(at(2, port));
    table.add(at(3, 7));
    table.add(at(3, 8));
    CHECK_FALSE(table.make_room(at(2, 99)));
    CHECK(table.make_room(at(1, 99)));
    CHECK(table.make_room(at(4, 1)));
    CHECK(table.gone == std::vector<int>{1, 2});
  }
}

TEST_CASE("where none has two the oldest goes, and who has greeted stays", "[l2]") {
  Table table;
  table.add(udp(1, 7), true);
  for (uint8_t machine = 2; machine < 6; ++machine) table.add(udp(machine, 7));
  table.add(udp(1, 8), true);
  CHECK(table.make_room(udp(9, 7)));
  CHECK(table.make_room(udp(2, 7)));
  CHECK(table.gone == std::vector<int>{1, 2});
  table.all.drop_all();
  table.add(udp(1, 7), true);
  table.add(udp(1, 8), true);
  CHECK_FALSE(table.make_room(udp(9, 7)));
}

}  // namespace
}  // namespace sluice::l2
