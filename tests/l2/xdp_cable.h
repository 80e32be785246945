// The cable that tests of AF_XDP take: its far end in a network of its own, as another machine has
// it. Knows no cases.
#ifndef SLUICE_TESTS_L2_XDP_CABLE_H_
#define SLUICE_TESTS_L2_XDP_CABLE_H_

#include <catch2/catch.hpp>

#include <net/if.h>
#include <poll.h>

#include <string>

#include <sluice/l2/carrier/xdp_carrier.h>
#include <sluice/l2/carrier/xdp_program.h>

#include "tests/l2/two.h"
#include "tests/l2/wire.h"

// The kernel asks for capabilities of the machine: a sandbox's user namespace has none.
#define NEEDS_XDP()                                            \
  if (far_node() == nullptr) return skip("netns", kNoNetwork); \
  if (Status allowed = l2::xdp_allowed(); !allowed.ok()) {     \
    const std::string why(allowed.detail());                   \
    return skip("xdp", why);                                   \
  }

namespace sluice::test {

// Interface "right" as one at `interface` connects to its listener.
inline std::string by(const std::string& interface, const std::string& listening) {
  return "l2://" + interface + "/" + mac_of_number(11) + listening.substr(listening.rfind(':'));
}

inline TwoOptions by_xdp() {
  return {.node = far_node(),
          .listen_at = "l2://xdp/right:0",
          .way = [](Context&, const std::string& listening) { return by("xdp/left", listening); }};
}

inline std::string program_at(const char* interface) {
  return l2::attached_xdp_program(static_cast<int>(::if_nametoindex(interface)));
}

inline bool set_both_mtus(int mtu) {
  return set_mtu("left", mtu) &&
         far_node()->run_inside("ip link set right mtu " + std::to_string(mtu));
}

}  // namespace sluice::test

#endif  // SLUICE_TESTS_L2_XDP_CABLE_H_
