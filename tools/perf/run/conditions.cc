#include "tools/perf/run/conditions.h"

#include <array>
#include <utility>

#include "tools/perf/load/pattern.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace sluice::tools {
namespace {

// Cache line of x86-64 and of every ARMv8 that runs Linux on servers; a longer line is flushed
// twice.
constexpr uint64_t kLineBytes = 64;

#if defined(__x86_64__)
void evict_line(const std::byte* line) { _mm_clflush(line); }
void wait_for_evictions() { _mm_mfence(); }
#elif defined(__aarch64__)
void evict_line(const std::byte* line) { asm volatile("dc civac, %0" : : "r"(line) : "memory"); }
void wait_for_evictions() { asm volatile("dsb ish" : : : "memory"); }
#else
void evict_line(const std::byte*) {}
void wait_for_evictions() {}
#endif

}  // namespace

Result<Buffer> allocate_at(Arena& arena, uint64_t bytes, std::optional<uint32_t> offset) {
  if (!offset) return arena.allocate(bytes);
  SLUICE_TRY(Buffer buffer, arena.allocate(bytes + 2 * kPageBytes));
  uint64_t to_page = -reinterpret_cast<uintptr_t>(buffer.data()) % kPageBytes;
  const std::array<int64_t, 1> shape = {static_cast<int64_t>(bytes)}, stride = {1};
  SLUICE_TRY(TensorDescriptor placed,
             TensorDescriptor::strided(shape, stride, uint8, to_page + *offset));
  SLUICE_RETURN_IF_ERROR(buffer.reshape(placed));
  return buffer;
}

bool can_evict() {
#if defined(__x86_64__) || defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

uint64_t evict(const std::byte* data, uint64_t bytes) {
  if (bytes == 0 || !can_evict()) return 0;
  const std::byte* line = data - reinterpret_cast<uintptr_t>(data) % kLineBytes;
  uint64_t named = 0;
  for (; line < data + bytes; line += kLineBytes, named += kLineBytes) evict_line(line);
  wait_for_evictions();
  return named;
}

uint64_t Pauses::next_ns() {
  // Scaled by a multiplication: a remainder would favour short ones.
  return static_cast<uint64_t>(
      (static_cast<unsigned __int128>(mixed(seed_ + drawn_++)) * (most_ns_ + 1)) >> 64);
}

void Pauses::pause() {
  if (most_ns_ == 0) return;
  uint64_t ns = next_ns(), begin = ticks();
  auto length = static_cast<uint64_t>(static_cast<double>(ns) / nanoseconds_per_tick());
  while (ticks() - begin < length) {}
  paused_ns_ += ns;
}

}  // namespace sluice::tools
