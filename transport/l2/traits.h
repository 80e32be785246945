// What SLP over each of its carriers can do, and what it copies.
#ifndef SLUICE_L2_TRAITS_H_
#define SLUICE_L2_TRAITS_H_

#include <sluice/spi/link.h>

namespace sluice::l2 {

// Traits with frames made by this process: Path::kPacket, kXdp or kUdp. `sealed`: encrypted.
// `kernel_copies`: each frame, once at each end.
LinkTraits l2_traits(Path path, bool sealed = false, bool kernel_copies = true);

}  // namespace sluice::l2

#endif  // SLUICE_L2_TRAITS_H_
