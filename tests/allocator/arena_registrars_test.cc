// Registrars that come and go while the arena lives: each knows all extents, or none.
#include <sluice/allocator/arena.h>

#include <catch2/catch.hpp>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/allocator/fake_page_source.h"

namespace sluice {
namespace {

using test::FailNth;
using test::FakePageSource;
using test::FakeRegistrar;
using test::kMiB;

std::unique_ptr<Arena> make(PageSource& pages, MemoryRegistrar* registrar = nullptr) {
  auto arena = Arena::create(test::small_options(), pages, registrar);
  REQUIRE(arena.ok());
  return std::move(arena).value();
}

Buffer take(Arena& arena, size_t bytes) {
  auto buffer = arena.allocate(bytes);
  REQUIRE(buffer.ok());
  return std::move(buffer).value();
}

// The registrar was told of exactly the extents that the arena has, where they are.
bool knows_all(const Arena& arena, const FakeRegistrar& registrar) {
  std::vector<ExtentInfo> extents = arena.extents_over(0, arena.reserved_address_bytes());
  if (extents.size() != registrar.registered.size()) return false;
  for (const ExtentInfo& extent : extents) {
    auto found = registrar.registered.find(extent.id);
    if (found == registrar.registered.end() || found->second != extent.length) return false;
    if (registrar.bases.at(extent.id) != arena.base() + extent.arena_offset) return false;
  }
  return true;
}

TEST_CASE(
    "an attached registrar hears of the extents that are there and of those that come and go") {
  FakePageSource pages;
  FakeRegistrar registrar;
  auto arena = make(pages);
  REQUIRE(arena->attach(registrar).ok());
  CHECK(registrar.registered.empty());
  arena->detach(registrar);

  Buffer small = take(*arena, 1000);
  Buffer large = take(*arena, 7 * kMiB);
  REQUIRE(arena->statistics().extents_added >= 2);
  REQUIRE(arena->attach(registrar).ok());
  CHECK(registrar.added == arena->statistics().extents_added);
  CHECK(knows_all(*arena, registrar));

  Buffer more = take(*arena, 12 * kMiB);
  CHECK(registrar.added == arena->statistics().extents_added);
  CHECK(knows_all(*arena, registrar));

  size_t before = registrar.registered.size();
  more = Buffer();
  REQUIRE(arena->trim() > 0);
  CHECK(registrar.registered.size() < before);
  CHECK(knows_all(*arena, registrar));
  arena->detach(registrar);
  registrar.forget();
}

TEST_CASE("an attached registrar hears of a younger extent that lies before an older one") {
  FakePageSource pages;
  FakeRegistrar registrar;
  auto arena = Arena::create({.limit_bytes = 8 * kMiB,
                              .first_extent_bytes = 2 * kMiB,
                              .largest_extent_bytes = 2 * kMiB,
                              .receive_reserve_bytes = 0},
                             pages)
                   .value();
  // Two extents at a time, on through the reserved addresses and over again.
  Buffer older = take(*arena, 2 * kMiB), younger = take(*arena, 2 * kMiB);
  auto extents = arena->extents_over(0, arena->reserved_address_bytes());
  for (int i = 0; i < 20 && extents[0].id < extents[1].id; ++i) {
    older = std::move(younger);
    REQUIRE(arena->trim() == 2 * kMiB);
    younger = take(*arena, 2 * kMiB);
    extents = arena->extents_over(0, arena->reserved_address_bytes());
  }
  REQUIRE(extents.size() == 2);
  REQUIRE(extents[0].id > extents[1].id);
  REQUIRE(arena->attach(registrar).ok());
  CHECK(knows_all(*arena, registrar));
  arena->detach(registrar);
  registrar.forget();
}

TEST_CASE("a registrar that fails at any extent is told to forget the others and is not attached") {
  FakePageSource pages;
  auto arena = make(pages);
  std::vector<Buffer> held;
  for (int i = 0; i < 5; ++i) held.push_back(take(*arena, 4 * kMiB));
  uint64_t extents = arena->statistics().extents_added;
  REQUIRE(extents >= 3);
  for (uint64_t nth = 1; nth <= extents; ++nth) {
    INFO("extent " << nth);
    FailNth failures(nth);
    FakeRegistrar registrar(&failures);
    Status status = arena->attach(registrar);
    CHECK(status.code() == Code::kNoMemory);
    CHECK(status.to_string().find("told to fail: extent_added") != std::string::npos);
    CHECK(registrar.added == nth);
    CHECK(registrar.registered.empty());
    // Neither growth nor trimming concerns it any more.
    held.push_back(take(*arena, 6 * kMiB));
    held.pop_back();
    arena->trim();
    CHECK(registrar.added == nth);
    registrar.forget();
  }
  FakeRegistrar registrar;
  CHECK(arena->attach(registrar).ok());
  CHECK(knows_all(*arena, registrar));
  arena->detach(registrar);
  registrar.forget();
}

TEST_CASE("every registrar of an arena hears of every extent") {
  FakePageSource pages;
  FakeRegistrar first, second, third;
  auto arena = make(pages, &first);
  Buffer one = take(*arena, kMiB);
  REQUIRE(arena->attach(second).ok());
  Buffer two = take(*arena, 7 * kMiB);
  REQUIRE(arena->attach(third).ok());
  Buffer three = take(*arena, 9 * kMiB);
  for (FakeRegistrar* registrar : {&first, &second, &third}) CHECK(knows_all(*arena, *registrar));
  three = Buffer();
  REQUIRE(arena->trim() > 0);
  for (FakeRegistrar* registrar : {&first, &second, &third}) CHECK(knows_all(*arena, *registrar));
  // The end of the arena tells all that are still there.
  arena->detach(second);
  size_t known = second.registered.size();
  one = Buffer();
  two = Buffer();
  arena.reset();
  CHECK(first.registered.empty());
  CHECK(third.registered.empty());
  CHECK(second.registered.size() == known);
  second.forget();
}

TEST_CASE("an extent that one registrar refuses is taken from all of them") {
  for (int refuses = 0; refuses < 3; ++refuses) {
    INFO("registrar " << refuses << " refuses");
    FakePageSource pages;
    FailNth second_call(2);
    auto failures = [&](int which) { return which == refuses ? &second_call : nullptr; };
    FakeRegistrar first(failures(0)), second(failures(1)), third(failures(2));
    auto arena = make(pages, &first);
    REQUIRE(arena->attach(second).ok());
    REQUIRE(arena->attach(third).ok());
    Buffer one = take(*arena, kMiB);
    size_t committed = pages.committed.size();
    auto refused = arena->allocate(4 * kMiB);
    REQUIRE(second_call.reached());
    CHECK(refused.code() == Code::kNoMemory);
    CHECK(pages.committed.size() == committed);
    for (FakeRegistrar* registrar : {&first, &second, &third}) CHECK(knows_all(*arena, *registrar));
    Buffer again = take(*arena, 4 * kMiB);
    for (FakeRegistrar* registrar : {&first, &second, &third}) CHECK(knows_all(*arena, *registrar));
  }
}

TEST_CASE("a detached registrar hears nothing: not of detaching, growth, trimming or the end") {
  FakePageSource pages;
  FakeRegistrar registrar, other;
  auto arena = make(pages);
  REQUIRE(arena->attach(registrar).ok());
  REQUIRE(arena->attach(other).ok());
  Buffer one = take(*arena, kMiB);
  std::map<ExtentId, size_t> known = registrar.registered;
  uint64_t added = registrar.added;
  REQUIRE(known.size() == 1);
  arena->detach(registrar);
  arena->detach(registrar);  // once more is harmless
  CHECK(registrar.registered == known);
  Buffer two = take(*arena, 7 * kMiB);
  CHECK(knows_all(*arena, other));
  one = Buffer();
  two = Buffer();
  REQUIRE(arena->trim() > 0);
  CHECK(knows_all(*arena, other));
  CHECK(registrar.registered == known);
  CHECK(registrar.added == added);

  // It may come back, and then knows what there is by then.
  registrar.forget();
  Buffer three = take(*arena, 3 * kMiB);
  REQUIRE(arena->attach(registrar).ok());
  CHECK(knows_all(*arena, registrar));
  known = registrar.registered;
  arena->detach(registrar);
  three = Buffer();
  arena.reset();
  CHECK(registrar.registered == known);
  registrar.forget();
}

TEST_CASE("registrars come and go while other threads grow and trim the arena") {
  FakePageSource pages;
  FakeRegistrar always;
  auto arena = make(pages, &always);
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; !end.load(); ++i) {
        auto buffer = arena->allocate((1 + (i + static_cast<size_t>(t)) % 5) * kMiB);
        buffer = Status(Code::kCancelled, Scope::kOperation, "tests");
        arena->trim();
      }
    });
  }
  int whole = 0;
  for (int i = 0; i < 300; ++i) {
    FakeRegistrar registrar;
    if (arena->attach(registrar).ok()) ++whole;
    arena->detach(registrar);
    registrar.forget();
  }
  end = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(whole == 300);
  CHECK(knows_all(*arena, always));
}

}  // namespace
}  // namespace sluice
