// Silence and idleness, at times that the test says.
#include <sluice/proto/liveness.h>

#include "tests/proto/parts.h"

namespace sluice::proto {
namespace {

using namespace std::chrono_literals;
using test::Parts;

}  // namespace

TEST_CASE("a quiet peer is asked after the ping interval, and only while something waits",
          "[liveness]") {
  Parts parts;
  Liveness liveness(parts.connection, parts.control);
  liveness.start();
  const Instant start = parts.time;
  CHECK(liveness.check_silence(start + 10s, false) == kNever);
  CHECK(parts.sent<wire::Ping>().empty());
  CHECK(liveness.check_silence(start + 500ms, true) == start + 1s);
  CHECK(parts.sent<wire::Ping>().empty());
  CHECK(liveness.check_silence(start + 1s, true) == start + 4s);
  CHECK(parts.sent<wire::Ping>().size() == 1);
}

TEST_CASE("a peer that answers no ping is silent until it is heard", "[liveness]") {
  Parts parts;
  Liveness liveness(parts.connection, parts.control);
  liveness.start();
  const Instant start = parts.time;
  (void)liveness.check_silence(start + 1s, true);
  CHECK(liveness.check_silence(start + 3s, true) == start + 4s);
  CHECK_FALSE(liveness.peer_silent());
  (void)liveness.check_silence(start + 4s, true);
  CHECK(liveness.peer_silent());
  CHECK(liveness.take_news());
  CHECK_FALSE(liveness.take_news());
  parts.connection.last_heard = start + 5s;
  CHECK_FALSE(liveness.peer_silent());  // before any timer
  (void)liveness.check_silence(start + 5s, true);
  CHECK(parts.failure.ok());  // without a limit it stays
}

TEST_CASE("silence while the host was not looking proves nothing", "[liveness]") {
  Parts parts;
  Liveness liveness(parts.connection, parts.control);
  liveness.start();
  const Instant start = parts.time;
  REQUIRE(liveness.check_silence(start + 1s, true) == start + 4s);
  // A minute later, instead of in time.
  (void)liveness.check_silence(start + 60s, true);
  CHECK_FALSE(liveness.peer_silent());
  CHECK(parts.sent<wire::Ping>().size() == 1);  // that one has its time again
  (void)liveness.check_silence(start + 63s, true);
  CHECK(liveness.peer_silent());
}

TEST_CASE("a silent peer ends at the silence limit and not before", "[liveness]") {
  SessionOptions options;
  options.silence_limit = 5s;
  Parts parts(options);
  Liveness liveness(parts.connection, parts.control);
  liveness.start();
  Instant next = parts.time;
  const Instant asked = parts.time + 1s;
  while (parts.failure.ok()) {
    CHECK(next < asked + 5s);
    next = liveness.check_silence(next, true);
    REQUIRE(next != kNever);
    if (next >= asked + 5s) break;
  }
  CHECK(parts.failure.ok());
  CHECK(liveness.check_silence(asked + 5s, true) == kNever);
  CHECK(parts.failure.code() == Code::kUnreachable);
}

TEST_CASE("an idle connection ends, and pings are no use of it", "[liveness]") {
  SessionOptions options;
  options.idle_limit = 10s;
  Parts parts(options);
  Liveness liveness(parts.connection, parts.control);
  liveness.start();
  const Instant start = parts.time;
  CHECK(parts.connection.next_timeout == start + 10s);
  CHECK(liveness.check_idle(start + 3s, false) == start + 10s);
  // Used since: it is looked at again after a whole limit.
  ++parts.connection.counters.posted;
  CHECK(liveness.check_idle(start + 10s, false) == start + 20s);
  // What is in use stays, however quiet.
  CHECK(liveness.check_idle(start + 20s, true) == start + 30s);
  // The peer's pings, as the session counts them.
  for (uint64_t i = 0; i < 5; ++i) {
    ++parts.connection.counters.messages_received;
    liveness.on_ping({.nonce = i});
  }
  CHECK(parts.sent<wire::Ping>().size() == 5);
  CHECK(liveness.check_idle(start + 30s, false) == kNever);
  CHECK(parts.failure.code() == Code::kTimedOut);
}

TEST_CASE("a connection without an idle limit stays", "[liveness]") {
  Parts parts;
  Liveness liveness(parts.connection, parts.control);
  liveness.start();
  CHECK(parts.connection.next_timeout == kNever);
  CHECK(liveness.check_idle(parts.time + 1000h, false) == kNever);
  CHECK(parts.failure.ok());
}

}  // namespace sluice::proto
