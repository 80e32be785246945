// This path, as the rest of the program knows it.
#ifndef SLUICE_SHM_PATH_H_
#define SLUICE_SHM_PATH_H_

#include <sluice/spi/path_descriptor.h>

namespace sluice::shm {

extern const PathDescriptor kPath;

}  // namespace sluice::shm

#endif  // SLUICE_SHM_PATH_H_
