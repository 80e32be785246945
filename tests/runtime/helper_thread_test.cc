// The second thread of a context: what it does, what it leaves to the first, and how it ends.
#include <sluice/runtime/helper_thread.h>

#include <catch2/catch.hpp>

#include <sys/eventfd.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sluice/api/allocating.h>
#include <sluice/exchange/exchange.h>
#include <sluice/runtime/context_core.h>
#include <sluice/runtime/shared_copy.h>

#include "tests/runtime/large_context.h"

namespace sluice {
namespace {

using test::kGB;
using test::kMiB;
using test::Large;
using test::Peer;
using test::soon;

size_t helpers_of_this_process() {
  size_t found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    found += name == "sluice-helper" ? 1 : 0;
  }
  return found;
}

struct Job final : HelperThread::Job {
  void run(const std::atomic<bool>& stop) noexcept override {
    thread = std::this_thread::get_id();
    began = true;
    while (waits && !stop) std::this_thread::yield();
  }
  void done() noexcept override { done_in = std::this_thread::get_id(); }
  bool waits = false;
  std::atomic<bool> began{false};
  std::thread::id thread, done_in;
};

#ifndef __SANITIZE_ADDRESS__
#ifndef __SANITIZE_THREAD__
// First: the C library keeps the stacks of threads that ended.
TEST_CASE("a system that gives no thread is a status with the limit") {
  auto mailbox = std::make_shared<Mailbox>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_AS, &none) == 0);
  auto refused = HelperThread::start(mailbox);
  REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.code() == Code::kNoMemory);
  CHECK(refused.status().to_string().find("ulimit -u") != std::string::npos);
}
#endif
#endif

TEST_CASE("a context has a second thread only if that is asked for") {
  CHECK(helpers_of_this_process() == 0);
  {
    Large plain;
    CHECK(ContextCore::of(*plain.context).helper() == nullptr);
    CHECK(helpers_of_this_process() == 0);
    Large helped(kMiB, true);
    CHECK(ContextCore::of(*helped.context).helper() != nullptr);
    CHECK(helpers_of_this_process() == 1);
  }
  CHECK(helpers_of_this_process() == 0);
}

TEST_CASE("a job runs on the helper and ends in a turn of the context, which it wakes") {
  Large large(kMiB, true);
  HelperThread& helper = *ContextCore::of(*large.context).helper();
  for (int round = 0; round < 100; ++round) {
    Job job;
    helper.begin(job);
    CHECK(helper.busy());
    REQUIRE(large.context->wait_until([&] { return !helper.busy(); }, soon()).ok());
    CHECK(job.thread != std::this_thread::get_id());
    CHECK(job.done_in == std::this_thread::get_id());
  }
}

TEST_CASE("a job that is stopped or joined is not told of, and another may follow at once") {
  Large large(kMiB, true);
  HelperThread& helper = *ContextCore::of(*large.context).helper();
  for (int round = 0; round < 100; ++round) {
    Job stopped, joined;
    stopped.waits = true;
    helper.begin(stopped);
    helper.stop();
    CHECK_FALSE(helper.busy());
    helper.begin(joined, HelperThread::Ends::kByJoin);
    helper.join();
    CHECK(joined.began);
    large.context->progress();
    CHECK(stopped.done_in == std::thread::id());
    CHECK(joined.done_in == std::thread::id());
  }
  // Its context ends while it is at work.
  Job last;
  last.waits = true;
  helper.begin(last);
  while (!last.began) std::this_thread::yield();
  large.context.reset();
  CHECK(last.done_in == std::thread::id());
}

TEST_CASE("a copy by two threads is as one by one") {
  Large large(kMiB, true);
  HelperThread& helper = *ContextCore::of(*large.context).helper();
  std::vector<std::byte> from(9 * kMiB + 77), to(from.size());
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 4096);
  for (size_t length : {size_t{0}, size_t{5}, kSharedCopyBytes - 1, kSharedCopyBytes,
                        kSharedCopyBytes + 1, 9 * kMiB + 3}) {
    for (bool past_caches : {false, true}) {
      for (bool busy : {false, true}) {
        INFO(length << " " << past_caches << " " << busy);
        Job other;
        other.waits = true;
        if (busy) helper.begin(other);
        std::fill(to.begin(), to.end(), std::byte{0});
        copy_shared(&helper, to.data() + 3, from.data() + 1, length, past_caches);
        if (busy) helper.stop();
        CHECK(std::equal(from.data() + 1, from.data() + 1 + length, to.data() + 3));
        CHECK(to[2] == std::byte{0});
        CHECK(to[3 + length] == std::byte{0});
        CHECK_FALSE(helper.busy());
      }
    }
  }
}

TEST_CASE("a tensor that is copied out of a peer's memory by two threads is whole") {
  constexpr size_t kBytes = 37 * kMiB + 4 * 1023;
  auto opened = open_context({.waiting = Waiting::kSleep, .helper_thread = true});
  auto other = open_context({.waiting = Waiting::kSleep});
  REQUIRE((opened.ok() && other.ok()));
  Context& here = **opened;
  Context& there = **other;
  auto listening = there.listen("loopback:helper_thread_test");
  REQUIRE(listening.ok());
  Connecting connecting = start_connect(here, listening->address());
  Result<Endpoint> far = listening->try_accept();
  while (!connecting.ready() || !far.ok()) {
    here.progress();
    there.progress();
    if (!far.ok()) far = listening->try_accept();
  }
  Result<Endpoint> near = connecting.take();
  REQUIRE(near.ok());
  auto from = there.allocate({static_cast<int64_t>(kBytes)}, uint8);
  auto into = here.allocate({static_cast<int64_t>(kBytes)}, uint8);
  REQUIRE((from.ok() && into.ok()));
  for (size_t i = 0; i < kBytes; ++i) from->bytes()[i] = static_cast<std::byte>(i * 13 + i / 4096);
  const Tensor tensor = std::move(*from).freeze();
  Exchange exchange(here), publisher(there);
  REQUIRE((exchange.add(*near).ok() && publisher.add(*far).ok()));
  auto publication = publisher.publish({"w", 1}, tensor, {.readers = 1});
  REQUIRE(publication.ok());
  FetchInto fetch = exchange.fetch_into({"w", 1}, std::move(*into), soon());
  while (!fetch.ready() || !publication->ready()) {
    here.progress();
    there.progress();
  }
  Placed placed = fetch.take();
  REQUIRE(placed.ok());
  CHECK(std::equal(tensor.data(), tensor.data() + kBytes, placed.value().value.data()));
}

TEST_CASE("the helper provides and frees pages, and peers are answered meanwhile") {
  for (uint64_t short_at : {0, 500}) {
    Large large(kMiB, true);
    Peer peer(large, "tcp://127.0.0.1:0");
    large.pages.short_at = short_at;
    large.pages.hold_at = 1000;
    Allocating allocating = start_allocate(*large.context, 100 * kGB);
    while (large.pages.slices < 1000) peer.turn();
    for (int round = 0; round < 5; ++round)
      CHECK(peer.round_trip([&] { return allocating.ready(); }));
    large.pages.hold_at = 0;
    REQUIRE(large.context->wait_until([&] { return allocating.ready(); }, soon()).ok());
    Result<Buffer> buffer = allocating.take();
    REQUIRE(buffer.ok());
    CHECK(large.pages.slices_elsewhere == large.pages.slices);
    CHECK(large.arena->locate(buffer->data(), buffer->size_bytes()).has_value());
    *buffer = Buffer();
    CHECK(start_trim(*large.context) >= 100 * kGB);
    REQUIRE(
        large.context->wait_until([&] { return large.arena->freeing_bytes() == 0; }, soon()).ok());
    CHECK(large.pages.free_slices > 0);
    CHECK(large.pages.slices_elsewhere == large.pages.slices + large.pages.free_slices);
  }
}

TEST_CASE("an allocation that ends while the helper is at work leaves nothing") {
  enum class End { kCancelled, kDropped, kContext };
  for (End end : {End::kCancelled, End::kDropped, End::kContext}) {
    Large large(kMiB, true);
    const size_t used = large.arena->statistics().used_bytes;
    large.pages.hold_at = 1000;
    {
      Allocating allocating = start_allocate(*large.context, 100 * kGB);
      while (large.pages.slices < 1000) large.context->progress();
      large.pages.hold_at = 0;  // it is not ready before a turn
      if (end == End::kCancelled) {
        allocating.cancel();
        CHECK(allocating.take().code() == Code::kCancelled);
      }
      if (end == End::kContext) large.context.reset();
    }
    if (end != End::kContext) {
      CHECK(large.arena->freeing_bytes() >= 99 * kGB);
      REQUIRE(large.context->wait_until([&] { return large.arena->freeing_bytes() == 0; }, soon())
                  .ok());
    }
    CHECK(large.arena->freeing_bytes() == 0);
    CHECK(large.arena->statistics().used_bytes == used);
  }
}

TEST_CASE("memory that runs out beneath the helper is a status") {
  Large large(kMiB, true);
  large.pages.fails_at = 1000;
  Allocating allocating = start_allocate(*large.context, 100 * kGB);
  REQUIRE(large.context->wait_until([&] { return allocating.ready(); }, soon()).ok());
  CHECK(allocating.take().code() == Code::kNoMemory);
  CHECK(large.pages.slices == 1000);
}

}  // namespace
}  // namespace sluice
