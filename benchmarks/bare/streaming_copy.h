// A copy by stores that go past the caches, as the library makes them; written anew, since a
// yardstick knows nothing of it.
#pragma once

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "benchmarks/bare/program.h"

namespace bare {

// Both begin at a line of 64 bytes; what is left after the last whole one is copied as usual. Ends
// the process with kExitNothingToRunOn where the processor has no such stores.
inline void copy_by_streaming([[maybe_unused]] void* to, [[maybe_unused]] const void* from,
                              [[maybe_unused]] size_t bytes) {
#ifdef __SSE2__
  constexpr size_t kLine = 64;
  const size_t whole = bytes / kLine * kLine;
  auto* line = static_cast<__m128i*>(to);
  const auto* source = static_cast<const __m128i*>(from);
  for (size_t i = 0; i < whole / sizeof(__m128i); ++i)
    _mm_stream_si128(line + i, _mm_load_si128(source + i));
  _mm_sfence();
  std::memcpy(static_cast<char*>(to) + whole, static_cast<const char*>(from) + whole,
              bytes - whole);
#else
  std::fprintf(stderr, "no streaming stores on this processor\n");
  std::exit(kExitNothingToRunOn);
#endif
}

}  // namespace bare
