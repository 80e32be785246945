// Credits between a sender and a receiver that share nothing but messages.
#include <catch2/catch.hpp>

#include <deque>
#include <random>

#include <sluice/proto/credits.h>

namespace sluice::proto {
namespace {

wire::Hello window(uint64_t messages, uint64_t bytes) {
  wire::Hello hello;
  hello.credit_messages = messages;
  hello.credit_bytes = bytes;
  return hello;
}

// A receiver that consumes at once, its sender behind a line, and a time that both go by.
struct LongLine {
  explicit LongLine(uint64_t messages, uint64_t bytes)
      : sender({}, window(messages, bytes)), receiver(window(messages, bytes), {}) {}

  // Messages of one length, one each `takes`, as long as there is credit, in rounds of a grant and
  // what it allows. The grants of a round arrive together, `round_trip` after the last of them.
  void run(int rounds, uint64_t bytes, Duration takes, Duration round_trip) {
    for (int round = 0; round < rounds; ++round) {
      std::deque<wire::Credit> grants;
      sent_in_round = 0;
      for (; sender.may_send(bytes) && sent_in_round < 100'000; ++sent_in_round) {
        sender.count_sent(bytes);
        time += takes;
        REQUIRE(receiver.take(bytes, time));
        if (receiver.wanted()) receiver.widen(receiver.wanted());
        if (receiver.consume(bytes)) grants.push_back(receiver.grant());
      }
      time += round_trip;
      for (const wire::Credit& grant : grants) sender.allow(grant);
    }
  }

  Credits sender, receiver;
  Instant time{std::chrono::hours(1)};
  uint64_t sent_in_round = 0;
};

}  // namespace

TEST_CASE("a sender may send up to both limits and no further", "[credits]") {
  Credits by_messages({}, window(2, 1000));
  CHECK(by_messages.may_send(1000));
  CHECK_FALSE(by_messages.may_send(1001));
  by_messages.count_sent(10);
  by_messages.count_sent(10);
  CHECK_FALSE(by_messages.may_send(0));
  CHECK(by_messages.may_send_bytes(980));

  Credits by_bytes({}, window(10, 100));
  by_bytes.count_sent(60);
  CHECK(by_bytes.may_send(40));
  CHECK_FALSE(by_bytes.may_send(41));
  CHECK(by_bytes.may_send(0));  // a rendezvous has no eager bytes
}

TEST_CASE("a CREDIT that comes late or twice takes nothing away", "[credits]") {
  Credits credits({}, window(1, 10));
  credits.allow({.messages = 5, .bytes = 50});
  credits.allow({.messages = 3, .bytes = 70});
  credits.allow({.messages = 4, .bytes = 60});
  for (int i = 0; i < 5; ++i) {
    CHECK(credits.may_send(14));
    credits.count_sent(14);
  }
  CHECK_FALSE(credits.may_send(0));
}

TEST_CASE("a receiver notices a message, or bytes, beyond what it granted", "[credits]") {
  Credits messages(window(2, 100), {});
  CHECK(messages.take(10, Instant()));
  CHECK(messages.take(10, Instant()));
  CHECK_FALSE(messages.take(0, Instant()));

  Credits bytes(window(10, 100), {});
  CHECK(bytes.take(100, Instant()));
  CHECK(bytes.take(0, Instant()));
  CHECK_FALSE(bytes.take(1, Instant()));
}

TEST_CASE("the window is granted anew when half of either limit is consumed", "[credits]") {
  Credits messages(window(4, 1000), {});
  CHECK_FALSE(messages.consume(1));
  CHECK_FALSE(messages.consume(1));
  CHECK(messages.consume(1));
  CHECK(messages.grant().messages == 7);
  CHECK_FALSE(messages.consume(1));

  Credits bytes(window(100, 1000), {});
  CHECK_FALSE(bytes.consume(500));
  CHECK(bytes.consume(1));
  CHECK(bytes.grant().bytes == 1501);
  CHECK_FALSE(bytes.consume(500));
}

TEST_CASE("credit grows until a round trip is not longer than it lasts", "[credits]") {
  using std::chrono::microseconds, std::chrono::milliseconds;
  // 16 KiB each 131 us, over a line of 1 Gbit/s.
  LongLine of_bytes(256, 1u << 20);
  of_bytes.run(20, 16u << 10, microseconds(131), milliseconds(20));
  CHECK(of_bytes.sent_in_round * 131 > 20'000);
  CHECK(of_bytes.sent_in_round <= Credits::kMostBytes / (16u << 10));

  LongLine of_messages(256, 1u << 20);
  of_messages.run(20, 64, microseconds(10), milliseconds(20));
  CHECK(of_messages.sent_in_round * 10 > 20'000);
  CHECK(of_messages.sent_in_round <= Credits::kMostMessages);
}

TEST_CASE("credit grows neither over a short line nor for a peer that is slow", "[credits]") {
  using std::chrono::microseconds, std::chrono::milliseconds;
  LongLine near(256, 1u << 20);
  near.run(20, 16u << 10, microseconds(3), microseconds(100));
  CHECK(near.sent_in_round <= 64);

  LongLine slow(256, 1u << 20);
  slow.run(20, 64, milliseconds(10), milliseconds(10));
  CHECK(slow.sent_in_round <= 256);
}

TEST_CASE("credit has an upper limit, and a window beyond it stays as it is", "[credits]") {
  LongLine line(256, 1u << 20);
  line.run(40, 16u << 10, Duration(0), std::chrono::seconds(1));
  CHECK(line.sent_in_round >= Credits::kMostBytes / 2 / (16u << 10));
  CHECK(line.sent_in_round <= Credits::kMostBytes / (16u << 10));
  LongLine large(256, 3 * Credits::kMostBytes);
  large.run(10, 1u << 20, Duration(0), std::chrono::seconds(1));
  CHECK(large.sent_in_round <= 3 * Credits::kMostBytes >> 20);
}

TEST_CASE("a sender with messages to send never waits for a receiver that consumes", "[credits]") {
  constexpr uint64_t kMessages = 8, kBytes = 500, kLargest = 250;
  std::mt19937_64 random(1);
  Credits sender({}, window(kMessages, kBytes));
  Credits receiver(window(kMessages, kBytes), {});
  std::deque<uint64_t> unexpected;
  uint64_t kept = 0, grants = 0, sent = 0;
  while (sent < 10000) {
    const uint64_t bytes = random() % (kLargest + 1);
    if (sender.may_send(bytes)) {
      sender.count_sent(bytes);
      ++sent;
      REQUIRE(receiver.take(bytes, Instant()));
      unexpected.push_back(bytes);
      kept += bytes;
      REQUIRE(unexpected.size() <= kMessages);
      REQUIRE(kept <= kBytes);
      if (random() % 2 == 0) continue;
    }
    REQUIRE_FALSE(unexpected.empty());  // else both would wait for ever
    const uint64_t first = unexpected.front();
    unexpected.pop_front();
    kept -= first;
    if (!receiver.consume(first)) continue;
    sender.allow(receiver.grant());
    ++grants;
  }
  // Not one for each message.
  CHECK(grants < sent / 2);
}

}  // namespace sluice::proto
