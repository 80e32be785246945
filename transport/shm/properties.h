// What shared memory can do.
#ifndef SLUICE_SHM_PROPERTIES_H_
#define SLUICE_SHM_PROPERTIES_H_

#include <sluice/api/receipt.h>

namespace sluice::shm {

inline PathProperties shm_properties() {
  return {.path = Path::kShm,
          .capabilities = {Capability::kViews, Capability::kZeroCopyFetch, Capability::kSealed},
          .copies_per_fetch = 0};
}

}  // namespace sluice::shm

#endif  // SLUICE_SHM_PROPERTIES_H_
