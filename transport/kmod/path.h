// This path, as the rest of the program knows it.
#ifndef SLUICE_KMOD_PATH_H_
#define SLUICE_KMOD_PATH_H_

#include <sluice/spi/path_descriptor.h>

namespace sluice::kmod {

extern const PathDescriptor kPath;

}  // namespace sluice::kmod

#endif  // SLUICE_KMOD_PATH_H_
