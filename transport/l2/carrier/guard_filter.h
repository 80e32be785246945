// Programs for the kernel's socket filter (bpf in socket(7)): what a port under a flood still
// takes. Knows where a frame has its connection (docs/slp.md, section 3), and no session.
#ifndef SLUICE_L2_CARRIER_GUARD_FILTER_H_
#define SLUICE_L2_CARRIER_GUARD_FILTER_H_

#include <linux/filter.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::l2 {

// Most connections of a guarded port. Two instructions each: they fit the 20 KiB that a user may
// have in options of a socket (net.core.optmem_max before Linux 6.9).
inline constexpr size_t kMostGuarded = 512;
// Passes what `before` passes, which falls through to its end if it has no objection: frames to
// one of the connections, whose numbers strangers do not know, and by chance one of so many others,
// so that new peers get in. `frame_at`: bytes before the frame, as the filter sees it. Requires: at
// most kMostGuarded connections; `one_of` is a power of two.
std::vector<sock_filter> guard_filter(std::vector<sock_filter> before, uint32_t frame_at,
                                      std::span<const uint32_t> connections, uint32_t one_of);

// For `before`: drops the frame unless what `load` finds at `at` is `value`.
void must_be(std::vector<sock_filter>& code, uint16_t load, uint32_t at, uint32_t mask,
             uint32_t value);

// In place of the socket's present filter. Errors: errno, or 0.
int attach_filter(int fd, std::span<sock_filter> code);

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_GUARD_FILTER_H_
