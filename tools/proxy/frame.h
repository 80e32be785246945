// What two proxies say to each other: frames of 24 bytes, one in each tagged message, small data
// behind it. Pure: bytes to structs and back. docs/proxy.md has the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <sluice/base/result.h>

namespace sluice::tools::proxy {

inline constexpr uint8_t kVersion = 1;
inline constexpr uint64_t kMagic = 0x79786f7270636c73;  // "slcproxy"
inline constexpr size_t kFrameBytes = 24;
// Data up to this goes in the frame's own message; more is announced, and then asked for, so that
// it is read in place where the path has views. With its header it fills 8 KiB.
inline constexpr size_t kMostInline = 8192 - kFrameBytes;
// One read of a socket, a quarter of the usual window: while one is written the next is on its way.
inline constexpr size_t kMostPiece = size_t{256} << 10;
inline constexpr uint64_t kLeastWindow = uint64_t{64} << 10;
inline constexpr uint64_t kMostWindow = uint64_t{256} << 20;

enum class FrameKind : uint8_t {
  kHello = 1,  // first, both ways: `detail` version, `value` window in bytes
  kOpen,       // `stream` begins; their numbers are 1, 2, 3, ...
  kData,       // `length` bytes follow
  kPiece,      // `length` bytes wait under the number `value`: 1, 2, 3, ... of the connection
  kCredit,     // `value`: bytes of the stream that have left for the socket, in all
  kEnd,        // no more data in this direction
  kReset,      // the stream is over; `detail` says why
};

enum class ResetReason : uint8_t { kSocket = 1, kRefused, kTooMany, kEnding };
const char* to_string(ResetReason reason);

struct Frame {
  FrameKind kind = FrameKind::kHello;
  uint8_t detail = 0;
  uint32_t length = 0;
  uint64_t stream = 0;
  uint64_t value = 0;
};

// Requires: room for kFrameBytes.
void encode(const Frame& frame, std::byte* out);
// The frame at the begin of a message; of kData the bytes follow it. Errors: kCorrupt.
Result<Frame> decode(std::span<const std::byte> message);

}  // namespace sluice::tools::proxy
