// Interfaces that go down and come back, lose their cable, are deleted, or change their MTU
// while tensors cross.
#include <catch2/catch.hpp>

#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

struct Cable {
  explicit Cable(int mtu = 1500) { REQUIRE(add_cable("left", 10, "right", 11, mtu)); }
  ~Cable() { remove_cable("left"); }
};

constexpr size_t kSize = 200'000;

// Messages from the near end to the far one, some at a time, compared where they arrive.
class Traffic {
 public:
  explicit Traffic(Two& two) : two_(two) {}
  ~Traffic() {
    sent_.all.clear();
    received_.all.clear();
  }
  // False: an operation ended badly, which `failure` says.
  bool turn() {
    while (failure.empty() && posted_ - done < 8) post();
    for (Completion& completion : sent_.all) take(completion);
    for (Completion& completion : received_.all) {
      if (completion.status.ok() && !holds(completion.buffers[0].bytes(), completion.tag))
        failure = "not what was sent";
      take(completion);
      done += completion.status.ok() ? 1 : 0;
    }
    sent_.all.clear();
    received_.all.clear();
    return failure.empty();
  }
  // Goes on until `more` messages have arrived.
  bool until_more(uint64_t more) {
    uint64_t goal = done + more;
    return two_.until([&] { return !turn() || done >= goal; }) && failure.empty();
  }
  uint64_t done = 0;
  std::string failure;

 private:
  void post() {
    uint64_t tag = ++posted_;
    auto room = two_.far->allocate({static_cast<int64_t>(kSize)}, uint8);
    REQUIRE(room.ok());
    REQUIRE(two_.server
                .receive({.tag = tag}, std::move(*room), {.sink = &received_, .deadline = soon()})
                .ok());
    REQUIRE(two_.client
                .send(tag, filled(*two_.near, kSize, tag).freeze(),
                      {.sink = &sent_, .deadline = soon(), .level = Level::kPlaced})
                .ok());
  }
  void take(const Completion& completion) {
    if (!completion.status.ok()) failure = completion.status.to_string();
  }
  Two& two_;
  Box sent_, received_;
  uint64_t posted_ = 0;
};

TEST_CASE("an interface that is down for a moment costs time and nothing else", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Cable cable;
  Two two;
  Traffic traffic(two);
  for (const char* end : {"left", "right"}) {
    INFO(end);
    REQUIRE(traffic.until_more(20));
    REQUIRE(set_up(end, false));
    (void)two.until([&] { return !traffic.turn(); }, in(std::chrono::milliseconds(700)));
    REQUIRE(traffic.failure == "");
    REQUIRE(set_up(end, true));
    bool went_on = traffic.until_more(20);
    INFO(traffic.failure);
    CHECK(went_on);
    CHECK(two.client.state() == EndpointState::kConnected);
  }
}

void check_ends(const std::function<bool()>& unplug, const std::function<void()>& mend,
                const char* near_cause) {
  NothingLeftBehind audit;
  Cable cable;
  Two two;
  Box box;
  Grown grown;
  REQUIRE(unplug());
  Instant began = now();
  REQUIRE(two.client
              .send(5, filled(*two.near, 1 << 20, 3).freeze(),
                    {.sink = &box, .deadline = soon(), .level = Level::kPlaced})
              .ok());
  CHECK(two.until([&] {
    return two.client.state() == EndpointState::kClosed &&
           two.server.state() == EndpointState::kClosed;
  }));
  REQUIRE(box.all.size() == 1);
  INFO(box.all[0].status.to_string());
  CHECK((box.all[0].status == Code::kOutcomeUnknown || box.all[0].status == Code::kUnreachable));
  CHECK(box.all[0].status.detail().find(near_cause) != std::string_view::npos);
  CHECK(now() - began >= std::chrono::seconds(2));  // a moment is borne
  CHECK(grown("l2.interfaces_lost") == 2);
  mend();
}

TEST_CASE("an interface that stays down ends its connections, and says so", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  check_ends([] { return set_up("left", false); }, [] { set_up("left", true); }, "left is down");
}

TEST_CASE("a cable that stays out ends its connections, and says so", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  check_ends([] { return set_up("right", false); }, [] { set_up("right", true); },
             "left has no carrier");
}

TEST_CASE("an interface that is deleted ends its connections, and says so", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  check_ends([] { return run("ip link del left"); }, [] { add_cable("left", 10, "right", 11); },
             "left is gone");
}

TEST_CASE("an MTU that changes under traffic, at one end or both, is followed", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Cable cable(9000);
  Two two;
  Traffic traffic(two);
  REQUIRE(traffic.until_more(20));
  struct Step {
    const char* interface;
    int mtu;
  };
  for (Step step : {Step{"left", 1500}, Step{"right", 1500}, Step{"left", 9000},
                    Step{"right", 9000}, Step{"right", 1500}, Step{"right", 9000}}) {
    INFO(step.interface << " " << step.mtu);
    REQUIRE(set_mtu(step.interface, step.mtu));
    bool went_on = traffic.until_more(20);
    INFO(traffic.failure);
    REQUIRE(went_on);
    two.exchange_tensors(300'000);
    // Who comes now is told of the MTU that is.
    two.exchange_anew();
  }
  CHECK(two.client.state() == EndpointState::kConnected);
}

TEST_CASE("an MTU that becomes less than a session began with ends it with the cause", "[l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  NothingLeftBehind audit;
  Cable cable(1500);
  Two two;
  two.exchange_tensors(300'000);
  // The end that sees it first knows the cause; the other one is told that the session is closed.
  REQUIRE(set_mtu("left", 1400));
  REQUIRE(two.until([&] { return two.client.state() == EndpointState::kClosed; }));
  auto refused = two.client.send_and_wait(5, filled(*two.near, 64, 1).freeze(), soon());
  INFO(refused.status().to_string());
  CHECK(refused.status().detail().find("1400") != std::string_view::npos);
  CHECK(refused.status().detail().find("connect again") != std::string_view::npos);
  REQUIRE(set_mtu("right", 1400));
  two.exchange_anew();  // and a new one fits
}

}  // namespace
}  // namespace sluice::test
