// How much payload a control message carries on the paths that measure nothing of their own.
#ifndef SLUICE_SPI_EAGER_H_
#define SLUICE_SPI_EAGER_H_

#include <cstdint>

#include <sluice/api/tuning.h>

namespace sluice {

// In bytes. shm begins with the same and is tuned by machine (Tuning::shm_eager_bytes); tcp has its
// own.
inline constexpr uint32_t kEagerBytes = 4096;
static_assert(Tuning{}.shm_eager_bytes == kEagerBytes);

}  // namespace sluice

#endif  // SLUICE_SPI_EAGER_H_
