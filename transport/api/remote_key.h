// A grant of one-sided access to a range of our memory, bound to one peer.
#ifndef SLUICE_API_REMOTE_KEY_H_
#define SLUICE_API_REMOTE_KEY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <sluice/base/clock.h>
#include <sluice/base/result.h>

namespace sluice {

// Bits. kAtomic: fetch-add and compare-swap, where the path has Capability::kAtomics.
enum class Right : uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3, kAtomic = 4, kAll = 7 };
constexpr bool has_right(Right rights, Right right) {
  return (static_cast<uint8_t>(rights) & static_cast<uint8_t>(right)) ==
         static_cast<uint8_t>(right);
}

struct GrantOptions {
  Right rights = Right::kRead;
  // After it the grant is void. kNever: until revoked or the endpoint closes.
  Instant deadline = kNever;
};

// The program sends it to the peer, in any message. It is opaque there. On paths whose target
// takes part, the granting side checks range, rights, epoch and peer on every use, and
// address and device_key are 0. On RDMA paths the granting side's device checks them, by a window
// or a narrow registration made for this grant alone.
struct RemoteKey {
  uint64_t grant = 0;
  uint64_t length = 0;   // bytes that may be addressed, from offset 0
  uint64_t address = 0;  // of offset 0, as the granting device counts
  uint32_t epoch = 0;    // of the grant; a revoked grant's number is never valid again
  uint32_t device_key = 0;
  Right rights = Right::kRead;

  // 40 bytes little-endian: grant u64, length u64, address u64, epoch u32, device_key u32,
  // rights u8, 7 zero bytes.
  static constexpr size_t kEncodedBytes = 40;
  std::array<std::byte, kEncodedBytes> encode() const;
  // Errors: kInvalidArgument (size, rights or padding).
  static Result<RemoteKey> decode(std::span<const std::byte> bytes);
};

}  // namespace sluice

#endif  // SLUICE_API_REMOTE_KEY_H_
