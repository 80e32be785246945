#include <sluice/base/copy.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>

namespace sluice {

#ifdef __SSE2__
void copy_past_caches(std::byte* to, const std::byte* from, size_t length) {
  constexpr size_t kLine = 64;
  // A line that is written in part goes through the caches after all.
  size_t head = std::min<size_t>(length, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  if (head > 0) std::memcpy(to, from, head);
  to += head, from += head, length -= head;
  for (; length >= kLine; to += kLine, from += kLine, length -= kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* line = reinterpret_cast<__m128i*>(to);
    __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1),
            c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  if (length > 0) std::memcpy(to, from, length);
  // Streaming stores are not ordered with others (Intel SDM volume 3, 8.2.2): without this the
  // peer could be told of bytes that are not there yet.
  _mm_sfence();
}
#else
void copy_past_caches(std::byte* to, const std::byte* from, size_t length) {
  std::memcpy(to, from, length);
}
#endif

}  // namespace sluice
