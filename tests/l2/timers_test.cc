// The order in which timers come, against a plain search; and a sleep that ends in time.
#include <catch2/catch.hpp>

#include <poll.h>

#include <algorithm>
#include <random>
#include <vector>

#include <sluice/l2/sleep_timer.h>
#include <sluice/l2/timers.h>
#include <sluice/select/open.h>

#include "tests/support/audit.h"

namespace sluice::l2 {
namespace {

Instant at(int64_t n) { return Instant(Duration(n)); }

TEST_CASE("the first timer is the earliest one, whatever was set, moved and stopped",
          "[l2][timers]") {
  std::mt19937 random(7);
  for (size_t count : {1u, 2u, 3u, 17u, 300u}) {
    Timers timers;
    std::vector<Timer> all(count);
    for (int step = 0; step < 3000; ++step) {
      Timer& timer = all[random() % count];
      timers.set(timer, random() % 4 == 0 ? kNever : at(static_cast<int64_t>(random() % 500)));
      auto least = std::min_element(all.begin(), all.end(),
                                    [](const Timer& a, const Timer& b) { return a.due < b.due; });
      REQUIRE(timers.next() == least->due);
      if (least->due != kNever) REQUIRE(timers.first().due == least->due);
    }
    Instant last = at(-1);
    while (timers.next() != kNever) {
      REQUIRE(timers.next() >= last);
      last = timers.next();
      timers.set(timers.first(), kNever);
    }
    for (const Timer& timer : all) CHECK(timer.index == Timer::kNone);
  }
}

TEST_CASE("a context asleep wakes for a timer below a millisecond, and not before",
          "[l2][timers]") {
  test::NothingLeftBehind audit;
  auto context = std::move(open_context({})).value();
  SleepTimer timer(ContextCore::of(*context));
  auto woken = [&](int limit_ms) {
    pollfd waiting{context->fd(), POLLIN, 0};
    return ::poll(&waiting, 1, limit_ms) == 1;
  };
  CHECK_FALSE(woken(0));
  for (int64_t ns : {100'000, 500'000, 900'000}) {
    Instant due = after(now(), Duration(ns));
    REQUIRE(timer.arm(due, now()));
    REQUIRE(woken(20'000));
    CHECK(now() >= due);
    CHECK(woken(0));  // until somebody looks
    (void)context->wait(after(now(), std::chrono::seconds(20)));
    CHECK_FALSE(woken(0));
  }
  // One that is set for earlier serves a later one as well; one for later does not serve an
  // earlier.
  Instant soon = after(now(), std::chrono::milliseconds(1)),
          late = after(now(), std::chrono::hours(1));
  REQUIRE(timer.arm(late, now()));
  REQUIRE(timer.arm(soon, now()));
  REQUIRE(timer.arm(late, now()));
  REQUIRE(woken(20'000));
  // What is over already is told at once.
  timer.close();
  CHECK_FALSE(woken(0));
  REQUIRE(timer.arm(at(0), now()));
  CHECK(woken(20'000));
}

}  // namespace
}  // namespace sluice::l2
