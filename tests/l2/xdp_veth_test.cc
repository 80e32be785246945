// Everything of the library over AF_XDP, between the two ends of a veth pair in networks of their
// own: whole, beside packet sockets, and what is refused.
#include <catch2/catch.hpp>

#include <string>

#include <sluice/api/context.h>
#include <sluice/l2/carrier/xdp_carrier.h>
#include <sluice/select/open.h>

#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

bool have_wire() {
  static const bool there = own_network() && add_cable("left", 10, "right", 11);
  return there;
}

// The kernel asks for capabilities of the machine: a sandbox's user namespace has none.
#define NEEDS_XDP()                                        \
  if (!have_wire()) return skip("netns", kNoNetwork);      \
  if (Status allowed = l2::xdp_allowed(); !allowed.ok()) { \
    const std::string why(allowed.detail());               \
    return skip("xdp", why);                               \
  }

TwoOptions by_xdp() {
  return {.listen_at = "l2://xdp/right:0", .way = [](Context&, const std::string& listening) {
            return "l2://xdp/left/" + mac_of_number(11) + listening.substr(listening.rfind(':'));
          }};
}

TEST_CASE("messages and one-sided access cross by AF_XDP at MTU 1280, 1400, 1500 and 3000",
          "[l2][xdp]") {
  NEEDS_XDP();
  for (int mtu : {1280, 1400, 1500, 3000}) {
    NothingLeftBehind audit;
    INFO("MTU " << mtu);
    REQUIRE((set_mtu("left", mtu) && set_mtu("right", mtu)));
    Two two(by_xdp());
    CHECK(two.listener.address().starts_with("l2://xdp/right/02:00:00:00:00:0b:"));
    two.exchange_everything(Path::kXdp);
    two.say_goodbye();
  }
  REQUIRE((set_mtu("left", 1500) && set_mtu("right", 1500)));
}

}  // namespace
}  // namespace sluice::test
