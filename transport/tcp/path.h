// This path, as the rest of the program knows it.
#ifndef SLUICE_TCP_PATH_H_
#define SLUICE_TCP_PATH_H_

#include <sluice/spi/path_descriptor.h>

namespace sluice::tcp {

extern const PathDescriptor kPath;

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_PATH_H_
