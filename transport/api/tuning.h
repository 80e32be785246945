// The thresholds that depend on the machine, and that a Context is opened with. The values
// here are those of a machine that nobody has measured; transport/tuning finds its own.
#ifndef SLUICE_API_TUNING_H_
#define SLUICE_API_TUNING_H_

#include <cstdint>

namespace sluice {

// No message is so large: a threshold that is never reached.
inline constexpr uint64_t kNeverBytes = uint64_t{1} << 40;

struct Tuning {
  // Largest payload that rides in the control message; above it rendezvous. Decided by the
  // sender alone: any receiver takes either.
  uint64_t shm_eager_bytes = 4096;
  uint64_t tcp_eager_bytes = 16384;  // to a peer on this machine; others: 16 KiB
  // How long an adaptive wait polls before it sleeps.
  uint64_t spin_ns = 60'000;
  // Copies out of a peer's memory of so many bytes or more go past the caches.
  uint64_t stream_copy_bytes = kNeverBytes;
};

}  // namespace sluice

#endif  // SLUICE_API_TUNING_H_
