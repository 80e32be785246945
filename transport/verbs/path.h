// This path, as the rest of the program knows it.
#ifndef SLUICE_VERBS_PATH_H_
#define SLUICE_VERBS_PATH_H_

#include <sluice/spi/path_descriptor.h>

namespace sluice::verbs {

extern const PathDescriptor kPath;

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_PATH_H_
