// A file mapped over addresses that this process has reserved.
#ifndef SLUICE_BASE_MAP_OVER_H_
#define SLUICE_BASE_MAP_OVER_H_

#include <cstddef>

namespace sluice {

// Maps the first `length` bytes of `fd`, shared, at [at, at + length), which the caller
// holds reserved; `protection` as for mmap(2). At no time can a mapping that another
// thread makes come to lie there, also if the file refuses to be mapped.
// Returns 0, or an errno; then the addresses are still reserved, without memory.
// Thread: any.
int map_over(void* at, size_t length, int protection, int fd);

}  // namespace sluice

#endif  // SLUICE_BASE_MAP_OVER_H_
