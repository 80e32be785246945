// Control messages and a link that has no room for them.
#include <sluice/proto/control_queue.h>

#include "tests/proto/parts.h"

namespace sluice::proto {
namespace {

using test::Parts;

std::vector<uint64_t> nonces(const Parts& parts) {
  std::vector<uint64_t> found;
  for (const wire::Ping& ping : parts.sent<wire::Ping>()) found.push_back(ping.nonce);
  return found;
}

}  // namespace

TEST_CASE("messages that find no room leave in order when there is some", "[control_queue]") {
  Parts parts;
  parts.link.room = 2;
  for (uint64_t i = 1; i <= 5; ++i) parts.control.send(wire::Ping{.nonce = i});
  CHECK(nonces(parts) == std::vector<uint64_t>{1, 2});
  CHECK(parts.control.waiting());
  // One that would find room stays behind those that did not.
  parts.link.room = 1;
  parts.control.send(wire::Ping{.nonce = 6});
  CHECK(nonces(parts) == std::vector<uint64_t>{1, 2});
  CHECK_FALSE(parts.control.send_now({}, {}));

  CHECK_FALSE(parts.control.send_kept());
  CHECK(parts.control.blocked());
  parts.link.room = 10;
  parts.control.writable();
  CHECK(parts.control.send_kept());
  CHECK(nonces(parts) == std::vector<uint64_t>{1, 2, 3, 4, 5, 6});
  CHECK(parts.connection.counters.messages_sent == 6);
}

TEST_CASE("what is kept is charged to the peer until it has left", "[control_queue]") {
  Parts parts;
  parts.link.room = 0;
  for (uint64_t i = 0; i < 2000; ++i) parts.control.send(wire::Ping{.nonce = i});
  const uint64_t kept = 2000 * wire::kHeaderBytes;
  CHECK(parts.charged(PeerResource::kControlBytes) >= kept);
  parts.link.room = ~uint64_t{0};
  parts.control.writable();
  CHECK(parts.control.send_kept());
  CHECK(nonces(parts).size() == 2000);
  CHECK(parts.charged(PeerResource::kControlBytes) == 0);
}

TEST_CASE("a peer that reads nothing ends its connection and no more", "[control_queue]") {
  Parts parts;
  parts.link.room = 0;
  uint64_t sent = 0;
  while (parts.failure.ok()) {
    parts.control.send(wire::Ping{.nonce = ++sent});
    REQUIRE(sent < 1000000);
  }
  CHECK(parts.failure.code() == Code::kUnreachable);
  // Nothing is kept for it any more.
  const uint64_t charged = parts.charged(PeerResource::kControlBytes);
  for (int i = 0; i < 10000; ++i) parts.control.send(wire::Ping{});
  CHECK(parts.charged(PeerResource::kControlBytes) == charged);
  parts.control.refund();
  CHECK(parts.charged(PeerResource::kControlBytes) == 0);
}

TEST_CASE("a peer whose account is full ends its connection", "[control_queue]") {
  PeerLimits limits;
  limits.control_bytes.by_peer = 40u << 10;
  Parts parts({}, limits);
  parts.link.room = 0;
  for (uint64_t i = 0; i < 4000 && parts.failure.ok(); ++i)
    parts.control.send(wire::Ping{.nonce = i});
  CHECK(parts.failure.code() == Code::kUnreachable);
  CHECK(parts.charged(PeerResource::kControlBytes) <= limits.control_bytes.by_peer);
}

TEST_CASE("releases travel together, and alone when nothing else happens", "[control_queue]") {
  Parts parts;
  for (uint64_t i = 1; i <= 3; ++i) parts.control.view_ended(i);
  parts.control.send_releases_after(1);
  CHECK(parts.sent<wire::Release>().empty());
  CHECK(parts.control.due());
  parts.control.send_releases_after(0);
  REQUIRE(parts.sent<wire::Release>().size() == 1);
  CHECK(parts.sent<wire::Release>()[0].count == 3);

  for (uint64_t i = 0; i < wire::kMaxReleases; ++i) parts.control.view_ended(i);
  REQUIRE(parts.sent<wire::Release>().size() == 2);
  CHECK(parts.sent<wire::Release>()[1].count == wire::kMaxReleases);
}

TEST_CASE("a round flushes once what it sent", "[control_queue]") {
  Parts parts;
  parts.control.send(wire::Ping{});
  parts.control.send(wire::Ping{});
  CHECK(parts.activations == 1);  // a round is asked for, once
  parts.control.flush();
  parts.control.flush();
  CHECK(parts.link.flushes == 1);
  CHECK_FALSE(parts.control.due());
}

TEST_CASE("nothing leaves after the end of the connection", "[control_queue]") {
  Parts parts;
  parts.connection.link_dead = true;
  parts.control.send(wire::Ping{});
  parts.control.view_ended(1);
  CHECK(parts.link.sent.empty());
  CHECK_FALSE(parts.control.waiting());
  CHECK_FALSE(parts.control.due());
}

}  // namespace sluice::proto
