// Every call to the system or the registrar fails once: the arena stays whole.
#include <sluice/allocator/arena.h>

#include <catch2/catch.hpp>

#include <vector>

#include "tests/allocator/fake_page_source.h"

namespace sluice {
namespace {

using test::kMiB;

// What a program may do with an arena, with refusals allowed. The result: all went well.
bool scenario(test::FakePageSource& pages, test::FakeRegistrar& registrar) {
  auto created = Arena::create(test::small_options(), pages, &registrar);
  if (!created.ok()) return false;
  std::unique_ptr<Arena> arena = std::move(created).value();
  bool all = true;
  std::vector<Buffer> held;
  auto take = [&](size_t bytes, const AllocateOptions& options = {}) {
    auto buffer = arena->allocate(bytes, options);
    if (!buffer.ok()) {
      all = false;
      CHECK(buffer.code() == Code::kNoMemory);
      CHECK(buffer.status().to_string().find("told to fail") != std::string::npos);
      return;
    }
    std::fill(buffer->bytes().begin(), buffer->bytes().end(), std::byte{0x5a});
    held.push_back(std::move(buffer).value());
  };
  take(1000);
  take(3 * kMiB);
  take(kMiB, {.audience = Audience::kNobody});
  take(9 * kMiB);
  take(kMiB, {.for_receive = true});
  held.erase(held.begin(), held.begin() + static_cast<long>(held.size() / 2));
  arena->trim();
  all = arena->prefault(4 * kMiB).ok() && all;
  take(5 * kMiB);

  ArenaStatistics s = arena->statistics();
  CHECK(s.outstanding == held.size());
  CHECK(s.extent_bytes == pages.committed_bytes());
  CHECK(registrar.registered.size() == pages.committed.size());
  held.clear();
  CHECK(arena->statistics().used_bytes == 0);
  // Whatever failed: all of the arena can be had afterwards.
  auto whole = arena->allocate(29 * kMiB);
  if (!whole.ok()) {
    all = false;  // this was the call
    whole = arena->allocate(29 * kMiB);
  }
  CHECK(whole.ok());
  return all;
}

TEST_CASE("call N fails, for every N, and nothing is lost") {
  uint64_t nth = 1;
  for (;; ++nth) {
    test::FailNth failures(nth);
    test::FakePageSource pages(&failures);
    test::FakeRegistrar registrar(&failures);
    INFO("call " << nth << " fails");
    bool all = scenario(pages, registrar);
    CHECK(pages.committed.empty());
    CHECK(pages.reserved_bytes == 0);
    if (!failures.reached()) {
      CHECK(all);
      break;
    }
    REQUIRE(nth < 100);
  }
  CHECK(nth > 8);
}

TEST_CASE("a receive in steps takes the reserve where the system has no more memory") {
  const bool for_receive = GENERATE(false, true);
  test::FailNth failures(3);  // reserve, the first extent, then the next
  test::FakePageSource pages(&failures);
  auto arena = std::move(Arena::create(test::small_options(), pages)).value();
  auto first = arena->allocate(2 * kMiB);
  REQUIRE(first.ok());
  const AllocateOptions options{.for_receive = for_receive};
  Result<Buffer> received = test::allocate_in_steps(*arena, 2 * kMiB, options);
  CHECK(received.ok() == for_receive);
  CHECK(arena->statistics().outstanding == (for_receive ? 2 : 1));
  CHECK(arena->statistics().extents_added == 1);
}

TEST_CASE("an allocation in steps gives free extents back where the system has no more memory") {
  test::FailNth failures(4);  // reserve, an extent of each audience, then the next
  test::FakePageSource pages(&failures);
  auto arena = std::move(Arena::create(test::small_options(), pages)).value();
  auto kept = arena->allocate(2 * kMiB);
  REQUIRE(arena->allocate(2 * kMiB, {.audience = Audience::kNobody}).ok());
  Result<Buffer> buffer = test::allocate_in_steps(*arena, 9 * kMiB);
  CHECK(failures.reached());
  CHECK(buffer.ok());
  CHECK(arena->statistics().extents_removed == 1);
}

}  // namespace
}  // namespace sluice
