// What SLP in the kernel's module can do, and what it copies.
#ifndef SLUICE_KMOD_TRAITS_H_
#define SLUICE_KMOD_TRAITS_H_

#include <sluice/spi/link.h>

namespace sluice::kmod {

LinkTraits kmod_traits();

}  // namespace sluice::kmod

#endif  // SLUICE_KMOD_TRAITS_H_
