// A context whose arena may have 1 TiB of simulated memory, and a peer in the same thread; both
// count what one turn does.
#ifndef SLUICE_TESTS_RUNTIME_LARGE_CONTEXT_H_
#define SLUICE_TESTS_RUNTIME_LARGE_CONTEXT_H_

#include <catch2/catch.hpp>

#include <memory>
#include <string>
#include <utility>

#include <sluice/api/connecting.h>
#include <sluice/api/context.h>
#include <sluice/runtime/population.h>
#include <sluice/select/open.h>

#include "tests/runtime/unbacked_page_source.h"

namespace sluice::test {

inline constexpr size_t kGB = 1'000'000'000;
inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr size_t kTiB = size_t{1} << 40;

inline Instant soon() { return after(now(), std::chrono::seconds(60)); }

// Slices of one turn for bytes that have come: a connection takes some 2 MiB in it.
inline constexpr uint64_t kMostForBytes = 4;

#ifdef __SANITIZE_THREAD__
inline constexpr size_t kMost = kTiB / 8;  // ThreadSanitizer leaves a program 1.5 TiB of addresses
#else
inline constexpr size_t kMost = kTiB;
#endif

// A context whose arena may have kMost.
struct Large {
  explicit Large(size_t prefaulted = kMiB, bool helper = false) {
    auto made = Arena::create({.limit_bytes = kMost}, pages);
    REQUIRE(made.ok());
    arena = std::move(made).value();
    auto opened = open_context(
        {.arena = arena, .arena_options = {}, .waiting = Waiting::kSleep, .helper_thread = helper});
    REQUIRE(opened.ok());
    context = std::move(opened).value();
    if (prefaulted > 0) REQUIRE(arena->prefault(prefaulted).ok());  // for messages
  }
  // One turn; true if it did no more than a turn may.
  bool turn_is_bounded() {
    const uint64_t slices = pages.slices, freed = pages.free_slices;
    context->progress();
    return pages.slices - slices + (pages.free_slices - freed) <=
           Population::kMostSlices + kMostForBytes;
  }
  // Turns until all is given back.
  bool frees_all_in_bounded_turns() {
    bool bounded = true;
    while (arena->freeing_bytes() > 0) bounded = turn_is_bounded() && bounded;
    return bounded;
  }

  UnbackedPageSource pages;
  std::shared_ptr<Arena> arena;
  std::unique_ptr<Context> context;
};

// Who is connected to it, in the same thread.
struct Peer {
  Peer(Large& server, const std::string& address) : large(server) {
    auto opened = open_context({.waiting = Waiting::kSleep});
    REQUIRE(opened.ok());
    context = std::move(opened).value();
    auto listening = large.context->listen(address);
    REQUIRE(listening.ok());
    Connecting connecting = start_connect(*context, listening->address());
    while (!connecting.ready() || !far) {
      turn();
      Result<Endpoint> accepted = listening->try_accept();
      if (accepted.ok()) far = std::move(accepted).value();
    }
    Result<Endpoint> connected = connecting.take();
    REQUIRE(connected.ok());
    near = std::move(connected).value();
  }
  void turn() {
    ++turns;
    context->prepare_to_sleep();  // so that it looks at its sockets
    context->progress();
    if (!large.turn_is_bounded()) bounded = false;
  }
  // A message there and one back; false if `over` was true before.
  template <typename Over>
  bool round_trip(Over&& over) {
    Count count;
    auto there = context->allocate({8}, uint8), into = large.context->allocate({8}, uint8);
    auto back = large.context->allocate({8}, uint8), answer = context->allocate({8}, uint8);
    REQUIRE((there.ok() && into.ok() && back.ok() && answer.ok()));
    REQUIRE(far.receive(TagMatch{1}, std::move(*into), {.sink = &count}).ok());
    REQUIRE(near.receive(TagMatch{2}, std::move(*answer), {.sink = &count}).ok());
    REQUIRE(near.send(1, std::move(*there).freeze()).ok());
    while (count.done < 1 && !over()) turn();
    if (count.done < 1) return false;
    REQUIRE(far.send(2, std::move(*back).freeze()).ok());
    while (count.done < 2 && !over()) turn();
    return count.done == 2;
  }

  struct Count final : CompletionSink {
    void on_completion(Completion&& completion) noexcept override {
      done += completion.status.ok() ? 1 : 0;
    }
    int done = 0;
  };
  Large& large;
  std::unique_ptr<Context> context;
  Endpoint near, far;
  bool bounded = true;
  int turns = 0;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_RUNTIME_LARGE_CONTEXT_H_
