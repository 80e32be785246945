// A flood of strangers' frames at a port by AF_XDP.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernel_compat/slp/slp.h"
#include "kernel_compat/slp/slp_wire.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/l2/xdp_cable.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

// Beginnings of acknowledgements to connections that are not there.
void send_strangers(RawWire& wire, uint16_t port, uint32_t count) {
  static uint32_t number = 0;
  std::vector<uint8_t> frame(14 + SLP_BASE_BYTES);
  const Mac to = mac_number(11), from = mac_number(77);
  std::copy(to.begin(), to.end(), frame.begin());
  std::copy(from.begin(), from.end(), frame.begin() + 6);
  frame[12] = SLP_ETHERTYPE >> 8;
  frame[13] = SLP_ETHERTYPE & 0xff;
  for (uint32_t i = 0; i < count; ++i) {
    slp_base base{};
    base.type = SLP_ACK;
    base.connection = ++number;
    base.source_port = 9;
    base.destination_port = port;
    slp_encode_base(frame.data() + 14, &base);
    (void)wire.send(frame);
  }
}

uint16_t port_of(const std::string& address) {
  return static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
}

// Fills the port's ring and keeps it full, until most strangers are dropped.
void flood(Two& two, RawWire& wire, uint16_t port, const std::function<bool()>& enough) {
  constexpr uint32_t kMoreThanRing = 1100, kTurn = 128;
  send_strangers(wire, port, kMoreThanRing);
  for (Instant limit = soon(); !enough() && now() < limit;) {
    two.pass(Duration(0));
    send_strangers(wire, port, kTurn);
  }
  REQUIRE(enough());
}
// What has come is handled.
void drain(Two& two, Grown& grown) {
  auto handled = [&] { return grown("l2.dropped_runt") + grown("l2.strangers_dropped"); };
  for (uint64_t before = handled() + 1; before != handled();) {
    before = handled();
    two.pass(std::chrono::milliseconds(1));
  }
}

TEST_CASE("a flood by AF_XDP is dropped unread, but for a part, until it is over", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  Two two(by_xdp());
  RawWire wire("left");
  const uint16_t port = port_of(two.listener.address());
  Grown grown;
  flood(two, wire, port, [&] { return grown("l2.strangers_dropped") >= 1000; });
  CHECK(grown("l2.floods") > 0);
  drain(two, grown);
  // Who is connected is no stranger, and notices nothing; nor do those who connect now.
  const uint64_t of_strangers = grown("l2.strangers_dropped");
  two.exchange_messages(5000);
  CHECK(grown("l2.strangers_dropped") == of_strangers);
  two.exchange_anew();
  two.exchange_messages(300'000);
  // It is over: soon all of them come.
  auto one_is_dropped = [&] {
    const uint64_t before = grown("l2.dropped_runt"), dropped = grown("l2.strangers_dropped");
    send_strangers(wire, port, 1);
    REQUIRE(two.until([&] {
      return grown("l2.dropped_runt") > before || grown("l2.strangers_dropped") > dropped;
    }));
    return grown("l2.strangers_dropped") > dropped;
  };
  for (int in_a_row = 0; in_a_row < 100;) in_a_row = one_is_dropped() ? 0 : in_a_row + 1;
  two.say_goodbye();
}

TEST_CASE("a flood at a listener without peers leaves no guard", "[l2][xdp]") {
  NEEDS_XDP();
  for (const std::string interface : {"xdp/right", "right"}) {
    INFO(interface);
    NothingLeftBehind audit;
    Two two(by_xdp());
    Result<Listener> lonely = Status(Code::kInternal, Scope::kOperation, "tests/l2");
    far_node()->inside([&] { lonely = two.far->listen("l2://" + interface + ":0"); });
    REQUIRE(lonely.ok());
    RawWire wire("left");
    const uint16_t port = port_of(lonely->address());
    Grown grown;
    flood(two, wire, port, [&] { return grown("l2.floods") > 0; });
    drain(two, grown);
    // Nothing comes that would have the port look.
    two.pass(std::chrono::milliseconds(500));
    const uint64_t before = grown("l2.dropped_runt");
    send_strangers(wire, port, 100);
    CHECK(two.until([&] { return grown("l2.dropped_runt") - before == 100; },
                    in(std::chrono::seconds(20))));
    lonely->close();
    two.say_goodbye();
  }
}

}  // namespace
}  // namespace sluice::test
