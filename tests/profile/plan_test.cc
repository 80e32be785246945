// What a replay is made of: connections that have both ends, peers that were not recorded, and
// which part is played.
#include "tools/profile/plan.h"

#include <catch2/catch.hpp>

#include <string>
#include <utility>
#include <vector>

#include "tests/profile/recordings.h"

namespace sluice::tools::profile {
namespace {

using recording::Event;
using recording::EventKind;
using recording::Recording;

// One process with a connection to each of `peers`.
Recording process(uint64_t pid, const std::vector<uint64_t>& peers, std::vector<Event> events) {
  Recording made;
  made.file = "recording-" + std::to_string(pid);
  made.header = test::header_of_test(pid);
  recording::ContextRecording& context = made.contexts[0];
  for (uint32_t i = 0; i < peers.size(); ++i) {
    recording::Connection connection{.number = i, .path = static_cast<uint32_t>(Path::kShm)};
    test::put_text(connection.local, "pid " + std::to_string(pid));
    test::put_text(connection.peer, "pid " + std::to_string(peers[i]));
    context.connections[i] = connection;
  }
  context.events = std::move(events);
  return made;
}
Event sent(uint64_t at, uint64_t bytes, uint64_t computed = 0, uint32_t connection = 0) {
  return {.at_ns = at,
          .bytes = bytes,
          .computed_ns = computed,
          .connection = connection,
          .kind = EventKind::kSent};
}
Event received(uint64_t at, uint64_t bytes, uint64_t polled = 0, uint32_t connection = 0) {
  return {.at_ns = at,
          .bytes = bytes,
          .polled_ns = polled,
          .connection = connection,
          .kind = EventKind::kReceived};
}
constexpr uint64_t kAll = 1'000'000'000;

TEST_CASE("two ends of a connection are two players, with what each computed") {
  auto plan = make_plan({process(1, {2}, {sent(2000, 64, 500), received(4000, 8, 1500)}),
                         process(2, {1}, {received(2100, 64), sent(3900, 8, 1700)})},
                        kAll);
  REQUIRE(plan.ok());
  REQUIRE(plan->players.size() == 2);
  REQUIRE(plan->lines.size() == 1);
  CHECK(plan->unmatched == 0);
  CHECK(plan->messages == 4);
  const std::vector<Step>& one = plan->players[0].steps;
  REQUIRE(one.size() == 2);
  CHECK(one[0].send);
  CHECK(one[0].bytes == 64);
  CHECK(one[0].computed_ns == 500);
  CHECK_FALSE(one[1].send);
  const std::vector<Step>& two = plan->players[1].steps;
  REQUIRE(two.size() == 2);
  CHECK_FALSE(two[0].send);
  CHECK(two[1].send);
  CHECK(two[1].computed_ns == 1700);
}

TEST_CASE("a message of which one end is missing is not played, what was computed before it is") {
  auto plan = make_plan({process(1, {2}, {sent(2000, 64), sent(3000, 64, 900), received(4000, 8)}),
                         process(2, {1}, {received(2100, 64), sent(3900, 8)})},
                        kAll);
  REQUIRE(plan.ok());
  CHECK(plan->unmatched == 1);
  const std::vector<Step>& one = plan->players[0].steps;
  REQUIRE(one.size() == 2);
  CHECK_FALSE(one[1].send);
  CHECK(one[1].computed_ns == 900);
}

TEST_CASE("a peer that was not recorded answers when it answered then") {
  auto plan = make_plan(
      {process(1, {2},
               {sent(2000, 64), received(5000, 8, 2900), sent(6000, 64), received(6001, 8)})},
      kAll);
  REQUIRE(plan.ok());
  REQUIRE(plan->players.size() == 2);
  CHECK(plan->players[0].recorded);
  CHECK_FALSE(plan->players[1].recorded);
  const std::vector<Step>& peer = plan->players[1].steps;
  REQUIRE(peer.size() == 4);
  CHECK_FALSE(peer[0].send);
  CHECK(peer[1].send);
  CHECK(peer[1].computed_ns == 3000);
  CHECK(peer[3].computed_ns == 0);  // nobody waited for it
}

TEST_CASE("each of several connections between two processes is its own") {
  auto plan = make_plan({process(1, {2, 2}, {sent(2000, 1, 0, 0), sent(2001, 2, 0, 1)}),
                         process(2, {1, 1}, {received(3000, 2, 0, 1), received(3001, 1, 0, 0)})},
                        kAll);
  REQUIRE(plan.ok());
  REQUIRE(plan->lines.size() == 2);
  CHECK(plan->unmatched == 0);
  CHECK(plan->players[0].steps[0].line == plan->players[1].steps[1].line);
  CHECK(plan->players[0].steps[1].line == plan->players[1].steps[0].line);
}

TEST_CASE("of a long recording a part is played in which every message has both ends") {
  std::vector<Event> one, two;
  for (uint64_t i = 0; i < 1000; ++i) {
    one.push_back(sent(2000 + 100 * i, 64));
    two.push_back(received(2000 + 100 * i + 450, 64));  // four are always under way
  }
  auto plan = make_plan({process(1, {2}, one), process(2, {1}, two)}, 10'000);
  REQUIRE(plan.ok());
  CHECK(plan->span_ns == 10'000);
  CHECK(plan->players[0].steps.size() == 100);
  CHECK(plan->players[1].steps.size() == 100);
  CHECK(plan->unmatched == 0);
}

TEST_CASE("what cannot be played together is refused with the reason") {
  const Recording one = process(1, {2}, {sent(2000, 64)});
  const Recording two = process(2, {1}, {received(2100, 64)});
  auto refusal = [](const std::vector<Recording>& recordings) {
    auto plan = make_plan(recordings, kAll);
    REQUIRE_FALSE(plan.ok());
    return std::string(plan.status().detail());
  };
  CHECK(refusal({one, one}).find("twice") != std::string::npos);
  Recording elsewhere = two;
  elsewhere.header.host[0] = 9;
  CHECK(refusal({one, elsewhere}).find("different machines") != std::string::npos);
  CHECK(refusal({}).find("name the FILE") != std::string::npos);
  CHECK(refusal({process(1, {2}, {})}).find("no message") != std::string::npos);
  CHECK(refusal({one, process(2, {1}, {sent(2100, 64)})}).find("both of its ends") !=
        std::string::npos);
}

}  // namespace
}  // namespace sluice::tools::profile
