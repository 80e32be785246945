// Large copies by two threads, where a program lets its context have a second one.
#ifndef SLUICE_RUNTIME_SHARED_COPY_H_
#define SLUICE_RUNTIME_SHARED_COPY_H_

#include <cstddef>

#include <sluice/runtime/helper_thread.h>

namespace sluice {

// From here on a half is worth the wake of the helper, some 50 us: 0.1 ms.
inline constexpr size_t kSharedCopyBytes = size_t{2} << 20;

// As copy_bytes(). `helper`: null, or of the calling context; it copies a half if it is idle.
void copy_shared(HelperThread* helper, std::byte* to, const std::byte* from, size_t length,
                 bool past_caches);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_SHARED_COPY_H_
