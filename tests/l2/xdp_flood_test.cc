// A flood of strangers' frames at a port by AF_XDP.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
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

TEST_CASE("a flood by AF_XDP is dropped unread, but for a part, until it is over", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  Two two(by_xdp());
  RawWire wire("left");
  const std::string address = two.listener.address();
  const auto port = static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
  Grown grown;
  for (Instant limit = soon(); grown("l2.strangers_dropped") < 1000 && now() < limit;) {
    send_strangers(wire, port, 900);
    two.pass(std::chrono::milliseconds(1));
  }
  CHECK(grown("l2.floods") > 0);
  CHECK(grown("l2.strangers_dropped") >= 1000);
  // Who is connected notices nothing, nor do those who connect now.
  two.exchange_messages(5000);
  two.exchange_anew();
  two.exchange_messages(300'000);
  // It is over: all of them.
  two.pass(std::chrono::milliseconds(1500));
  const uint64_t before = grown("l2.dropped_runt"), dropped = grown("l2.strangers_dropped");
  send_strangers(wire, port, 100);
  CHECK(two.until([&] { return grown("l2.dropped_runt") - before == 100; },
                  in(std::chrono::seconds(20))));
  CHECK(grown("l2.strangers_dropped") == dropped);
  two.say_goodbye();
}

}  // namespace
}  // namespace sluice::test
