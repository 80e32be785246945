// What one thread may ask of an arena, on a fake page source.
#include <sluice/allocator/arena.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include <sluice/allocator/pending_allocation.h>
#include <sluice/base/counters.h>

#include "tests/allocator/fake_page_source.h"

namespace sluice {
namespace {

using test::FakePageSource;
using test::FakeRegistrar;
using test::kMiB;
using test::small_options;

std::unique_ptr<Arena> make(PageSource& pages, const ArenaOptions& options = small_options(),
                            MemoryRegistrar* registrar = nullptr) {
  auto arena = Arena::create(options, pages, registrar);
  REQUIRE(arena.ok());
  return std::move(arena).value();
}

// Takes runs of `bytes` until the arena refuses.
std::vector<Buffer> fill(Arena& arena, size_t bytes, const AllocateOptions& options = {}) {
  std::vector<Buffer> held;
  while (true) {
    auto buffer = arena.allocate(bytes, options);
    if (!buffer.ok()) {
      CHECK(buffer.code() == Code::kNoMemory);
      return held;
    }
    held.push_back(std::move(buffer).value());
  }
}

bool mentions(const Status& status, const std::string& text) {
  return status.to_string().find(text) != std::string::npos;
}

TEST_CASE("a refusal names a limit that is enough, or says that the machine has less memory") {
  FakePageSource pages;
  auto arena = make(pages);
  const uint64_t limit = small_options().limit_bytes;
  std::string text = arena->allocate(3 * limit).status().to_string();
  size_t at = text.find("SLUICE_ARENA_LIMIT=");
  REQUIRE(at != std::string::npos);
  CHECK((std::stoull(text.substr(at + 19)) << 20) >=
        3 * limit + small_options().receive_reserve_bytes);
  text = arena->allocate(size_t{1} << 50).status().to_string();
  INFO(text);
  CHECK(text.find("check the shape") != std::string::npos);
  CHECK(text.find("SLUICE_ARENA_LIMIT") == std::string::npos);
}

TEST_CASE("memory is aligned, zeroed the first time, and of the size asked for") {
  FakePageSource pages;
  auto arena = make(pages);
  for (size_t bytes :
       {size_t{0}, size_t{1}, size_t{256}, size_t{257}, size_t{5000}, kMiB, 3 * kMiB + 1}) {
    auto buffer = arena->allocate(bytes);
    REQUIRE(buffer.ok());
    CHECK(buffer->size_bytes() == bytes);
    CHECK(buffer->capacity_bytes() >= bytes);
    CHECK(reinterpret_cast<uintptr_t>(buffer->data()) % kArenaAlignment == 0);
    for (std::byte b : buffer->bytes()) REQUIRE(b == std::byte{0});
  }
}

TEST_CASE("a large run takes little more than was asked for") {
  FakePageSource pages;
  auto arena = make(pages, small_options(64 * kMiB));
  for (size_t bytes : {kMiB + 1, 9 * kMiB + 1, 17 * kMiB + 5}) {
    auto buffer = arena->allocate(bytes);
    REQUIRE(buffer.ok());
    CHECK(buffer->capacity_bytes() < bytes + 4096);
  }
}

TEST_CASE("a shape and dtype give a descriptor; a bad shape is refused") {
  FakePageSource pages;
  auto arena = make(pages);
  std::vector<int64_t> shape = {7, 5, 3};
  auto buffer = arena->allocate(shape, float32);
  REQUIRE(buffer.ok());
  CHECK(buffer->descriptor().to_string() == "float32[7,5,3]");
  CHECK(buffer->as<float>().size() == 105);
  CHECK(buffer->storage()->unique());
  shape[1] = -1;
  CHECK(arena->allocate(shape, float32).code() == Code::kInvalidArgument);
  CHECK(arena->statistics().outstanding == 1);
}

TEST_CASE("a tensor larger than the next extent lies in one run and may cross extents") {
  FakePageSource pages;
  auto arena = make(pages);
  auto first = arena->allocate(1 * kMiB);
  REQUIRE(first.ok());
  auto large = arena->allocate(11 * kMiB);
  REQUIRE(large.ok());
  std::fill(large->bytes().begin(), large->bytes().end(), std::byte{7});
  auto place = arena->locate(large->data(), large->size_bytes());
  REQUIRE(place.has_value());
  auto over = arena->extents_over(place->arena_offset, large->size_bytes());
  REQUIRE(over.size() >= 2);
  CHECK(over[0].id == place->first.id);
  uint64_t end = over[0].arena_offset;
  for (const ExtentInfo& extent : over) {
    CHECK(extent.arena_offset == end);  // no hole
    end += extent.length;
    CHECK(arena->extent(extent.id)->fd == extent.fd);
  }
  CHECK(place->arena_offset == place->first.arena_offset + place->extent_offset);
  CHECK(arena->base() + place->arena_offset == large->data());
}

TEST_CASE("locate says nothing about memory that is not in live extents") {
  FakePageSource pages;
  auto arena = make(pages);
  auto buffer = arena->allocate(1000);
  REQUIRE(buffer.ok());
  int elsewhere = 0;
  CHECK_FALSE(arena->locate(&elsewhere, 4));
  CHECK(arena->locate(buffer->data(), 0));
  size_t extent_bytes = arena->statistics().extent_bytes;
  CHECK(arena->locate(arena->base(), extent_bytes));
  CHECK_FALSE(arena->locate(arena->base(), extent_bytes + 1));
  CHECK_FALSE(arena->locate(arena->base() + extent_bytes, 1));
  CHECK_FALSE(arena->locate(arena->base() - 1, 2));
  CHECK_FALSE(arena->locate(buffer->data(), SIZE_MAX));
  CHECK_FALSE(arena->locate(arena->base() + arena->reserved_address_bytes(), 0));
  CHECK(arena->extents_over(0, arena->reserved_address_bytes()).size() ==
        arena->statistics().extents_added);
  CHECK(arena->extents_over(1, UINT64_MAX).empty());
  CHECK_FALSE(arena->extent(0));
  CHECK_FALSE(arena->extent(999));
}

TEST_CASE("extents double and never exceed the limit") {
  FakePageSource pages;
  auto arena = make(pages, small_options(32 * kMiB, kMiB));
  std::vector<Buffer> held = fill(*arena, kMiB / 2);
  ArenaStatistics s = arena->statistics();
  CHECK(s.extent_bytes == 32 * kMiB);
  CHECK(pages.committed_bytes() == 32 * kMiB);
  CHECK(s.used_bytes == 31 * kMiB);
  CHECK(s.peak_used_bytes >= s.used_bytes);
  CHECK(s.outstanding == held.size());
  CHECK(s.failures == 1);
  std::vector<uint64_t> lengths;
  for (const ExtentInfo& extent : arena->extents_over(0, arena->reserved_address_bytes()))
    lengths.push_back(extent.length / kMiB);
  REQUIRE(lengths.size() >= 4);
  CHECK(lengths[1] == 2 * lengths[0]);
  CHECK(*std::max_element(lengths.begin(), lengths.end()) == 8);
}

TEST_CASE("a limit that is no multiple of the extent granule is not exceeded") {
  FakePageSource pages;
  auto arena = make(pages, small_options(7 * kMiB));
  std::vector<Buffer> held = fill(*arena, 4096);
  CHECK(arena->statistics().limit_bytes <= 7 * kMiB);
  CHECK(pages.committed_bytes() == 6 * kMiB);
}

TEST_CASE("a refusal by the limit names it, what is in use, and the remedy") {
  FakePageSource pages;
  auto arena = make(pages);
  auto held = arena->allocate(20 * kMiB);
  uint64_t refused = read_counter("allocator.refused_limit");
  for (size_t bytes : {15 * kMiB, 100 * kMiB, SIZE_MAX}) {
    Status status = arena->allocate(bytes).status();
    CHECK(status.code() == Code::kNoMemory);
    CHECK(mentions(status, "32 MiB"));
    CHECK(mentions(status, "20 MiB"));
    CHECK(mentions(status, bytes == SIZE_MAX ? "check the shape" : "ArenaOptions::limit_bytes"));
    CHECK(mentions(status, "SLUICE_ARENA_LIMIT") == (bytes != SIZE_MAX));
  }
  CHECK(read_counter("allocator.refused_limit") == refused + 3);
  CHECK(arena->statistics().failures == 3);
  CHECK(arena->statistics().outstanding == 1);
}

TEST_CASE("sending cannot take the receive reserve, in one piece, whatever it frees") {
  FakePageSource pages;
  auto arena = make(pages);
  // Small runs everywhere, every other one freed: no two neighbours are free.
  std::vector<Buffer> held = fill(*arena, 1024);
  REQUIRE(held.size() == 30 * 1024);
  for (size_t i = 0; i < held.size(); i += 2) held[i] = Buffer();
  CHECK_FALSE(arena->allocate(2 * kMiB).ok());
  auto received = arena->allocate(2 * kMiB, {.for_receive = true});
  REQUIRE(received.ok());
  CHECK(arena->locate(received->data(), received->size_bytes()));
  Status status = arena->allocate(2 * kMiB, {.for_receive = true}).status();
  CHECK(status.code() == Code::kNoMemory);
  received = Buffer();
  CHECK_FALSE(arena->allocate(2 * kMiB).ok());  // still not for sending
  CHECK(arena->allocate(2 * kMiB, {.for_receive = true}).ok());
}

TEST_CASE("what receives hold of the reserve is not charged to sending") {
  FakePageSource pages;
  auto arena = make(pages);
  std::vector<Buffer> held = fill(*arena, kMiB);
  auto received = arena->allocate(kMiB, {.for_receive = true});
  REQUIRE(received.ok());
  held.pop_back();
  CHECK(arena->allocate(kMiB).ok());
  CHECK(arena->statistics().used_bytes == 30 * kMiB);
}

TEST_CASE(
    "the receive reserve never comes to lie within an allocation that continues free memory") {
  const bool in_steps = GENERATE(false, true);
  FakePageSource pages;
  auto arena = make(pages, small_options(64 * kMiB));
  {
    // The reserve goes with its extent while another extent is in the making.
    auto first = arena->allocate(2 * kMiB);
    auto making = arena->begin_allocate(17 * kMiB / 2);
    REQUIRE(making->step());
    *first = Buffer();
    CHECK(arena->trim() == 4 * kMiB);
    while (!making->ready()) REQUIRE(making->step());
    Buffer kept = std::move(making->take()).value();
    // 1.5 MiB are free behind it. The next extent has the reserve.
    const uint64_t commits = pages.commits;
    constexpr size_t kBytes = 25 * kMiB / 2;
    Result<Buffer> large =
        in_steps ? test::allocate_in_steps(*arena, kBytes) : arena->allocate(kBytes);
    REQUIRE(large.ok());
    CHECK(pages.commits == commits + 1);
    std::fill(large->bytes().begin(), large->bytes().end(), std::byte{7});
    std::vector<Buffer> held = fill(*arena, kMiB);
    auto received = arena->allocate(2 * kMiB, {.for_receive = true});
    REQUIRE(received.ok());
    std::fill(received->bytes().begin(), received->bytes().end(), std::byte{1});
    CHECK(std::all_of(large->bytes().begin(), large->bytes().end(),
                      [](std::byte b) { return b == std::byte{7}; }));
  }
  CHECK(arena->statistics().used_bytes == 0);
}

TEST_CASE("another audience cannot take the receive reserve either") {
  FakePageSource pages;
  auto arena = make(pages);
  std::vector<Buffer> held = fill(*arena, kMiB, {.audience = Audience::kNobody});
  CHECK(held.size() == 30);
  CHECK(arena->allocate(2 * kMiB, {.for_receive = true}).ok());
  CHECK_FALSE(arena->allocate(2 * kMiB, {.audience = Audience::kNobody, .for_receive = true}).ok());
}

TEST_CASE("without a reserve a receive is refused like all others") {
  FakePageSource pages;
  auto arena = make(pages, small_options(32 * kMiB, 0));
  std::vector<Buffer> held = fill(*arena, kMiB);
  CHECK(held.size() == 32);
  Status status = arena->allocate(5000, {.for_receive = true}).status();
  CHECK(status.code() == Code::kNoMemory);
  CHECK(mentions(status, "no room for 5120 bytes"));
}

TEST_CASE("audiences never share an extent") {
  FakePageSource pages;
  auto arena = make(pages);
  std::vector<Buffer> held;
  for (int i = 0; i < 40; ++i) {
    Audience audience = i % 2 == 0 ? Audience::kSameUser : Audience::kNobody;
    auto buffer = arena->allocate(300'000, {.audience = audience});
    REQUIRE(buffer.ok());
    auto place = arena->locate(buffer->data(), buffer->size_bytes());
    REQUIRE(place);
    for (const ExtentInfo& extent :
         arena->extents_over(place->arena_offset, buffer->size_bytes())) {
      CHECK(extent.audience == audience);
    }
    held.push_back(std::move(buffer).value());
  }
  CHECK_FALSE(arena->locate(arena->base(), arena->statistics().extent_bytes));
}

TEST_CASE("memory that one audience gave back serves the other") {
  FakePageSource pages;
  auto arena = make(pages);
  std::vector<Buffer> held = fill(*arena, kMiB);
  held.clear();
  CHECK(fill(*arena, kMiB, {.audience = Audience::kNobody}).size() == 30);
  CHECK(fill(*arena, kMiB).size() == 30);
}

TEST_CASE("a quota is charged, refused by name, and given back") {
  FakePageSource pages;
  auto arena = make(pages);
  Quota quota(4 * kMiB);
  auto a = arena->allocate(3 * kMiB, {.quota = &quota});
  REQUIRE(a.ok());
  CHECK(quota.used_bytes() == 3 * kMiB);
  uint64_t refused = read_counter("allocator.refused_quota");
  Status status = arena->allocate(2 * kMiB, {.quota = &quota}).status();
  CHECK(status.code() == Code::kNoMemory);
  CHECK(mentions(status, "quota"));
  CHECK(mentions(status, "4 MiB"));
  CHECK(mentions(status, "3 MiB"));
  CHECK(read_counter("allocator.refused_quota") == refused + 1);
  CHECK(quota.used_bytes() == 3 * kMiB);
  CHECK(arena->allocate(2 * kMiB).ok());
  a = Buffer();
  CHECK(quota.used_bytes() == 0);
  CHECK_FALSE(arena->allocate(100 * kMiB, {.quota = &quota}).ok());
  CHECK(quota.used_bytes() == 0);
}

TEST_CASE("free neighbours join, also across sizes and caches") {
  FakePageSource pages;
  auto arena = make(pages);
  std::vector<Buffer> held = fill(*arena, 10'000);
  held.clear();
  CHECK(arena->allocate(29 * kMiB).ok());
}

TEST_CASE("trim gives whole free extents back; their ids are not used again") {
  FakePageSource pages;
  FakeRegistrar registrar;
  auto arena = make(pages, small_options(), &registrar);
  auto kept = arena->allocate(1000);
  std::vector<Buffer> held = fill(*arena, kMiB);
  ExtentId last = registrar.last_id;
  held.clear();
  size_t before = arena->statistics().extent_bytes;
  size_t given_back = arena->trim();
  CHECK(given_back > 20 * kMiB);
  CHECK(arena->statistics().extent_bytes == before - given_back);
  CHECK(pages.committed_bytes() == before - given_back);
  CHECK(registrar.registered.size() == pages.committed.size());
  CHECK(arena->locate(kept->data(), 1000));
  CHECK(arena->trim() == 0);
  CHECK(fill(*arena, kMiB).size() >= 28);  // the addresses serve again
  CHECK(registrar.last_id > last);
  kept = Buffer();
  arena->trim();
  CHECK(pages.committed_bytes() == 0);
  CHECK(arena->statistics().extent_bytes == 0);
  CHECK(arena->allocate(kMiB).ok());
  CHECK(arena->allocate(2 * kMiB, {.for_receive = true}).ok());
}

TEST_CASE("prefault makes later allocations add no extent") {
  FakePageSource pages;
  auto arena = make(pages);
  REQUIRE(arena->prefault(16 * kMiB).ok());
  uint64_t commits = pages.commits;
  std::vector<Buffer> held;
  for (int i = 0; i < 16; ++i) held.push_back(std::move(arena->allocate(kMiB)).value());
  CHECK(pages.commits == commits);
  held.clear();
  REQUIRE(arena->prefault(16 * kMiB).ok());
  CHECK(pages.commits == commits);
  CHECK(arena->prefault(31 * kMiB).code() == Code::kNoMemory);
  CHECK(arena->prefault(30 * kMiB).ok());
}

TEST_CASE("prefault for one audience takes what the other does not use") {
  FakePageSource pages;
  auto arena = make(pages);
  REQUIRE(arena->prefault(28 * kMiB, Audience::kNobody).ok());
  CHECK(arena->prefault(20 * kMiB).ok());
  CHECK(arena->statistics().extent_bytes <= 32 * kMiB);
}

TEST_CASE("an arena may end before its memory") {
  FakePageSource pages;
  FakeRegistrar registrar;
  auto arena = make(pages, small_options(), &registrar);
  Buffer buffer = std::move(arena->allocate(5000)).value();
  Tensor tensor = std::move(arena->allocate(6000)).value().freeze();
  arena.reset();
  buffer.bytes()[4999] = std::byte{1};
  CHECK(tensor.bytes()[5999] == std::byte{0});
  CHECK(registrar.registered.size() == 1);
  buffer = Buffer();
  CHECK(pages.committed.size() == 1);
  tensor = Tensor();
  CHECK(pages.committed.empty());
}

TEST_CASE("options that contradict are refused") {
  FakePageSource pages;
  ArenaOptions options = small_options();
  options.receive_reserve_bytes = options.limit_bytes;
  CHECK(Arena::create(options, pages).code() == Code::kInvalidArgument);
  options = small_options(kMiB, 0);  // less than one extent
  CHECK(Arena::create(options, pages).code() == Code::kInvalidArgument);
  options = small_options();
  options.first_extent_bytes = 0;
  CHECK(Arena::create(options, pages).code() == Code::kInvalidArgument);
  options = small_options();
  options.largest_extent_bytes = kMiB;
  CHECK(Arena::create(options, pages).code() == Code::kInvalidArgument);
  // The bounds themselves, and one beyond.
  for (auto [limit, fits] : {std::pair(2 * kMiB, true), std::pair(2 * kMiB - 1, false),
                             std::pair((size_t{1} << 40) + 1, false), std::pair(SIZE_MAX, false)}) {
    INFO("limit " << limit);
    options = {.limit_bytes = limit,
               .first_extent_bytes = 2 * kMiB,
               .largest_extent_bytes = 2 * kMiB,
               .receive_reserve_bytes = 0};
    auto made = Arena::create(options, pages);
    CHECK(made.ok() == fits);
    if (!fits) CHECK(made.code() == Code::kInvalidArgument);
  }
}

TEST_CASE("SLUICE_ARENA_LIMIT counts where the options name no limit") {
  FakePageSource pages;
  ArenaOptions options = small_options(0);
  REQUIRE(::setenv("SLUICE_ARENA_LIMIT", "12M", 1) == 0);
  CHECK(make(pages, options)->statistics().limit_bytes == 12 * kMiB);
  CHECK(make(pages, small_options())->statistics().limit_bytes == 32 * kMiB);
  for (const char* bad : {"", "many", "12 M", "-1", "0", "12Q", "99999999999999999999G"}) {
    REQUIRE(::setenv("SLUICE_ARENA_LIMIT", bad, 1) == 0);
    Status status = Arena::create(options, pages).status();
    INFO(bad);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(mentions(status, "SLUICE_ARENA_LIMIT"));
    CHECK(mentions(status, bad));
    CHECK(mentions(status, "8G"));
  }
  REQUIRE(::unsetenv("SLUICE_ARENA_LIMIT") == 0);
}

TEST_CASE("an extent that the system refuses is tried again as small as the request allows") {
  test::FailNth failures(4);  // reserve, commits of 2 and of 4 MiB, then that of 8
  FakePageSource pages(&failures);
  auto arena = make(pages, small_options(32 * kMiB, 0));
  std::vector<Buffer> held;
  for (int i = 0; i < 8; ++i) {
    auto buffer = arena->allocate(2 * kMiB);
    REQUIRE(buffer.ok());
    held.push_back(std::move(buffer).value());
  }
  CHECK(failures.reached());
}

TEST_CASE("others allocate and look up while an extent is added") {
  FakePageSource pages;
  auto arena = make(pages);
  auto first = arena->allocate(1000);
  bool looked = false;
  pages.during_commit = [&] {
    looked = true;
    // With the heap's lock held here, these would never return.
    CHECK(arena->allocate(1000).ok());
    CHECK(arena->statistics().outstanding == 1);
    CHECK(arena->extents_over(0, 1).size() == 1);
    CHECK(arena->locate(first->data(), 1000));
    CHECK(arena->extent(1));
  };
  CHECK(arena->allocate(8 * kMiB).ok());
  pages.during_commit = nullptr;
  CHECK(looked);
}

}  // namespace
}  // namespace sluice
