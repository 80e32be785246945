// The thresholds that depend on the machine, and that a Context is opened with. The values
// here are those of a machine that nobody has measured; transport/tuning finds its own.
#ifndef SLUICE_API_TUNING_H_
#define SLUICE_API_TUNING_H_

#include <cstdint>

namespace sluice {

// A threshold that is never reached: no message is so large.
inline constexpr uint64_t kNeverBytes = uint64_t{1} << 40;

// In UDP at MTU 1500 two packets' worth of 46.
inline constexpr uint64_t kMostBatchFrames = 92;

struct Tuning {
  // Largest eager payload; above it rendezvous. The sender alone decides: any receiver takes
  // either.
  uint64_t shm_eager_bytes = 4096;
  // The same over shared memory while one of the two ends sleeps: the answer to a pull must wake
  // the sender once more. For messages of Level::kSourceReusable only. If it is smaller,
  // shm_eager_bytes counts.
  uint64_t shm_eager_sleeping_bytes = 32768;
  uint64_t tcp_eager_bytes = 16384;  // to a peer on this machine; others: 16 KiB
  // How long an adaptive wait polls before it sleeps.
  uint64_t spin_ns = 60'000;
  // A copy out of a peer's memory goes past the caches if so many bytes, its own included, were
  // copied since its destination was last written, or if it never was (base/streaming_rule.h). The
  // default is what no cache of a usual machine keeps: docs/tuning.md, "Copies past the caches".
  uint64_t stream_copy_bytes = 32 << 20;
  // Frames of l2:// that go to the kernel in one call.
  uint64_t l2_batch_frames = kMostBatchFrames;
  // Largest frame of l2://, even if the way takes larger ones; at least the 1232 bytes that every
  // carrier takes. It is no threshold: with it `sluice tune` measures batches of Ethernet's frames
  // over loopback, whose own have 64 KiB.
  uint16_t l2_frame_bytes = UINT16_MAX;
};

}  // namespace sluice

#endif  // SLUICE_API_TUNING_H_
