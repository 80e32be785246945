// A live connection over a cable, and somebody beside it who sees its frames and sends others
// from its side.
#ifndef SLUICE_TESTS_L2_LIVE_H_
#define SLUICE_TESTS_L2_LIVE_H_

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/l2/raw_peer.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"

namespace sluice::test {

using Bytes = std::vector<uint8_t>;
inline const Mac kLeft = mac_number(10), kRight = mac_number(11);

struct Cable {
  Cable() { REQUIRE(add_cable("left", 10, "right", 11)); }
  ~Cable() { remove_cable("left"); }
};

// A live connection, somebody who sees what crosses, and somebody who sends from its side.
class Live {
 public:
  Live() : seen_("right"), wire("left") {
    REQUIRE(seen_.open());
    REQUIRE(wire.open());
    two.exchange_messages(100);
    two.exchange_messages(100'000);
  }
  // The latest frame of that type from the near end to the far one, without its Ethernet header.
  Bytes latest(uint8_t type) {
    Bytes found;
    two.exchange_messages(100);
    for (auto frame = seen_.receive(); !frame.empty(); frame = seen_.receive()) {
      if (std::equal(kRight.begin(), kRight.end(), frame.begin()) &&
          (frame[kEthernetBytes] & 31) == type)
        found.assign(frame.begin() + kEthernetBytes, frame.end());
    }
    REQUIRE_FALSE(found.empty());
    return found;
  }
  void inject(const Bytes& frame) { REQUIRE(wire.send(ethernet(kRight, kLeft, frame))); }
  // The connection is as good as before.
  void check_alive() {
    two.exchange_messages(5000);
    CHECK(two.client.state() == EndpointState::kConnected);
    CHECK(two.server.state() == EndpointState::kConnected);
  }

 private:
  Cable cable_;
  RawWire seen_;

 public:
  RawWire wire;
  Two two;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_L2_LIVE_H_
