// Several threads on one arena. Meant for TSan as much as for its own checks.
#include <sluice/allocator/arena.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "tests/allocator/fake_page_source.h"

namespace sluice {
namespace {

using test::kMiB;

constexpr int kThreads = 4;

TEST_CASE("threads that hand each other buffers never see another's bytes") {
  test::FakePageSource pages;
  test::FakeRegistrar registrar;
  auto arena = std::move(Arena::create(test::small_options(), pages, &registrar)).value();
  Quota quota(8 * kMiB);
  std::mutex mutex;
  std::deque<std::pair<Buffer, uint64_t>> exchange;
  std::atomic<int> damaged{0}, unexpected{0};
  auto work = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 4000; ++i) {
      size_t bytes = random() % 16 == 0 ? random() % (4 * kMiB) : 8 + random() % 60'000;
      auto got = arena->allocate(
          bytes + 8, {.audience = random() % 8 == 0 ? Audience::kNobody : Audience::kSameUser,
                      .quota = random() % 2 == 0 ? &quota : nullptr,
                      .for_receive = random() % 8 == 0});
      if (got.ok()) {
        uint64_t stamp = random();
        Buffer buffer = std::move(got).value();
        std::memcpy(buffer.data(), &stamp, 8);
        std::memcpy(buffer.data() + buffer.size_bytes() - 8, &stamp, 8);
        if (!arena->locate(buffer.data(), buffer.size_bytes())) ++unexpected;
        std::lock_guard lock(mutex);
        exchange.emplace_back(std::move(buffer), stamp);
      } else if (got.code() != Code::kNoMemory) {
        ++unexpected;
      }
      std::pair<Buffer, uint64_t> taken;
      {
        std::lock_guard lock(mutex);
        if (exchange.size() > 40 || (!got.ok() && !exchange.empty())) {
          taken = std::move(exchange.front());
          exchange.pop_front();
        }
      }
      if (taken.first) {
        Tensor tensor = std::move(taken.first).freeze();
        Tensor shared = tensor;
        if (std::memcmp(shared.data(), &taken.second, 8) != 0) ++damaged;
        if (std::memcmp(shared.data() + shared.size_bytes() - 8, &taken.second, 8) != 0) ++damaged;
      }
      if (random() % 512 == 0) arena->trim();
      if (random() % 256 == 0) arena->statistics();
      if (random() % 256 == 0) arena->extents_over(0, arena->reserved_address_bytes());
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(work, 1000 + t);
  for (std::thread& thread : threads) thread.join();
  CHECK(damaged == 0);
  CHECK(unexpected == 0);
  exchange.clear();
  ArenaStatistics s = arena->statistics();
  CHECK(s.used_bytes == 0);
  CHECK(s.outstanding == 0);
  CHECK(quota.used_bytes() == 0);
  arena->trim();
  CHECK(pages.committed.empty());
}

TEST_CASE("the last tensor ends the arena's memory on any thread") {
  for (int round = 0; round < 50; ++round) {
    test::FakePageSource pages;
    auto arena = std::move(Arena::create(test::small_options(), pages)).value();
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      std::vector<Tensor> share;
      for (int i = 0; i < 20; ++i)
        share.push_back(std::move(arena->allocate(4096)).value().freeze());
      threads.emplace_back([share = std::move(share)]() mutable { share.clear(); });
    }
    arena.reset();
    for (std::thread& thread : threads) thread.join();
    CHECK(pages.committed.empty());
  }
}

TEST_CASE("memory that another thread freed is found without asking the system") {
  test::FakePageSource pages;
  auto arena = std::move(Arena::create(test::small_options(8 * kMiB), pages)).value();
  std::vector<Buffer> all;
  for (int i = 0; i < 6; ++i) all.push_back(std::move(arena->allocate(kMiB)).value());
  std::thread([&] { all.clear(); }).join();
  uint64_t commits = pages.commits;
  for (int i = 0; i < 6; ++i) all.push_back(std::move(arena->allocate(kMiB)).value());
  CHECK(pages.commits == commits);
  all.clear();
  std::thread([&] { CHECK(arena->allocate(5 * kMiB + 4096).ok()); }).join();
}

}  // namespace
}  // namespace sluice
