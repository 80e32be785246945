// No allocation on the data path once it is warm: every malloc of the process is counted
// while messages and tensors go back and forth.
#include <malloc.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/proof/ping_pong.h"
#include "tests/support/fresh_name.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<uint64_t> allocations{0};
void note() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// The sanitizer has malloc; it tells us of each call.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*,
                                                                             size_t),
                                                         void (*free_hook)(const volatile void*));
namespace {
void install() {
  static int installed = __sanitizer_install_malloc_and_free_hooks(
      [](const volatile void*, size_t) { note(); }, [](const volatile void*) {});
  REQUIRE(installed > 0);
}
}  // namespace
#else
// glibc's own functions under the names it keeps for this purpose.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void* malloc(size_t size) {
  note();
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  note();
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  note();
  return __libc_realloc(memory, size);
}
void* memalign(size_t alignment, size_t size) {
  note();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  note();
  return __libc_memalign(alignment, size);
}
}
namespace {
void install() {}
}  // namespace
#endif

namespace sluice::test {
namespace {

constexpr int kWarmUp = 300;
constexpr int kRounds = 10'000;

template <typename Round>
void check_no_allocation(const char* what, int rounds, Round&& round) {
  INFO(what);
  bool fine = true;
  for (int i = 0; i < kWarmUp; ++i) fine = fine && round();
  REQUIRE(fine);
  allocations = 0;
  counting = true;
  for (int i = 0; i < rounds; ++i) fine = fine && round();
  counting = false;
  CHECK(fine);
  CHECK(allocations.load() == 0);
}

void check_path(const std::string& address) {
  install();
  PingPong pair(address, {.arena = {},
                          .arena_options = {.limit_bytes = size_t{64} << 20,
                                            .first_extent_bytes = size_t{8} << 20},
                          .waiting = Waiting::kSpin});
  REQUIRE(pair.ready());
  check_no_allocation("messages of 64 bytes", kRounds, [&] { return pair.message_round(64); });
  check_no_allocation("messages of 4096 bytes", kRounds, [&] { return pair.message_round(4096); });
  check_no_allocation("tensors fetched", kRounds, [&] { return pair.tensor_round(); });
  check_no_allocation("tensors fetched into memory", kRounds / 5,
                      [&] { return pair.placed_round(); });
}

TEST_CASE("the counter counts", "[proof]") {
  install();
  allocations = 0;
  counting = true;
  auto* volatile memory = new int(1);
  counting = false;
  delete memory;
  CHECK(allocations.load() == 1);
}

TEST_CASE("shm: ten thousand rounds of each kind allocate nothing", "[proof]") {
  check_path(fresh_name("shm:allocation"));
}
TEST_CASE("tcp: ten thousand rounds of each kind allocate nothing", "[proof]") {
  check_path("tcp://127.0.0.1:0");
}

}  // namespace
}  // namespace sluice::test
