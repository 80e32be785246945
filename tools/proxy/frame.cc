#include "tools/proxy/frame.h"

namespace sluice::tools::proxy {
namespace {

Status corrupt(const char* what) {
  return Status(Code::kCorrupt, Scope::kEndpoint, "tools/proxy", what);
}

void put(std::byte* out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
}

uint64_t take(const std::byte* from, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(from[i]) << (8 * i);
  return value;
}

// What the fields of a frame may be; `rest`: bytes of the message behind the frame.
Status check(const Frame& frame, size_t rest) {
  if (frame.kind != FrameKind::kData && rest != 0) return corrupt("bytes behind a frame");
  if (frame.kind != FrameKind::kHello && frame.stream == 0) return corrupt("stream 0");
  switch (frame.kind) {
    case FrameKind::kHello:
      if (frame.stream != kMagic) return corrupt("a HELLO that is no proxy's");
      if (frame.detail != kVersion) return corrupt("another version of the proxy's frames");
      if (frame.value < kLeastWindow || frame.value > kMostWindow)
        return corrupt("a window outside 64 KiB to 256 MiB");
      return Status();
    case FrameKind::kData:
      if (frame.length == 0 || frame.length > kMostInline || frame.length != rest)
        return corrupt("DATA of another length than its message");
      return Status();
    case FrameKind::kPiece:
      if (frame.length <= kMostInline || frame.length > kMostPiece)
        return corrupt("a PIECE of a length that none has");
      return Status();
    case FrameKind::kReset:
      if (frame.detail < static_cast<uint8_t>(ResetReason::kSocket) ||
          frame.detail > static_cast<uint8_t>(ResetReason::kEnding))
        return corrupt("a RESET for no known reason");
      return Status();
    case FrameKind::kOpen:
    case FrameKind::kCredit:
    case FrameKind::kEnd: return Status();
  }
  return corrupt("a frame of unknown kind");
}

}  // namespace

const char* to_string(ResetReason reason) {
  switch (reason) {
    case ResetReason::kSocket: return "the connection there was reset";
    case ResetReason::kRefused: return "the service cannot be reached";
    case ResetReason::kTooMany: return "the other proxy has as many connections as it takes";
    case ResetReason::kEnding: return "the other proxy ends";
  }
  return "";
}

void encode(const Frame& frame, std::byte* out) {
  put(out, static_cast<uint8_t>(frame.kind), 1);
  put(out + 1, frame.detail, 1);
  put(out + 2, 0, 2);
  put(out + 4, frame.length, 4);
  put(out + 8, frame.stream, 8);
  put(out + 16, frame.value, 8);
}

Result<Frame> decode(std::span<const std::byte> message) {
  if (message.size() < kFrameBytes) return corrupt("a message too short for a frame");
  if (take(message.data() + 2, 2) != 0) return corrupt("reserved bytes of a frame are set");
  Frame frame{.kind = static_cast<FrameKind>(message[0]),
              .detail = static_cast<uint8_t>(message[1]),
              .length = static_cast<uint32_t>(take(message.data() + 4, 4)),
              .stream = take(message.data() + 8, 8),
              .value = take(message.data() + 16, 8)};
  SLUICE_RETURN_IF_ERROR(check(frame, message.size() - kFrameBytes));
  return frame;
}

}  // namespace sluice::tools::proxy
