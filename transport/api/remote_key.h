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

enum class Right : uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };

struct GrantOptions {
  Right rights = Right::kRead;
  // After it the grant is void. kNever: until revoked or the endpoint closes.
  Instant deadline = kNever;
};

// Sent to the peer by the program, in any message. Opaque there: no address, no
// extent; the granting side checks range, rights, epoch and peer on every use.
struct RemoteKey {
  uint64_t grant = 0;
  uint64_t length = 0;  // bytes that may be addressed, from offset 0
  uint32_t epoch = 0;   // of the grant; a revoked grant's number is never valid again
  Right rights = Right::kRead;

  // 24 bytes little-endian: grant u64, length u64, epoch u32, rights u8, 3 zero bytes.
  static constexpr size_t kEncodedBytes = 24;
  std::array<std::byte, kEncodedBytes> encode() const;
  // Errors: kInvalidArgument (size, rights or padding).
  static Result<RemoteKey> decode(std::span<const std::byte> bytes);
};

}  // namespace sluice

#endif  // SLUICE_API_REMOTE_KEY_H_
