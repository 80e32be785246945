// When a port asks the kernel to drop strangers' frames, and how many.
#include <catch2/catch.hpp>

#include <cstdint>

#include <sluice/l2/flood_watch.h>

namespace sluice::l2 {
namespace {

using namespace std::chrono_literals;

// For so long, so many frames in each millisecond come to the port's machine; those that pass reach
// the port. Returns how many changes were told.
struct Port {
  int run(Duration time, uint32_t in_a_millisecond) {
    int changes = 0;
    for (const Instant end = now + time; now < end; now += 1ms) {
      for (uint32_t i = 0; i < in_a_millisecond; ++i) {
        if (++number % watch.keeps_one_of() == 0) watch.note_stranger();
      }
      if (watch.look(now)) ++changes;
    }
    return changes;
  }
  FloodWatch watch;
  Instant now{1h};
  uint64_t number = 0;
};

TEST_CASE("what a port can take is not dropped", "[l2]") {
  Port port;
  CHECK(port.run(10s, 100) == 0);
  CHECK(port.run(10s, 0) == 0);
  CHECK(port.watch.keeps_one_of() == 1);
}

TEST_CASE("a flood is dropped down to what a port can take, and none after it", "[l2]") {
  for (uint32_t rate : {150u, 1000u, 10'000u}) {
    INFO(rate << " in a millisecond");
    Port port;
    CHECK(port.run(20ms, rate) >= 1);
    (void)port.run(100ms, rate);
    const uint64_t passes = rate * 10 / port.watch.keeps_one_of();
    CHECK(passes <= FloodWatch::kPass);
    // Nor more than needed: a newcomer's chance.
    CHECK(passes >= FloodWatch::kPass / 8);
    CHECK(port.run(1s, 0) >= 1);
    CHECK(port.watch.keeps_one_of() == 1);
  }
}

TEST_CASE("a flood that shrinks lets more through", "[l2]") {
  Port port;
  (void)port.run(1s, 10'000);
  (void)port.run(1s, 500);
  CHECK(5000 / port.watch.keeps_one_of() >= FloodWatch::kPass / 8);
  CHECK(port.watch.keeps_one_of() > 1);
}

TEST_CASE("a flood of one rate does not raise and lower the guard again and again", "[l2]") {
  for (uint32_t rate : {150u, 800u, 2000u, 4000u}) {
    INFO(rate << " in a millisecond");
    Port port;
    (void)port.run(2s, rate);
    CHECK(port.run(10s, rate) == 0);
  }
}

TEST_CASE("no flood is dropped without end", "[l2]") {
  Port port;
  (void)port.run(500ms, 2'000'000);
  CHECK(port.watch.keeps_one_of() == FloodWatch::kFewestOneOf);
}

}  // namespace
}  // namespace sluice::l2
