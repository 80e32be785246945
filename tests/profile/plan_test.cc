// What a replay is made of: connections that have both ends, peers that were not recorded, and
// which part is played.
#include "tools/profile/plan.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <span>
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

TEST_CASE("a part begins where a message is sent, and so has one") {
  std::vector<Event> one, two;
  for (uint64_t burst = 0; burst < 8; ++burst) {
    for (uint64_t i = 0; i < 10; ++i) {
      one.push_back(sent(2000 + 1'000'000'000 * burst + i, 64));
      two.push_back(received(9000 + 1'000'000'000 * burst + i, 64));
    }
  }
  auto plan = make_plan({process(1, {2}, one), process(2, {1}, two)}, 100'000);
  REQUIRE(plan.ok());
  CHECK(plan->players[0].steps.size() == 2);
  CHECK(plan->players[1].steps.size() == 2);
}

// Servers and workers as in the main job: dozens of tensors in each step, within a millisecond, and
// seconds of computing before the next step.
constexpr uint64_t kStepNs = 4'000'000'000, kComputedNs = 500'000'000;
constexpr uint32_t kSteps = 12, kTensors = 32;
std::vector<Recording> job(uint32_t servers, uint32_t workers) {
  std::vector<std::vector<Event>> events(servers + workers);
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      for (uint32_t worker = 0; worker < workers; ++worker) {
        for (uint32_t server = 0; server < servers; ++server) {
          std::vector<Event>& at_server = events[server];
          std::vector<Event>& at_worker = events[servers + worker];
          const uint64_t at =
              20'000 + step * kStepNs + tensor * 20'000 + worker * 2000 + server * 50;
          const uint64_t computed = tensor == 0 ? kComputedNs : 0;
          at_server.push_back(sent(at, 4096, computed, worker));
          at_worker.push_back(received(at + 1000, 4096, 0, server));
          at_worker.push_back(sent(at + 1500, 64 * (server + 1), 0, server));
          at_server.push_back(received(at + 20'000, 64 * (server + 1), 0, worker));
        }
      }
    }
  }
  std::vector<Recording> made;
  for (uint32_t i = 0; i < events.size(); ++i) {
    std::stable_sort(events[i].begin(), events[i].end(),
                     [](const Event& a, const Event& b) { return a.at_ns < b.at_ns; });
    std::vector<uint64_t> peers;
    for (uint32_t peer = 0; peer < (i < servers ? workers : servers); ++peer)
      peers.push_back(1 + peer + (i < servers ? servers : 0));
    made.push_back(process(1 + i, peers, events[i]));
  }
  return made;
}

TEST_CASE(
    "of a program that sends in bursts a part is played that has a burst and what is between") {
  for (uint32_t servers : {1u, 2u, 3u}) {
    for (uint32_t workers = 1; workers <= 8; ++workers) {
      INFO(servers << " servers, " << workers << " workers");
      auto plan = make_plan(job(servers, workers), 200'000'000);
      REQUIRE(plan.ok());
      CHECK(plan->unmatched == 0);
      CHECK(plan->lines.size() == servers * workers);
      REQUIRE(plan->players.size() == servers + workers);
      // The time between two bursts, and not the whole.
      CHECK(plan->span_ns > kStepNs * 9 / 10);
      CHECK(plan->span_ns < 2 * kStepNs);
      for (uint32_t i = 0; i < plan->players.size(); ++i) {
        INFO("player " << i);
        uint64_t computed = 0;
        for (const Step& step : plan->players[i].steps) {
          computed += step.computed_ns;
          // Of one server, or to one: 4096 bytes one way, and by server the other.
          const bool to_worker = step.send == (i < servers);
          const uint64_t server = plan->lines[step.line].players[0];
          CHECK(step.bytes == (to_worker ? 4096 : 64 * (server + 1)));
        }
        CHECK(plan->players[i].steps.size() >= 2 * kTensors);
        // Before each of the sends that begin a step, and not before the part.
        if (i < servers) CHECK(computed >= kComputedNs);
      }
    }
  }
}

TEST_CASE(
    "what was computed before the part is not played, and who has nothing in it has no part") {
  std::vector<Event> one, two;
  for (uint64_t i = 0; i < 1000; ++i) {
    // The peer gets message 100, the first of the part, 45 ns later.
    one.push_back(sent(2000 + 100 * i, 64, 90));
    two.push_back(received(2045 + 100 * i, 64));
  }
  two[100].computed_ns = 95;
  std::vector<Recording> all = {process(1, {2}, one), process(2, {1}, two)};
  all.push_back(process(3, {4}, {sent(500'000, 8)}));
  all.push_back(process(4, {3}, {received(500'100, 8)}));
  for (Recording& tcp : std::span(all).last(2))
    tcp.contexts[0].connections[0].path = static_cast<uint32_t>(Path::kTcp);
  auto plan = make_plan(all, 10'000);
  REQUIRE(plan.ok());
  REQUIRE(plan->players.size() == 2);
  CHECK(plan->path() == Path::kShm);
  CHECK(plan->players[0].steps[0].computed_ns == 0);
  CHECK(plan->players[0].steps[1].computed_ns == 90);
  CHECK(plan->players[1].steps[0].computed_ns == 45);
}

TEST_CASE("the time between two runs is in no part") {
  std::vector<Recording> all;
  for (uint64_t run : {0, 1}) {
    std::vector<Event> one, two;
    for (uint64_t i = 0; i < 50; ++i) {
      one.push_back(sent(2000 + 100'000 * run + 100 * i, 64));
      two.push_back(received(2045 + 100'000 * run + 100 * i, 64));
    }
    all.push_back(process(1 + 2 * run, {2 + 2 * run}, one));
    all.push_back(process(2 + 2 * run, {1 + 2 * run}, two));
  }
  auto plan = make_plan(all, 10'000);
  REQUIRE(plan.ok());
  CHECK(plan->players.size() == 2);
  CHECK(plan->span_ns == 10'000);
}

TEST_CASE("a process that was started after others had begun is as late in the replay") {
  std::vector<Recording> all = {
      process(1, {2}, {sent(2000, 64)}), process(2, {1}, {received(2100, 64)}),
      process(3, {4}, {sent(9000, 8, 300)}), process(4, {3}, {received(9100, 8)})};
  all[2].header.started_ns = all[3].header.started_ns = 8000;
  auto plan = make_plan(all, kAll);
  REQUIRE(plan.ok());
  REQUIRE(plan->players.size() == 4);
  CHECK(plan->players[0].steps[0].paused_ns == 0);
  CHECK(plan->players[2].steps[0].paused_ns == 7000);
  CHECK(plan->players[2].steps[0].computed_ns == 300);
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
  CHECK(refusal({one, process(2, {1}, {sent(2100, 64)})}).find("record anew") != std::string::npos);
}

}  // namespace
}  // namespace sluice::tools::profile
