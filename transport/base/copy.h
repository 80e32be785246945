// Copies past the caches: for payloads that do not stay in a cache.
#ifndef SLUICE_BASE_COPY_H_
#define SLUICE_BASE_COPY_H_

#include <cstddef>
#include <cstring>

namespace sluice {

// As memcpy(), with stores that do not bring the destination into the caches, if the processor
// has them (x86-64; elsewhere memcpy()). memcpy() of glibc does so by itself from three quarters
// of the shared cache on. In a guest that is the host's cache: 240 MiB on the machine of
// docs/tuning.md, which a copy of 1 MiB never reaches. On return the bytes are ordered before
// later stores, as with memcpy().
void copy_past_caches(std::byte* to, const std::byte* from, size_t length);

inline void copy_bytes(std::byte* to, const std::byte* from, size_t length, bool past_caches) {
  if (past_caches) {
    copy_past_caches(to, from, length);
  } else {
    std::memcpy(to, from, length);
  }
}

}  // namespace sluice

#endif  // SLUICE_BASE_COPY_H_
