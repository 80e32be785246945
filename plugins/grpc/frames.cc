#include <sluice/grpc/frames.h>

#include <cstring>

#include <sluice/base/checked.h>

namespace sluice::grpc {
namespace {

// u32 length of what follows, u8 kind, u8 flags (1: whole), u16 reserved (0), u32 stream.
constexpr size_t kFrameHeaderBytes = 12;
constexpr size_t kAddressBytes = 255;
constexpr uint8_t kWholeFlag = 1;

template <typename T>
void put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<uint16_t>(text.size()));
  out.append(text);
}

void put_metadata(std::string& out, const Metadata& metadata) {
  put(out, static_cast<uint16_t>(metadata.size()));
  for (const auto& [key, value] : metadata) {
    put_text(out, key);
    put_text(out, value);
  }
}

// Reads forward; once anything is missing, ok() stays false and all reads give nothing.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && in_.empty(); }
  size_t left() const { return in_.size(); }

  std::span<const std::byte> take(uint64_t length) {
    if (!ok_ || !range_fits(0, length, in_.size())) {
      ok_ = false;
      return {};
    }
    std::span<const std::byte> taken = in_.first(length);
    in_ = in_.subspan(length);
    return taken;
  }
  template <typename T>
  T number() {
    T value = 0;
    std::span<const std::byte> bytes = take(sizeof(T));
    for (size_t i = 0; i < bytes.size(); ++i)
      value = static_cast<T>(value | static_cast<T>(static_cast<T>(bytes[i]) << (8 * i)));
    return value;
  }
  std::string text() {
    std::span<const std::byte> bytes = take(number<uint16_t>());
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  Metadata metadata() {
    Metadata read;
    const uint16_t count = number<uint16_t>();
    size_t total = 0;
    for (uint16_t i = 0; i < count && ok_; ++i) {
      std::string key = text();
      std::string value = text();
      total += key.size() + value.size();
      if (total > kMetadataBytes) ok_ = false;
      read.emplace_back(std::move(key), std::move(value));
    }
    return read;
  }
  void refuse_unless(bool good) { ok_ = ok_ && good; }

 private:
  std::span<const std::byte> in_;
  bool ok_ = true;
};

size_t size_of(const Metadata& metadata) {
  size_t total = 0;
  for (const auto& [key, value] : metadata) total += key.size() + value.size();
  return total;
}

void put_body(std::string& out, const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kHello:
      put(out, kBridgeMagic);
      put(out, frame.version);
      out.append(reinterpret_cast<const char*>(frame.token.data()), frame.token.size());
      break;
    case FrameKind::kWelcome: put(out, frame.version); break;
    case FrameKind::kHeaders:
      put_text(out, frame.text);
      put(out, frame.timeout_ns);
      put_metadata(out, frame.metadata);
      break;
    case FrameKind::kMessage:
      put(out, frame.length);
      put(out, static_cast<uint16_t>(frame.parts.size()));
      for (const MessagePart& part : frame.parts) {
        put(out, part.payload);
        put(out, part.length);
        out.append(reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size());
      }
      break;
    case FrameKind::kInitialMetadata: put_metadata(out, frame.metadata); break;
    case FrameKind::kStatus:
      put(out, frame.code);
      put_text(out, frame.text);
      put_text(out, frame.details);
      put_metadata(out, frame.metadata);
      break;
    case FrameKind::kWindow: put(out, frame.count); break;
    case FrameKind::kHalfClose:
    case FrameKind::kCancel:
    case FrameKind::kGoAway: break;
  }
}

void take_message(Reader& body, Frame& frame) {
  frame.length = body.number<uint64_t>();
  const uint16_t count = body.number<uint16_t>();
  body.refuse_unless(frame.length <= kMostMessageBytes && count <= kMostParts);
  uint64_t total = 0, inline_bytes = 0;
  for (uint16_t i = 0; i < count && body.ok(); ++i) {
    MessagePart& part = frame.parts.emplace_back();
    part.payload = body.number<uint64_t>();
    part.length = body.number<uint64_t>();
    body.refuse_unless(part.length <= frame.length - total);
    if (!body.ok()) return;
    total += part.length;
    if (part.payload != 0) continue;
    inline_bytes += part.length;
    body.refuse_unless(inline_bytes <= kInlineBytes);
    part.bytes = body.take(part.length);
  }
  body.refuse_unless(total == frame.length);
}

void take_body(Reader& body, Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kHello: {
      body.refuse_unless(body.number<uint32_t>() == kBridgeMagic);
      frame.version = body.number<uint16_t>();
      std::span<const std::byte> token = body.take(frame.token.size());
      if (body.ok()) std::memcpy(frame.token.data(), token.data(), token.size());
      break;
    }
    case FrameKind::kWelcome: frame.version = body.number<uint16_t>(); break;
    case FrameKind::kHeaders:
      frame.text = body.text();
      frame.timeout_ns = body.number<uint64_t>();
      frame.metadata = body.metadata();
      break;
    case FrameKind::kMessage: take_message(body, frame); break;
    case FrameKind::kInitialMetadata: frame.metadata = body.metadata(); break;
    case FrameKind::kStatus:
      frame.code = body.number<uint32_t>();
      frame.text = body.text();
      frame.details = body.text();
      frame.metadata = body.metadata();
      break;
    case FrameKind::kWindow: frame.count = body.number<uint32_t>(); break;
    case FrameKind::kHalfClose:
    case FrameKind::kCancel:
    case FrameKind::kGoAway: break;
    default: body.refuse_unless(false);
  }
  body.refuse_unless(body.at_end() && fits(frame));
}

}  // namespace

bool fits(const Frame& frame) {
  const size_t longest = frame.kind == FrameKind::kHeaders ? kMethodBytes : kStatusTextBytes;
  return frame.text.size() <= longest && frame.details.size() <= kMetadataBytes &&
         size_of(frame.metadata) <= kMetadataBytes && frame.metadata.size() <= kMetadataBytes / 8;
}

void append(std::string& out, const Frame& frame) {
  const size_t start = out.size();
  put(out, uint32_t{0});
  put(out, static_cast<uint8_t>(frame.kind));
  put(out, static_cast<uint8_t>(frame.whole ? kWholeFlag : 0));
  put(out, uint16_t{0});
  put(out, frame.stream);
  put_body(out, frame);
  const uint64_t length = out.size() - start - sizeof(uint32_t);
  for (size_t i = 0; i < sizeof(uint32_t); ++i)
    out[start + i] = static_cast<char>(length >> (8 * i));
}

std::optional<Frame> take_frame(std::span<const std::byte>& in) {
  Reader whole(in);
  const uint32_t length = whole.number<uint32_t>();
  Reader body(whole.take(length));
  if (!whole.ok() || length < kFrameHeaderBytes - sizeof(uint32_t)) return std::nullopt;
  Frame frame;
  frame.kind = static_cast<FrameKind>(body.number<uint8_t>());
  const uint8_t flags = body.number<uint8_t>();
  frame.whole = flags == kWholeFlag;
  body.refuse_unless(flags == 0 || (frame.whole && frame.kind == FrameKind::kHeaders));
  body.refuse_unless(body.number<uint16_t>() == 0);
  frame.stream = body.number<uint32_t>();
  take_body(body, frame);
  if (!body.ok()) return std::nullopt;
  in = in.subspan(in.size() - whole.left());
  return frame;
}

std::string encode(const Announcement& announcement) {
  std::string out;
  put(out, kBridgeMagic);
  put(out, kBridgeVersion);
  out.append(reinterpret_cast<const char*>(announcement.token.data()), announcement.token.size());
  put_text(out, announcement.address);
  return out;
}

std::optional<Announcement> decode_announcement(std::string_view text) {
  Reader in(std::as_bytes(std::span(text)));
  Announcement read;
  in.refuse_unless(in.number<uint32_t>() == kBridgeMagic);
  in.refuse_unless(in.number<uint16_t>() == kBridgeVersion);
  std::span<const std::byte> token = in.take(read.token.size());
  read.address = in.text();
  in.refuse_unless(in.at_end() && read.address.size() <= kAddressBytes);
  if (!in.ok()) return std::nullopt;
  std::memcpy(read.token.data(), token.data(), token.size());
  return read;
}

}  // namespace sluice::grpc
