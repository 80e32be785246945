// What two bridges say to each other: frames, several of them in one tagged message. Encoding
// and checks only: it knows neither gRPC nor a connection.
#ifndef SLUICE_GRPC_FRAMES_H_
#define SLUICE_GRPC_FRAMES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::grpc {

inline constexpr uint16_t kBridgeVersion = 3;
inline constexpr uint32_t kBridgeMagic = 0x52474c53;  // "SLGR"
// A message of the connection: as large as the receives that are posted.
inline constexpr size_t kPacketBytes = 64 << 10;
// Of a message, this much lies in its frame; what is more is lent, and the receiver fetches it.
inline constexpr size_t kInlineBytes = 32 << 10;
// Keys and values of one block of metadata together. gRPC's own soft limit is 8 KiB.
inline constexpr size_t kMetadataBytes = 16 << 10;
inline constexpr size_t kMethodBytes = 1 << 10;
inline constexpr size_t kStatusTextBytes = 6 << 10;
// protobuf's limit, and that of gRPC's own reader.
inline constexpr uint64_t kMostMessageBytes = INT32_MAX;
// What a writer may have under way in one direction of one call before the reader took it: this
// many messages, and no further one beyond this many bytes.
inline constexpr uint32_t kWindowMessages = 16;
inline constexpr uint64_t kWindowBytes = 1 << 20;

// Parts of one message that lie in different places.
inline constexpr size_t kMostParts = 64;

using Metadata = std::vector<std::pair<std::string, std::string>>;
using Token = std::array<std::byte, 16>;

enum class FrameKind : uint8_t {
  kHello = 1,        // client: version, token
  kWelcome,          // server: version
  kHeaders,          // client: opens a call
  kMessage,          // either
  kHalfClose,        // client: no more messages
  kCancel,           // client: the call is over
  kInitialMetadata,  // server
  kStatus,           // server: the call is over
  kWindow,           // either: `count` messages were taken
  kGoAway,           // server: no new calls
};

// Bytes of a message, in order.
struct MessagePart {
  uint64_t payload = 0;  // number of the lent payload; 0: inline
  uint64_t length = 0;
  std::span<const std::byte> bytes;  // inline: lies in what was decoded
};

struct Frame {
  FrameKind kind = FrameKind::kCancel;
  uint32_t stream = 0;
  uint16_t version = 0;  // kHello, kWelcome
  bool whole = false;    // kHeaders: one request, and nothing of the answer is read before its end
  Token token = {};      // kHello
  std::string text;      // kHeaders: the method; kStatus: the message
  std::string details;   // kStatus
  Metadata metadata;     // kHeaders, kInitialMetadata, kStatus
  uint64_t timeout_ns = 0;         // kHeaders: what is left; 0: no deadline
  uint32_t code = 0;               // kStatus
  uint32_t count = 0;              // kWindow
  uint64_t length = 0;             // kMessage: of all parts together
  std::vector<MessagePart> parts;  // kMessage
};

// True if metadata, method and texts keep the limits above.
bool fits(const Frame& frame);
// Appends the frame. Requires: fits(frame).
void append(std::string& out, const Frame& frame);
// The first frame of `in`, which is shortened by it. Nothing: the bytes break the format. Every
// length is checked against what is there before it is used.
std::optional<Frame> take_frame(std::span<const std::byte>& in);

// What a server tells who asks it for its address.
struct Announcement {
  Token token = {};
  std::string address;
};
std::string encode(const Announcement& announcement);
std::optional<Announcement> decode_announcement(std::string_view text);

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_FRAMES_H_
