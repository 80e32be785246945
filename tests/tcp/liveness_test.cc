// Dead, unplugged and silent peers are told apart. These tests wait for real seconds,
// since the kernel's timers are what they are about.
#include <sluice/base/counters.h>
#include "tests/tcp/own_network.h"
#include "tests/tcp/testing.h"
#include "tests/support/skip.h"

namespace sluice::tcp {
namespace {

using namespace testing;

TEST_CASE("a peer that does not read for longer than the limit for unplugged ones stays connected",
          "[tcp][liveness]") {
  LoneContext lone;
  LinkAndPeer pair(lone, 4096);
  Bytes payload = pattern(size_t{8} << 20, 1);
  wire::Data data;
  data.id = 1;
  data.payload_bytes = static_cast<uint32_t>(wire::kMaxDataBytes);
  Bytes header(wire::kMaxHeaderBytes);
  header.resize(wire::encode(data, header));
  // Fills the peer's window, our socket and our queue.
  ConstBytes run = ConstBytes(payload).first(wire::kMaxDataBytes);
  while (pair.push(header, std::span(&run, 1), 0)) {}
  Instant end = after(now(), kUnpluggedAfter + std::chrono::milliseconds(1500));
  CHECK(lone.context.wait_until([&] { return pair.client.down_calls > 0; }, end) ==
        Code::kTimedOut);
  CHECK(pair.client.down_calls == 0);
  // And it goes on when the peer reads again.
  CHECK(pair.read_peer(size_t{4} << 20).size() == size_t{4} << 20);
  pair.close();
}

// What a child finds: 0 as it should be.
int unplugged_with_bytes_out() {
  LoneContext lone;
  LinkAndPeer pair(lone);
  Bytes ping = frame(wire::Ping{.nonce = 1, .reply = false});
  pair.send(ping);
  pair.pump();
  if (!set_loopback_up(false)) return 2;
  pair.send(ping);
  Instant start = now();
  Status waited = lone.context.wait_until([&] { return pair.client.down_calls > 0; },
                                          after(start, std::chrono::seconds(15)));
  if (!waited.ok()) return 3;
  if (pair.client.down.code() != Code::kUnreachable) return 4;
  if (now() - start < std::chrono::seconds(2)) return 5;
  if (read_counter("tcp.links_unplugged") != 1) return 6;
  pair.close();
  return 0;
}

int unplugged_while_idle() {
  LoneContext lone;
  LinkAndPeer pair(lone);
  if (!set_loopback_up(false)) return 2;
  Status waited = lone.context.wait_until([&] { return pair.client.down_calls > 0; },
                                          after(now(), std::chrono::seconds(15)));
  if (!waited.ok()) return 3;
  return pair.client.down.code() == Code::kUnreachable ? 0 : 4;
}

TEST_CASE("an unplugged peer is noticed while bytes to it are unanswered", "[tcp][liveness]") {
  int result = in_own_network(unplugged_with_bytes_out);
  if (result < 0) return test::skip("netns", "unshare(CLONE_NEWNET) is not allowed here");
  CHECK(result == 0);
}

TEST_CASE("an unplugged peer is noticed on an idle connection", "[tcp][liveness]") {
  int result = in_own_network(unplugged_while_idle);
  if (result < 0) return test::skip("netns", "unshare(CLONE_NEWNET) is not allowed here");
  CHECK(result == 0);
}

TEST_CASE("an idle link is on no list and asks for no timer", "[tcp][liveness]") {
  LoneContext lone;
  LinkAndPeer pair(lone);
  pair.pump();
  CHECK(lone.group->next_timeout() == kNever);
  pair.send(frame(wire::Ping{.nonce = 1, .reply = false}));
  CHECK(lone.group->next_timeout() != kNever);
  // Answered by the peer's kernel: the next check ends the watch.
  for (int i = 0; i < 3; ++i)
    lone.group->progress(after(now(), std::chrono::seconds(10 * (i + 1))));
  CHECK(lone.group->next_timeout() == kNever);
  pair.close();
}

}  // namespace
}  // namespace sluice::tcp
