// Fetches that bring no memory: what one turn does for a tensor of 100 GB, who is served meanwhile,
// what is left when it ends early, and where bytes go that come before their memory. Memory is
// simulated.
#include <sluice/exchange/exchange.h>

#include <catch2/catch.hpp>

#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <sluice/allocator/pending_allocation.h>

#include "tests/runtime/large_context.h"

namespace sluice {
namespace {

using test::kGB;
using test::kMiB;
using test::Large;
using test::Peer;
using test::soon;

// A publication of `bytes` at the peer, in simulated memory of its own.
struct Publisher {
  Publisher(Large& large, const std::string& address, size_t bytes)
      : peer(large, address), here(*large.context) {
    there.emplace(*peer.context);
    REQUIRE(here.add(peer.far).ok());
    REQUIRE(there->add(peer.near).ok());
    Result<Buffer> memory = source.arena->allocate(bytes);
    REQUIRE(memory.ok());
    // Each page of 1 MiB begins with its number.
    for (size_t at = 0; at < bytes && bytes < kGB; at += kMiB)
      memory->bytes()[at] = static_cast<std::byte>(at / kMiB + 1);
    auto published = there->publish({"w", 1}, std::move(*memory).freeze());
    REQUIRE(published.ok());
    publication.emplace(std::move(*published));
  }

  // Nobody reads it any more.
  void finish() {
    publication->retire();
    while (!publication->ready()) peer.turn();
  }

  Large source;
  Peer peer;
  Exchange here;
  std::optional<Exchange> there;
  std::optional<Publication> publication;
};

void check_bytes(const Tensor& tensor, size_t bytes) {
  REQUIRE(tensor.size_bytes() == bytes);
  size_t wrong = 0;
  for (size_t at = 0; at < bytes; at += kMiB)
    wrong += tensor.data()[at] == static_cast<std::byte>(at / kMiB + 1) ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("a peer is answered while memory is made for 100 GB of it, and all goes back early") {
  enum class End { kCancelled, kDeadline, kDropped, kPeerLeft, kClosed };
  for (const std::string address : {"tcp://127.0.0.1:0", "l2://udp/127.0.0.1:0"}) {
    for (End end : {End::kCancelled, End::kDeadline, End::kDropped, End::kPeerLeft, End::kClosed}) {
      INFO(address << " " << static_cast<int>(end));
      Large large;
      Publisher publisher(large, address, 100 * kGB);
      Peer& peer = publisher.peer;
      const size_t used = large.arena->statistics().used_bytes;
      const size_t before = large.pages.populated_bytes;
      const Instant deadline =
          end == End::kDeadline ? after(now(), std::chrono::seconds(2)) : soon();
      std::optional<Fetch> fetch = publisher.here.fetch({"w", 1}, deadline);
      while (large.pages.populated_bytes - before < 128 * kMiB) peer.turn();
      CHECK(peer.round_trip([&] { return fetch->ready(); }));
      // Who calls progress() seldom has no more of it in one call.
      for (const Instant end = after(now(), std::chrono::milliseconds(25)); now() < end;) {}
      peer.turn();
      CHECK_FALSE(fetch->ready());
      CHECK(peer.far.state() == EndpointState::kConnected);
      CHECK(large.pages.largest_slice == PendingAllocation::kStepBytes);
      switch (end) {
        case End::kCancelled: fetch->cancel(); break;
        case End::kDeadline: break;
        case End::kDropped: fetch.reset(); break;
        case End::kPeerLeft:
          peer.near.abort(Status(Code::kCancelled, Scope::kEndpoint, "t"));
          break;
        case End::kClosed: peer.far.start_close(); break;
      }
      // One that closes in order waits for what is under way, until its deadline.
      if (end == End::kClosed) fetch->cancel();
      while (fetch && !fetch->ready()) peer.turn();
      if (end == End::kDeadline) CHECK(fetch->take().code() == Code::kTimedOut);
      if (end == End::kCancelled) CHECK(fetch->take().code() == Code::kCancelled);
      if (end == End::kPeerLeft) CHECK_FALSE(fetch->take().ok());
      for (int turn = 0; turn < 10 && large.arena->freeing_bytes() < 90 * kGB; ++turn) peer.turn();
      // By the deadline all may have been made, and it is free.
      if (end != End::kDeadline) CHECK(large.arena->freeing_bytes() >= 90 * kGB);
      CHECK(large.frees_all_in_bounded_turns());
      CHECK(peer.bounded);
      CHECK(large.arena->statistics().used_bytes == used);
      if (end == End::kCancelled || end == End::kDeadline || end == End::kDropped)
        CHECK(peer.round_trip([] { return false; }));
    }
  }
}

TEST_CASE("a tensor comes whole into memory that is made meanwhile, of one kind of pages or two") {
  for (auto [short_at, helper] :
       {std::pair<uint64_t, bool>{0, false}, {1, false}, {20, false}, {0, true}, {20, true}}) {
    INFO(short_at << " " << helper);
    constexpr size_t kBytes = 160 * kMiB;
    Large large(kMiB, helper);
    large.pages.short_at = short_at;
    Publisher publisher(large, "tcp://127.0.0.1:0", kBytes);
    Fetch fetch = publisher.here.fetch({"w", 1}, soon());
    bool followed = false;
    while (!fetch.ready()) {
      publisher.peer.turn();
      followed = followed || (publisher.peer.far.counters().bytes_received > 0 &&
                              large.pages.populated_bytes < kBytes - 64 * kMiB);
    }
    // Bytes were placed before all pages were there.
    if (helper) {
      CHECK(large.pages.slices_elsewhere == large.pages.slices);
    } else {
      CHECK(followed);
    }
    auto delivery = fetch.take();
    REQUIRE(delivery.ok());
    check_bytes(delivery->value, kBytes);
    CHECK((helper || publisher.peer.bounded));
    CHECK(large.arena->locate(delivery->value.data(), kBytes).has_value());
    publisher.finish();
  }
}

TEST_CASE("memory that runs out beneath a tensor is a status, and the connection goes on") {
  Large large;
  large.pages.fails_at = 10;
  Publisher publisher(large, "tcp://127.0.0.1:0", 160 * kMiB);
  Fetch fetch = publisher.here.fetch({"w", 1}, soon());
  while (!fetch.ready()) publisher.peer.turn();
  CHECK(fetch.take().code() == Code::kNoMemory);
  CHECK(publisher.peer.round_trip([] { return false; }));
  CHECK(large.frees_all_in_bounded_turns());
  large.pages.fails_at = 0;
  Fetch again = publisher.here.fetch({"w", 1}, soon());
  while (!again.ready()) publisher.peer.turn();
  auto delivery = again.take();
  REQUIRE(delivery.ok());
  check_bytes(delivery->value, 160 * kMiB);
  publisher.finish();
}

TEST_CASE("bytes wait where they are while another thread grows the arena") {
  constexpr size_t kBytes = 96 * kMiB;
  Large large;
  Publisher publisher(large, "tcp://127.0.0.1:0", kBytes);
  std::latch began(1), may_end(1);
  large.pages.during_commit = [&] {
    began.count_down();
    may_end.wait();
  };
  std::thread other([&] { CHECK(large.arena->allocate(128 * kMiB).ok()); });
  began.wait();
  Fetch fetch = publisher.here.fetch({"w", 1}, soon());
  const uint64_t slices = large.pages.slices;
  for (int turn = 0; turn < 300; ++turn) publisher.peer.turn();
  CHECK_FALSE(fetch.ready());
  CHECK(large.pages.slices == slices);
  CHECK(publisher.peer.far.counters().bytes_received == 0);
  may_end.count_down();
  other.join();
  while (!fetch.ready()) publisher.peer.turn();
  auto delivery = fetch.take();
  REQUIRE(delivery.ok());
  check_bytes(delivery->value, kBytes);
  publisher.finish();
}

}  // namespace
}  // namespace sluice
