// Random sequences against an oracle that knows only bytes and addresses.
#include <sluice/allocator/arena.h>

#include <catch2/catch.hpp>

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "tests/allocator/fake_page_source.h"

namespace sluice {
namespace {

using test::kMiB;

struct Held {
  Buffer buffer;
  uint64_t stamp;
  bool charged;
};

// The first 8 bytes of each page and the last 8 of the whole say whose they are.
template <typename Visit>
void for_each_stamp(std::span<std::byte> bytes, Visit visit) {
  for (size_t at = 0; at + 16 <= bytes.size(); at += 4096) visit(bytes.data() + at, at);
  if (bytes.size() >= 8) visit(bytes.data() + bytes.size() - 8, bytes.size() - 8);
}

void stamp(const Held& held) {
  for_each_stamp(held.buffer.bytes(),
                 [&](std::byte* at, size_t) { std::memcpy(at, &held.stamp, 8); });
}

bool intact(const Held& held) {
  bool same = true;
  for_each_stamp(held.buffer.bytes(), [&](std::byte* at, size_t) {
    same = same && std::memcmp(at, &held.stamp, 8) == 0;
  });
  return same;
}

class Run {
 public:
  Run(uint64_t seed, int steps) : random_(seed), steps_(steps) {
    arena_ = std::move(Arena::create(test::small_options(), pages_, &registrar_)).value();
  }

  void go() {
    for (int step = 0; step < steps_; ++step) {
      uint64_t what = random_() % 100;
      if (what < 52) {
        allocate();
      } else if (what < 97) {
        release();
      } else if (what < 98) {
        arena_->trim();
      } else {
        check();
      }
    }
    check();
    while (!held_.empty()) release();
    REQUIRE(arena_->statistics().used_bytes == 0);
    REQUIRE(quota_.used_bytes() == 0);
    arena_->trim();
    REQUIRE(pages_.committed.empty());
  }

 private:
  size_t random_size() {
    switch (random_() % 8) {
      case 0: return random_() % 300;
      case 1:
      case 2:
      case 3: return random_() % 20'000;
      case 4:
      case 5: return random_() % 400'000;
      case 6: return random_() % (3 * kMiB);
      default: return random_() % (12 * kMiB);
    }
  }

  void allocate() {
    AllocateOptions options{
        .audience = random_() % 4 == 0 ? Audience::kNobody : Audience::kSameUser,
        .quota = random_() % 3 == 0 ? &quota_ : nullptr,
        .for_receive = random_() % 5 == 0};
    size_t bytes = random_size();
    auto got = arena_->allocate(bytes, options);
    if (!got.ok()) {
      REQUIRE(got.code() == Code::kNoMemory);
      return;
    }
    Buffer& buffer = *got;
    REQUIRE(reinterpret_cast<uintptr_t>(buffer.data()) % kArenaAlignment == 0);
    REQUIRE(buffer.size_bytes() == bytes);
    REQUIRE(buffer.capacity_bytes() >= bytes);
    auto place = arena_->locate(buffer.data(), buffer.capacity_bytes());
    REQUIRE(place.has_value());
    REQUIRE(place->first.audience == options.audience);
    Held held{std::move(buffer), random_(), options.quota != nullptr};
    std::byte* begin = held.buffer.data();
    auto after = held_.upper_bound(begin);
    if (after != held_.end()) REQUIRE(begin + held.buffer.capacity_bytes() <= after->first);
    if (after != held_.begin()) {
      auto before = std::prev(after);
      REQUIRE(before->first + before->second.buffer.capacity_bytes() <= begin);
    }
    stamp(held);
    held_.emplace(begin, std::move(held));
  }

  void release() {
    if (held_.empty()) return;
    auto victim = std::next(held_.begin(), static_cast<long>(random_() % held_.size()));
    REQUIRE(intact(victim->second));
    held_.erase(victim);
  }

  void check() {
    size_t used = 0, charged = 0;
    for (const auto& [begin, held] : held_) {
      used += held.buffer.capacity_bytes();
      if (held.charged) charged += held.buffer.capacity_bytes();
      REQUIRE(intact(held));
    }
    ArenaStatistics s = arena_->statistics();
    REQUIRE(s.used_bytes == used);
    REQUIRE(s.outstanding == held_.size());
    REQUIRE(s.extent_bytes == pages_.committed_bytes());
    REQUIRE(s.extent_bytes <= s.limit_bytes);
    REQUIRE(s.used_bytes + s.cached_bytes <= s.extent_bytes);
    REQUIRE(s.peak_used_bytes >= s.used_bytes);
    REQUIRE(quota_.used_bytes() == charged);
    REQUIRE(charged <= quota_.limit_bytes());
  }

  std::mt19937_64 random_;
  int steps_;
  test::FakePageSource pages_;
  test::FakeRegistrar registrar_;
  Quota quota_{6 * kMiB};
  std::unique_ptr<Arena> arena_;
  std::map<std::byte*, Held> held_;
};

TEST_CASE("random sequences keep bytes apart, intact and accounted for") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Run(seed, 600).go();
  }
}

}  // namespace
}  // namespace sluice
