// The timers of many sessions: which are looked at, when, and how many in one turn. By a clock of
// the test's own.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/proto/session_set.h>
#include <sluice/runtime/mailbox.h>

#include "tests/proto/direct_link.h"

namespace sluice::proto {
namespace {

using namespace std::chrono_literals;
using test::DirectLink;

class Sessions final : public SessionSet, public CompletionSink {
 public:
  explicit Sessions(size_t count, const SessionOptions& options = {}) : SessionSet(Instant{1h}) {
    for (size_t i = 0; i < count; ++i) {
      auto link = std::make_unique<DirectLink>();
      links.push_back(link.get());
      SessionParts parts;
      parts.mailbox = mailbox;
      parts.options = options;
      all.push_back(open(std::move(link), nullptr, std::move(parts)));
    }
    turn();
  }
  ~Sessions() override {
    abort_all(Status(Code::kCancelled, Scope::kContext, "test", "over"));
    turn();
  }
  Instant exact_now() const override { return exact += each_look; }
  Instant from_now(Duration d) const override { return after(time, d); }
  void turn() {
    exact = time;
    while (progress(time) > 0) {}
  }
  OperationId receive(size_t i, Instant deadline) {
    Buffer buffer = Buffer::wrap(memory, sizeof(memory), nullptr, nullptr).value();
    auto posted = all[i]->post_receive(
        {.tag = 1}, {&buffer, 1},
        {.sink = this, .user_data = static_cast<uint64_t>(i), .deadline = deadline});
    REQUIRE(posted.ok());
    return *posted;
  }
  void on_completion(Completion&& completion) noexcept override {
    ended[completion.user_data] = time;
    if (auto once = std::exchange(inside, {})) once();
  }

  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>(-1);
  std::vector<DirectLink*> links;
  std::vector<std::shared_ptr<Session>> all;
  std::map<uint64_t, Instant> ended;  // by session
  Instant time{1h};
  Duration each_look{0};  // how long it takes from one look at the clock to the next
  mutable Instant exact{1h};
  std::byte memory[8];
  std::function<void()> inside;  // the next completion, once
};

uint64_t looked_at() { return read_counter("session.timers_looked_at"); }

TEST_CASE("progress() inside a completion runs the sessions that have not run yet", "[proto]") {
  Sessions sessions(3);
  for (size_t i = 0; i < 3; ++i) sessions.receive(i, sessions.time + 1s);
  sessions.turn();
  size_t ended_inside = 0;
  sessions.inside = [&] {
    // Who waits inside a completion needs the other sessions to go on.
    while (sessions.progress(sessions.time) > 0) {}
    ended_inside = sessions.ended.size();
  };
  sessions.time += 1s;
  sessions.turn();
  CHECK(ended_inside == 3);
  CHECK_FALSE(sessions.has_work());
}

TEST_CASE("when one timer of a thousand is due, the others are not looked at", "[proto][timers]") {
  Sessions sessions(1000);
  for (size_t i = 0; i < 1000; ++i) sessions.receive(i, sessions.time + 1ms * (2000 - i));
  sessions.turn();
  const uint64_t before = looked_at();
  sessions.time = sessions.next_timeout();
  REQUIRE(sessions.time < Instant{1h} + 1s);  // a question, or a deadline
  sessions.turn();
  CHECK(looked_at() - before <= 2 * 11);  // out of the heap of 1,000, and in again
  CHECK(looked_at() - before > 0);
}

TEST_CASE("operations end by their own deadlines, in any order of posting, ending and time",
          "[proto][timers]") {
  constexpr size_t kSessions = 60;
  std::mt19937 random(18);
  Sessions sessions(kSessions);
  for (int round = 0; round < 50; ++round) {
    std::map<uint64_t, Instant> due;
    std::map<uint64_t, OperationId> ids;
    sessions.ended.clear();
    for (size_t i = 0; i < kSessions; ++i) {
      if (random() % 3 == 0) continue;
      due[i] = sessions.time + 1ms * (1 + random() % 3000);
      ids[i] = sessions.receive(i, due[i]);
      if (random() % 2 == 0) sessions.turn();
    }
    sessions.turn();
    while (!due.empty()) {
      if (random() % 8 == 0) {
        auto one = std::next(due.begin(), static_cast<long>(random() % due.size()));
        REQUIRE(sessions.all[one->first]->cancel(ids[one->first]).ok());
        due.erase(one);
        sessions.turn();
        continue;
      }
      Instant first = kNever;
      for (auto& [i, when] : due) first = std::min(first, when);
      REQUIRE(sessions.next_timeout() <= first);
      REQUIRE(sessions.next_timeout() > sessions.time);
      sessions.time = random() % 4 == 0 ? first : sessions.next_timeout();
      sessions.turn();
      for (auto one = due.begin(); one != due.end();) {
        REQUIRE(sessions.ended.contains(one->first) == (one->second <= sessions.time));
        one = one->second <= sessions.time ? due.erase(one) : std::next(one);
      }
    }
  }
}

TEST_CASE("a turn in which all timers are due looks after some, and the next goes on",
          "[proto][timers]") {
  constexpr size_t kSessions = 400;
  Sessions sessions(kSessions);
  for (size_t i = 0; i < kSessions; ++i) sessions.receive(i, sessions.time + 100ms);
  sessions.turn();
  sessions.time += 100ms;
  sessions.each_look = 50us;
  size_t turns = 0, most = 0;
  uint64_t most_looks = 0;
  while (sessions.ended.size() < kSessions) {
    const size_t before = sessions.ended.size();
    const uint64_t looks = looked_at();
    sessions.exact = sessions.time;
    sessions.progress(sessions.time);
    most = std::max(most, sessions.ended.size() - before);
    most_looks = std::max(most_looks, looked_at() - looks);
    REQUIRE(++turns < 100 * kSessions);
  }
  CHECK(most <= 40);  // of a millisecond
  CHECK(most_looks <= 40 * 10);
  CHECK(turns >= 10);
  CHECK(turns <= kSessions / 4);  // several in each
}

TEST_CASE("a thousand sessions that fall silent together ask one after the other",
          "[proto][timers]") {
  constexpr size_t kSessions = 1000;
  Sessions sessions(kSessions);
  for (size_t i = 0; i < kSessions; ++i) sessions.receive(i, sessions.time + 1h);
  sessions.turn();
  uint64_t asked = 0, most = 0;
  for (int step = 0; step < 100; ++step) {
    sessions.time += 10ms;
    sessions.turn();
    uint64_t sent = 0;
    for (DirectLink* link : sessions.links) sent += link->sent;
    most = std::max(most, sent - asked);
    asked = sent;
  }
  CHECK(asked == kSessions);  // each once within a second
  CHECK(most <= 60);          // 20 on average while they ask
}

}  // namespace
}  // namespace sluice::proto
