// A forked child owns nothing of its parent's arena, and may make one of its own.
#include <sluice/allocator/arena.h>

#include <catch2/catch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace sluice {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

ArenaOptions options() {
  return {.limit_bytes = 16 * kMiB,
          .first_extent_bytes = 4 * kMiB,
          .largest_extent_bytes = 4 * kMiB,
          .receive_reserve_bytes = kMiB};
}

// Exit status of a child that runs `body`; a child that hangs is ended by its alarm.
int in_child(const std::function<int()>& body) {
  pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(10);
    ::_exit(body());
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

TEST_CASE("after fork the child gets kWrongState and can end what it inherited") {
  auto arena = std::move(Arena::create(options())).value();
  Buffer cached = std::move(arena->allocate(1000)).value();
  cached = Buffer();
  Buffer held = std::move(arena->allocate(1000)).value();
  held.bytes()[0] = std::byte{42};
  int status = in_child([&] {
    if (arena->allocate(1000).code() != Code::kWrongState) return 1;
    if (arena->prefault(kMiB).code() != Code::kWrongState) return 2;
    if (arena->trim() != 0) return 3;
    if (arena->locate(held.data(), 1)) return 4;
    if (!arena->extents_over(0, arena->reserved_address_bytes()).empty()) return 5;
    arena->statistics();
    held = Buffer();
    arena.reset();
    return 0;
  });
  CHECK(status == 0);
  CHECK(held.bytes()[0] == std::byte{42});
  CHECK(arena->allocate(1000).ok());
}

TEST_CASE("a child, and its child, can make an arena of its own") {
  auto arena = std::move(Arena::create(options())).value();
  int status = in_child([&] {
    auto own = Arena::create(options());
    if (!own.ok() || !(*own)->allocate(1000).ok()) return 1;
    if (arena->allocate(1000).code() != Code::kWrongState) return 2;
    pid_t grandchild = ::fork();
    if (grandchild == 0) {
      bool wrong = (*own)->allocate(1000).code() == Code::kWrongState &&
                   arena->allocate(1000).code() == Code::kWrongState;
      auto mine = Arena::create(options());
      ::_exit(wrong && mine.ok() && (*mine)->allocate(1000).ok() ? 0 : 1);
    }
    int grandchild_status = 0;
    ::waitpid(grandchild, &grandchild_status, 0);
    return grandchild_status == 0 ? 0 : 3;
  });
  CHECK(status == 0);
}

// Mappings of extents, by the name of their memfd. (What lies at their addresses in the
// child may be anything: the addresses are free there.)
int mapped_extents() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:sluice-arena") != std::string::npos;
  return count;
}

TEST_CASE("the extents are not in the child's address space") {
  auto arena = std::move(Arena::create(options())).value();
  Buffer held = std::move(arena->allocate(1000)).value();
  REQUIRE(mapped_extents() == 1);
  CHECK(in_child([] { return mapped_extents(); }) == 0);
}

// The other thread holds the arena's locks nearly all the time, so that nearly every
// child inherits them locked by a thread that it does not have.
TEST_CASE("a child forked while other threads are at work does not hang") {
  auto arena = std::move(Arena::create(options())).value();
  std::vector<Buffer> held;
  while (true) {
    auto buffer = arena->allocate(64 << 10);
    if (!buffer.ok()) break;
    held.push_back(std::move(buffer).value());
  }
  // Of the reserve: its release takes the lock of all, not only that of a cache.
  held.push_back(std::move(arena->allocate(64 << 10, {.for_receive = true})).value());
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load(std::memory_order_relaxed)) arena->statistics();
  });
  int failed = 0;
  for (int i = 0; i < 40 && failed == 0; ++i) {
    failed = in_child([&] {
      held.clear();
      bool wrong =
          arena->allocate(1).code() == Code::kWrongState && arena->statistics().extent_bytes == 0;
      arena.reset();
      return wrong ? 0 : 1;
    });
  }
  stop.store(true);
  busy.join();
  CHECK(failed == 0);
}

}  // namespace
}  // namespace sluice
