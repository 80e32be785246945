// This path, as the rest of the program knows it.
#ifndef SLUICE_LOOPBACK_PATH_H_
#define SLUICE_LOOPBACK_PATH_H_

#include <sluice/spi/path_descriptor.h>

namespace sluice::loopback {

extern const PathDescriptor kPath;

}  // namespace sluice::loopback

#endif  // SLUICE_LOOPBACK_PATH_H_
