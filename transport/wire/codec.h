// Little-endian words in and out of byte spans, and the TLVs. Private to wire.
#ifndef SLUICE_WIRE_CODEC_H_
#define SLUICE_WIRE_CODEC_H_

#include <bit>
#include <cstring>
#include <span>
#include <string>

#include <sluice/wire/messages.h>

namespace sluice::wire {

static_assert(std::endian::native == std::endian::little, "words are copied as they are");

enum class TlvType : uint16_t {
  kLayout = 0x8001,  // a receiver that cannot read it must not guess
  kSegment = 0x8002,
  kKey = 0x8003,
  kFollowing = 0x8009,
  // Those of HELLO alone are in hello.cc.
};
inline constexpr uint16_t kTlvCritical = 0x8000;

// Writes one message. Requires: the room that encode() promises.
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : start_(out.data()), at_(out.data() + kHeaderBytes) {}

  template <typename T>
  void put(T value) {
    std::memcpy(at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  void put_bytes(const void* data, size_t length) {
    std::memcpy(at_, data, length);
    at_ += length;
  }
  void begin_tlv(TlvType type, size_t length) {
    put(static_cast<uint16_t>(type));
    put(static_cast<uint16_t>(length));
  }
  void pad() {
    while ((at_ - start_) % 8 != 0) *at_++ = std::byte{0};
  }
  size_t finish(MessageType type, uint8_t flags, uint64_t id, uint32_t payload_bytes) {
    auto length = static_cast<uint16_t>(at_ - start_);
    start_[0] = static_cast<std::byte>(type);
    start_[1] = static_cast<std::byte>(flags);
    std::memcpy(start_ + 2, &length, 2);
    std::memcpy(start_ + 4, &payload_bytes, 4);
    std::memcpy(start_ + 8, &id, 8);
    return length;
  }

 private:
  std::byte* start_;
  std::byte* at_;
};

// Reads one message; after a short read every later one fails too.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    T value{};
    if (left() < sizeof(T)) {
      failed_ = true;
      at_ = bytes_.size();
      return value;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::span<const std::byte> take(size_t length) {
    if (left() < length) {
      failed_ = true;
      at_ = bytes_.size();
      return {};
    }
    auto part = bytes_.subspan(at_, length);
    at_ += length;
    return part;
  }
  std::span<const std::byte> take_rest() { return take(left()); }
  size_t left() const { return bytes_.size() - at_; }
  bool at_end() const { return at_ == bytes_.size(); }
  bool failed() const { return failed_; }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool failed_ = false;
};

// Every refusal names the message, the field and the value.
Status corrupt(const char* message, const std::string& what);
std::string hex(uint64_t value);

}  // namespace sluice::wire

#endif  // SLUICE_WIRE_CODEC_H_
