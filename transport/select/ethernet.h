// sluice:// over plain Ethernet, where both ends wish it: the kernel module if both have it, else
// raw frames. TCP has said where the peer is; the handshake of either proves both directions. Knows
// the two backends by connect() and listen() alone: no link, no frame.
#ifndef SLUICE_SELECT_ETHERNET_H_
#define SLUICE_SELECT_ETHERNET_H_

#include <memory>

#include <sluice/spi/path_choice.h>
#include <sluice/spi/path_descriptor.h>
#include <sluice/spi/provider.h>

namespace sluice::select {

// By the option, by a requirement of that path, or by SLUICE_ETHERNET=1 for a whole process.
bool ethernet_wanted(bool option, const Requirements& require);

// What a carrier can do at the least: with a secret frames are copied more often, which is found
// out when they meet. `sealed`: with a secret.
PathProperties ethernet_properties(Path path, bool sealed);

// The part of the kernel module's path, or of raw frames; null: of another path.
std::unique_ptr<PathChoice> open_ethernet_choice(const PathDescriptor& path, Provider& provider);

}  // namespace sluice::select

#endif  // SLUICE_SELECT_ETHERNET_H_
