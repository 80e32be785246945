// Allocating and freeing 100 GB and 1 TiB in slices: what one turn of a context does of it, who is
// served meanwhile, and what is left when it ends early. Memory is simulated; turns are measured in
// slices.
#include <sluice/api/allocating.h>

#include <catch2/catch.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sluice/allocator/pending_allocation.h>
#include <sluice/api/context.h>
#include <sluice/runtime/population.h>

#include "tests/runtime/large_context.h"

namespace sluice {
namespace {

using test::kGB;
using test::kMiB;
using test::kTiB;
using test::Large;
using test::Peer;
using test::soon;

TEST_CASE("each turn of a context that allocates 100 GB or 1 TiB is a few slices") {
  for (size_t bytes : {100 * kGB, kTiB - 128 * kMiB}) {
    Large large;
    const uint64_t commits = large.pages.commits;
    Allocating allocating = start_allocate(*large.context, bytes);
    CHECK_FALSE(allocating.ready());
    CHECK(large.pages.slices == 0);
    bool bounded = true;
    while (!allocating.ready()) bounded = large.turn_is_bounded() && bounded;
    CHECK(bounded);
    CHECK(large.pages.largest_slice == PendingAllocation::kStepBytes);
    CHECK(large.pages.populated_bytes >= bytes - 64 * kMiB);  // beside what was free
    CHECK(large.pages.commits == commits);
    Result<Buffer> buffer = allocating.take();
    REQUIRE(buffer.ok());
    CHECK(buffer->size_bytes() == bytes);
    CHECK(large.arena->locate(buffer->data(), bytes).has_value());
    buffer->bytes().front() = buffer->bytes().back() = std::byte{1};
    const size_t decommits = large.pages.decommits;
    *buffer = Buffer();
    CHECK(start_trim(*large.context) >= bytes);
    CHECK(large.pages.decommits == decommits);  // nothing was freed in the call itself
    CHECK(large.frees_all_in_bounded_turns());
    CHECK(large.pages.largest_free_slice == Population::kFreeBytes);
    CHECK(large.pages.mapped.empty());
  }
}

TEST_CASE("a peer is answered many times while 100 GB are populated and while they are freed") {
  for (const std::string address : {"tcp://127.0.0.1:0", "loopback:allocating"}) {
    INFO(address);
    Large large;
    Peer peer(large, address);
    Allocating allocating = start_allocate(*large.context, 100 * kGB);
    for (int round = 0; round < 20; ++round) {
      peer.turns = 0;
      REQUIRE(peer.round_trip([&] { return allocating.ready(); }));
      // Both look at their sockets in each turn.
      CHECK(peer.turns <= 16);
    }
    while (!allocating.ready()) peer.turn();
    Result<Buffer> buffer = allocating.take();
    REQUIRE(buffer.ok());
    *buffer = Buffer();
    REQUIRE(start_trim(*large.context) > 0);
    for (int round = 0; round < 5; ++round)
      REQUIRE(peer.round_trip([&] { return large.arena->freeing_bytes() == 0; }));
    CHECK(peer.bounded);
    CHECK(peer.near.state() == EndpointState::kConnected);
  }
}

// What an allocation that ends early leaves: nothing, some turns later.
void check_nothing_left(Large& large, size_t used_before) {
  CHECK(large.frees_all_in_bounded_turns());
  CHECK(large.arena->statistics().used_bytes == used_before);
  Result<Buffer> small = large.arena->allocate(kMiB);
  CHECK(small.ok());
  // All of the limit is there again.
  *small = Buffer();
  Allocating again = start_allocate(*large.context, kTiB - 128 * kMiB);
  REQUIRE(large.context->wait_until([&] { return again.ready(); }, soon()).ok());
  CHECK(again.take().ok());
}

TEST_CASE("an allocation that is cancelled or dropped in the middle gives all back in slices") {
  for (bool cancelled : {true, false}) {
    Large large;
    const size_t used = large.arena->statistics().used_bytes;
    {
      Quota quota(kTiB);
      Allocating allocating = start_allocate(*large.context, 100 * kGB, {.quota = &quota});
      CHECK(quota.used_bytes() >= 100 * kGB);
      for (int turn = 0; turn < 100; ++turn) large.context->progress();
      CHECK_FALSE(allocating.ready());
      if (cancelled) {
        allocating.cancel();
        CHECK(allocating.ready());
        CHECK(allocating.take().code() == Code::kCancelled);
        CHECK(quota.used_bytes() == 0);
      }
    }
    CHECK(large.arena->freeing_bytes() >= 99 * kGB);
    check_nothing_left(large, used);
  }
}

TEST_CASE("an allocation under way ends with its context") {
  for (bool closed : {true, false}) {
    Large large;  // its page source aborts if something is left
    Allocating allocating = start_allocate(*large.context, 100 * kGB);
    for (int turn = 0; turn < 100; ++turn) large.context->progress();
    if (closed) REQUIRE(large.context->close(soon()).ok());
    large.context.reset();
    REQUIRE(allocating.ready());
    CHECK(allocating.take().code() == Code::kCancelled);
    // The arena lives on.
    CHECK(large.arena->freeing_bytes() == 0);
    CHECK(large.arena->statistics().used_bytes == 0);
  }
}

TEST_CASE("memory that runs out in the middle is a status, and all is given back") {
  Large large;
  const size_t used = large.arena->statistics().used_bytes;
  large.pages.fails_at = 1000;
  Allocating allocating = start_allocate(*large.context, 100 * kGB);
  REQUIRE(large.context->wait_until([&] { return allocating.ready(); }, soon()).ok());
  CHECK(allocating.take().code() == Code::kNoMemory);
  CHECK(large.pages.slices == 1000);
  check_nothing_left(large, used);
}

TEST_CASE("a receive whose pages do not come takes the reserve") {
  for (bool for_receive : {true, false}) {
    Large large;
    std::vector<Buffer> held;  // all that is there but the reserve
    while (std::optional<Result<Buffer>> present = large.arena->allocate_present(64 << 10))
      held.push_back(std::move(*present).value());
    large.pages.fails_at = large.pages.slices + 1;
    auto pending = large.arena->begin_allocate(3 * kMiB, {.for_receive = for_receive});
    while (!pending->ready()) REQUIRE(pending->step());
    Result<Buffer> buffer = pending->take();
    CHECK(buffer.ok() == for_receive);
    CHECK(large.pages.slices == large.pages.fails_at);
    while (large.arena->freeing_bytes() > 0) REQUIRE(large.arena->free_some(SIZE_MAX) > 0);
    CHECK(large.pages.mapped.size() == 1);
  }
}

TEST_CASE("huge pages that run out mean small ones from there on, and one piece of memory") {
  // At once, within the receive reserve, and in the middle.
  for (uint64_t slice : {1, 2, 1000}) {
    INFO(slice);
    Large large(slice < 10 ? 0 : kMiB);
    const size_t before = large.arena->statistics().extent_bytes;
    large.pages.short_at = slice;
    Allocating allocating = start_allocate(*large.context, 100 * kGB);
    REQUIRE(large.context->wait_until([&] { return allocating.ready(); }, soon()).ok());
    Result<Buffer> buffer = allocating.take();
    REQUIRE(buffer.ok());
    CHECK(large.pages.mapped.size() == (slice < 10 ? 1 : 3));
    auto place = large.arena->locate(buffer->data(), buffer->size_bytes());
    REQUIRE(place.has_value());
    buffer->bytes().front() = buffer->bytes().back() = std::byte{1};
    // All of it goes back.
    *buffer = Buffer();
    CHECK(start_trim(*large.context) >= 100 * kGB);
    CHECK(large.frees_all_in_bounded_turns());
    CHECK(large.arena->statistics().extent_bytes <= before);
    CHECK(large.pages.mapped.empty());
  }
}

TEST_CASE("an allocation whose huge pages ran out can give up, or fail") {
  for (uint64_t fails_at : {0, 1000, 2000}) {
    INFO(fails_at);
    Large large;
    const size_t used = large.arena->statistics().used_bytes;
    large.pages.short_at = 1000;
    large.pages.fails_at = fails_at;
    {
      Allocating allocating = start_allocate(*large.context, 100 * kGB);
      for (int turn = 0; turn < 1000 && !allocating.ready(); ++turn) large.context->progress();
      if (fails_at > 0) {
        REQUIRE(allocating.ready());
        CHECK(allocating.take().code() == Code::kNoMemory);
      }
    }
    large.pages.fails_at = 0;
    CHECK(start_trim(*large.context) > 0);
    check_nothing_left(large, used);
  }
}

TEST_CASE("what cannot be had is refused as by allocate()") {
  Large large;
  Allocating too_much = start_allocate(*large.context, 2 * kTiB);
  CHECK(too_much.ready());
  CHECK(too_much.take().status().to_string() ==
        large.arena->allocate(2 * kTiB).status().to_string());
  Quota quota(kMiB);
  Allocating charged = start_allocate(*large.context, 2 * kMiB, {.quota = &quota});
  REQUIRE(charged.ready());
  CHECK(charged.take().code() == Code::kNoMemory);
  CHECK(quota.used_bytes() == 0);
  int64_t bad[] = {3, -1};
  Allocating shaped = start_allocate(*large.context, bad, float32);
  REQUIRE(shaped.ready());
  CHECK(shaped.take().code() == Code::kInvalidArgument);
  int64_t good[] = {7, 5};
  Allocating tensor = start_allocate(*large.context, good, float32);
  REQUIRE(tensor.ready());  // there was room
  Result<Buffer> buffer = tensor.take();
  REQUIRE(buffer.ok());
  CHECK(buffer->descriptor().to_string() == "float32[7,5]");
}

TEST_CASE(
    "two allocations under way and a blocking one share a limit, and wait for what is freed") {
  Large large;
  Allocating first = start_allocate(*large.context, 400 * kGB);
  Allocating second = start_allocate(*large.context, 400 * kGB);
  for (int turn = 0; turn < 10; ++turn) large.context->progress();
  CHECK(large.arena->allocate(800 * kGB).code() == Code::kNoMemory);
  Result<Buffer> beside = large.arena->allocate(100 * kGB);
  CHECK(beside.ok());
  REQUIRE(large.context->wait_until([&] { return second.ready(); }, soon()).ok());
  REQUIRE(first.ready());
  Result<Buffer> one = first.take(), other = second.take();
  REQUIRE((one.ok() && other.ok()));
  *one = Buffer();
  // Its extent is too small for this one.
  *other = Buffer();
  *beside = Buffer();
  Allocating third = start_allocate(*large.context, 1000 * kGB);
  bool bounded = true;
  while (!third.ready()) bounded = large.turn_is_bounded() && bounded;
  CHECK(bounded);
  CHECK(third.take().ok());
}

TEST_CASE("an allocation continues the free run before it, also if it gives up") {
  Large large;
  const size_t extent = large.arena->statistics().extent_bytes;
  {
    Allocating allocating = start_allocate(*large.context, 100 * kGB);
    large.context->progress();
  }
  CHECK(large.frees_all_in_bounded_turns());
  CHECK(large.arena->statistics().used_bytes == 0);
  Allocating allocating = start_allocate(*large.context, 100 * kGB);
  REQUIRE(large.context->wait_until([&] { return allocating.ready(); }, soon()).ok());
  Result<Buffer> buffer = allocating.take();
  REQUIRE(buffer.ok());
  CHECK(large.arena->statistics().extent_bytes < extent + 100 * kGB);
  CHECK(large.arena->locate(buffer->data(), buffer->size_bytes())->arena_offset < extent);
}

}  // namespace
}  // namespace sluice
