// This path, as the rest of the program knows it.
#ifndef SLUICE_L2_PATH_H_
#define SLUICE_L2_PATH_H_

#include <sluice/spi/path_descriptor.h>

namespace sluice::l2 {

extern const PathDescriptor kPacketPath, kXdpPath, kUdpPath;  // l2://interface, l2://xdp, l2://udp

}  // namespace sluice::l2

#endif  // SLUICE_L2_PATH_H_
