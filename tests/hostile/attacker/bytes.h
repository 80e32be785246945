// Bytes of docs/wire.md, written from that page alone: the attacker's own encoder, which also
// writes what no honest end would. Knows no sockets, and nothing of the library.
#ifndef SLUICE_TESTS_HOSTILE_ATTACKER_BYTES_H_
#define SLUICE_TESTS_HOSTILE_ATTACKER_BYTES_H_

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace hostile {

using Bytes = std::vector<uint8_t>;

enum Type : uint8_t {
  kHello = 1,
  kOffer,
  kWant,
  kData,
  kDone,
  kRelease,
  kCancel,
  kCredit,
  kPing,
  kBye
};
inline constexpr int kTypes = 11;  // by number, from 0
const char* name_of(int type);     // "HELLO"

inline constexpr uint16_t kLayout = 0x8001, kSegment = 0x8002, kKey = 0x8003, kRendezvous = 0x0004;
inline constexpr uint8_t kInline = 1, kReport = 2, kDataFollows = 4, kNumbered = 8, kReply = 1;
enum OfferKind : uint8_t { kTagged = 1, kSupply = 2, kWrite = 3, kReadAnswer = 4 };
enum WantKind : uint8_t { kByKey = 1, kOfOffer = 2, kRead = 3 };
enum Code : uint8_t { kOk = 0, kTryAgain = 1, kUnsupported = 3, kAccessDenied = 10, kCorrupt = 11 };

template <typename T>
void put(Bytes& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i)));
}
template <typename T>
T take(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));  // little-endian, as the machines that this runs on
  return value;
}

// One message. Words are added in the order of docs/wire.md; whole() sets the lengths.
class Message {
 public:
  explicit Message(uint8_t type, uint64_t id = 0, uint8_t flags = 0) : bytes_(16) {
    bytes_[0] = type;
    bytes_[1] = flags;
    std::memcpy(bytes_.data() + 8, &id, 8);
  }
  template <typename T>
  Message& word(T value) {
    put(bytes_, value);
    return *this;
  }
  Message& u8(uint8_t v) { return word(v); }
  Message& u16(uint16_t v) { return word(v); }
  Message& u32(uint32_t v) { return word(v); }
  Message& u64(uint64_t v) { return word(v); }
  Message& raw(const Bytes& more) {
    bytes_.insert(bytes_.end(), more.begin(), more.end());
    return *this;
  }
  // With zeros up to the next multiple of 8.
  Message& tlv(uint16_t type, const Bytes& value);
  Message& text(uint16_t type, std::string_view value) {
    return tlv(type, Bytes(value.begin(), value.end()));
  }
  // The header, its length filled in, and the payload behind it.
  Bytes whole(const Bytes& payload = {}) const;
  // A header that promises so much payload, none of which is there.
  Bytes promising(uint32_t payload_bytes) const;

 private:
  Bytes bytes_;
};

// A layout TLV's value: so many bytes as a vector of uint8.
Bytes layout_of(int64_t bytes);
Bytes segment(uint32_t extent, uint64_t offset, uint64_t length);

// Messages as an honest end would write them.
Bytes inline_message(uint64_t id, uint64_t tag, const Bytes& payload, uint8_t more_flags = 0);
Message offer(uint64_t id, uint8_t kind, uint64_t a, uint64_t total, uint8_t flags = 0,
              uint64_t offset = 0, uint32_t epoch = 0);
Message want(uint64_t id, uint8_t kind, uint64_t a, uint32_t key_id = 0, uint64_t offset = 0,
             uint64_t length = 0, uint8_t into = 0);
Bytes want_key(uint64_t id, uint32_t key_id, std::string_view key, uint64_t step);
Bytes data(uint64_t id, uint64_t offset, const Bytes& payload);
Bytes done(uint64_t id, uint32_t code, uint64_t bytes);
Bytes release(const std::vector<uint64_t>& ids);
Bytes cancel(uint64_t id, bool of_offer);
Bytes credit(uint64_t messages, uint64_t bytes);
Bytes ping(uint64_t nonce, bool reply);
Bytes bye(uint64_t code);

struct HelloFields {
  uint32_t magic = 0x43554c53;
  uint16_t min_version = 1, max_version = 1;
  uint64_t incarnation = 0x600d600d600d600d;
  Bytes host = Bytes(16, 0x5a);
  uint64_t network_namespace = 1, user_namespace = 1;
  uint32_t uid = 65534, pid = 1;
  uint64_t arena_bytes = 1ull << 30;
  uint64_t credit_messages = 256, credit_bytes = 1ull << 20;
};
Message hello(const HelloFields& fields = {});

// What an answer says, as far as attacks look at it.
struct Answer {
  uint8_t type = 0, flags = 0;
  uint16_t header_bytes = 0;
  uint32_t payload_bytes = 0;
  uint64_t id = 0;
  Bytes bytes;  // all of it, payload included, but of DATA its first 64 payload bytes only
  template <typename T>
  T at(size_t offset) const {
    return offset + sizeof(T) <= bytes.size() ? take<T>(bytes.data() + offset) : T{};
  }
};

}  // namespace hostile

#endif  // SLUICE_TESTS_HOSTILE_ATTACKER_BYTES_H_
