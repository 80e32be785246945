// Control messages of every path: bytes <-> structs, pure. Knows no transport and
// no state; every byte here came from a peer and may be hostile.
//
// A message is a header of `header_bytes` (a multiple of 8: 16 common bytes, fixed
// fields of its type, TLVs) and `payload_bytes` of payload. Little-endian. A TLV is
// {type u16, length u16, value}, the length counting the value, padded with zeros to
// 8 bytes; an unknown TLV is skipped unless bit 15 of its type (critical) is set.
// docs/wire.md has the layouts; tests/wire/golden holds their bytes.
#ifndef SLUICE_WIRE_MESSAGES_H_
#define SLUICE_WIRE_MESSAGES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include <sluice/base/result.h>
#include <sluice/base/tensor_descriptor.h>

namespace sluice::wire {

using Tag = uint64_t;

inline constexpr uint32_t kMagic = 0x43554c53;  // "SLUC"
inline constexpr uint16_t kMinVersion = 1;
inline constexpr uint16_t kMaxVersion = 1;

// Longest header: the common part, the largest fixed part, and every TLV we know at
// its longest, with room for ones we do not.
inline constexpr size_t kMaxHeaderBytes = 1024;
// Longest payload of one DATA message: bounds how long a control message waits.
inline constexpr uint32_t kMaxDataBytes = 4u << 20;
// Longest payload of any other message (inline tensors).
inline constexpr uint32_t kMaxInlineBytes = 64u << 10;
// Runs of memory one offer may name.
inline constexpr size_t kMaxSegments = 16;
inline constexpr size_t kMaxKeyBytes = 255;
inline constexpr size_t kMaxReleases = 32;
// Steps that one WANT asks for, its own with them.
inline constexpr size_t kMaxStepsOfWant = 32;
// Layouts that a side can give numbers to at once: 1 to 8.
inline constexpr uint8_t kLayoutNumbers = 8;

enum class MessageType : uint8_t {
  kHello = 1,
  kOffer = 2,
  kWant = 3,
  kData = 4,
  kDone = 5,
  kRelease = 6,
  kCancel = 7,
  kCredit = 8,
  kPing = 9,
  kBye = 10,
};
inline constexpr int kMessageTypeCount = 11;
std::string_view to_string(MessageType type);  // "HELLO"

// Common part, 16 bytes.
struct Header {
  MessageType type = MessageType::kHello;
  uint8_t flags = 0;  // meaning by type; unknown bits are kCorrupt
  uint16_t header_bytes = 16;
  uint32_t payload_bytes = 0;
  uint64_t id = 0;  // meaning by type
};
inline constexpr size_t kHeaderBytes = 16;

// Reads and checks the common part. Errors: kCorrupt.
Result<Header> decode_header(std::span<const std::byte> bytes);

// A run of the sender's arena. It may continue into the extents that follow in the
// sender's address order. On paths of capability kRdma it is a window instead: extent is
// the device's key, offset the address behind it.
struct Segment {
  uint32_t extent;
  uint64_t offset;  // within the extent
  uint64_t length;
  bool operator==(const Segment&) const = default;
};

struct Uuid {
  std::array<std::byte, 16> bytes{};
  bool operator==(const Uuid&) const = default;
};

// What a side can beyond version 1's first form: bits of Hello::features. A bit that is not known
// here is kept and means nothing.
inline constexpr uint64_t kFeatureLatest = 1;         // answers WANTs for kNewestStep and kNextStep
inline constexpr uint64_t kFeatureLayoutNumbers = 4;  // reads Offer::layout_number
inline constexpr uint64_t kFeatureStreams = 8;        // spreads DATA over further streams
inline constexpr uint64_t kFeatureSteps = 16;         // reads Want::following

// Steps that are none: a WANT of kind kKey for one of them asks which step there is. The answer is
// a supply of one uint64. docs/wire.md, "Which step".
inline constexpr uint64_t kNewestStep = ~uint64_t{0};   // at once; kNewestStep if there is none
inline constexpr uint64_t kNextStep = kNewestStep - 1;  // when there is one

// First message in both directions. id: incarnation, random per process start.
struct Hello {
  uint64_t incarnation = 0;
  uint16_t min_version = kMinVersion;
  uint16_t max_version = kMaxVersion;
  Uuid host;  // same value: same kernel
  uint64_t network_namespace = 0;
  uint64_t user_namespace = 0;
  uint32_t uid = 0;
  uint32_t pid = 0;
  uint64_t arena_bytes = 0;      // address range a peer reserves to map us
  uint64_t credit_messages = 0;  // unexpected messages we take before the first CREDIT
  uint64_t credit_bytes = 0;
  uint64_t features = 0;  // kFeature...; 0 from sides that do not know of features
  bool has_rendezvous = false;
  Uuid rendezvous;         // names our abstract Unix socket for shared memory
  Uuid token;              // says there, and at the RDMA port, which connection it is about
  uint16_t rdma_port = 0;  // where the connection manager finds us; 0: not by RDMA
  // Where SLP (docs/slp.md) finds us on the interface that this connection came in by; 0: not
  // there.
  uint16_t module_port = 0;  // of the kernel module
  uint16_t packet_port = 0;  // of raw frames
  // From the side that listens: what a further stream of this connection is to say in its own
  // HELLO, which has the token, too.
  bool has_streams = false;
  Uuid streams_token;
};

// What an offer is about: one struct for each kind.
enum class OfferKind : uint8_t { kTagged = 1, kSupply = 2, kWrite = 3, kRead = 4 };
struct TaggedOffer {  // a message
  Tag tag = 0;
};
struct SupplyOffer {  // answers a WANT for a key
  uint64_t want = 0;  // id of it
};
struct WriteOffer {  // a one-sided write
  uint64_t grant = 0;
  uint32_t epoch = 0;   // of the grant
  uint64_t offset = 0;  // in it
};
struct ReadOffer {    // answers a one-sided read
  uint64_t want = 0;  // id of it
};

// One of them, as the words of the header that each kind uses for its own: at bytes 20, 24 and 32.
class OfferAbout {
 public:
  constexpr OfferAbout() = default;
  constexpr OfferAbout(const TaggedOffer& o) : OfferAbout(OfferKind::kTagged, 0, o.tag, 0) {}
  constexpr OfferAbout(const SupplyOffer& o) : OfferAbout(OfferKind::kSupply, 0, o.want, 0) {}
  constexpr OfferAbout(const WriteOffer& o)
      : OfferAbout(OfferKind::kWrite, o.epoch, o.grant, o.offset) {}
  constexpr OfferAbout(const ReadOffer& o) : OfferAbout(OfferKind::kRead, 0, o.want, 0) {}
  // As it came: words that a kind does not use are kept, and mean nothing.
  constexpr OfferAbout(OfferKind kind, uint32_t word20, uint64_t word24, uint64_t word32)
      : kind_(kind), word20_(word20), word24_(word24), word32_(word32) {}

  OfferKind kind() const { return kind_; }
  // Requires: it is of that kind.
  TaggedOffer tagged() const { return {.tag = word24_}; }
  SupplyOffer supply() const { return {.want = word24_}; }
  WriteOffer write() const { return {.grant = word24_, .epoch = word20_, .offset = word32_}; }
  ReadOffer read() const { return {.want = word24_}; }

  uint32_t word20() const { return word20_; }
  uint64_t word24() const { return word24_; }
  uint64_t word32() const { return word32_; }

 private:
  OfferKind kind_ = OfferKind::kTagged;
  uint32_t word20_ = 0;
  uint64_t word24_ = 0, word32_ = 0;
};

// "Here is `total` bytes": inline as payload, as segments to be viewed or pulled, or
// (neither) as DATA that follows or is asked for by WANT. id: the sender's operation.
struct Offer {
  // Header flags.
  static constexpr uint8_t kInline = 1;       // the payload is all of it
  static constexpr uint8_t kReport = 2;       // the sender waits for DONE also when inline
  static constexpr uint8_t kDataFollows = 4;  // DATA comes without a WANT
  static constexpr uint8_t kNumbered = 8;     // layout_number is there; no other flag is

  uint64_t id = 0;
  uint8_t flags = 0;
  OfferAbout about;
  uint64_t total = 0;
  uint32_t payload_bytes = 0;
  // SupplyOffer, 1 to kLayoutNumbers; 0: none. With a layout the number stands for that one from
  // now on; without, for the one of before, and there is one segment.
  uint8_t layout_number = 0;
  bool has_layout = false;
  TensorDescriptor layout;
  uint32_t segment_count = 0;
  std::array<Segment, kMaxSegments> segments;
};

// What a want is about: one struct for each kind.
enum class WantKind : uint8_t { kKey = 1, kOffer = 2, kRead = 3 };
struct KeyWant {  // a tensor by key and step
  uint32_t key_id = 0;
  uint64_t step = 0;
};
struct PullWant {      // the bytes of an offer
  uint64_t offer = 0;  // id of it
  uint64_t offset = 0;
  uint64_t length = 0;
};
struct ReadWant {  // a one-sided read
  uint64_t grant = 0;
  uint32_t epoch = 0;   // of the grant
  uint64_t offset = 0;  // in it
  uint64_t length = 0;
};

// One of them, as the words of the header that each kind uses for its own: at bytes 20, 24, 32 and
// 40.
class WantAbout {
 public:
  constexpr WantAbout() = default;
  constexpr WantAbout(const KeyWant& w) : WantAbout(WantKind::kKey, w.key_id, w.step, 0, 0) {}
  constexpr WantAbout(const PullWant& w)
      : WantAbout(WantKind::kOffer, 0, w.offer, w.offset, w.length) {}
  constexpr WantAbout(const ReadWant& w)
      : WantAbout(WantKind::kRead, w.epoch, w.grant, w.offset, w.length) {}
  // As it came: words that a kind does not use are kept, and mean nothing.
  constexpr WantAbout(WantKind kind, uint32_t word20, uint64_t word24, uint64_t word32,
                      uint64_t word40)
      : kind_(kind), word20_(word20), word24_(word24), word32_(word32), word40_(word40) {}

  WantKind kind() const { return kind_; }
  // Requires: it is of that kind.
  KeyWant key() const { return {.key_id = word20_, .step = word24_}; }
  PullWant pull() const { return {.offer = word24_, .offset = word32_, .length = word40_}; }
  ReadWant read() const {
    return {.grant = word24_, .epoch = word20_, .offset = word32_, .length = word40_};
  }

  uint32_t word20() const { return word20_; }
  uint64_t word24() const { return word24_; }
  uint64_t word32() const { return word32_; }
  uint64_t word40() const { return word40_; }

 private:
  WantKind kind_ = WantKind::kKey;
  uint32_t word20_ = 0;
  uint64_t word24_ = 0, word32_ = 0, word40_ = 0;
};

// Ids of operations in the bytes of a message, or of a caller.
class IdList {
 public:
  IdList() = default;
  explicit IdList(std::span<const uint64_t> ids) : bytes_(std::as_bytes(ids)) {}
  // Requires: whole ids.
  explicit IdList(std::span<const std::byte> bytes) : bytes_(bytes) {}
  size_t size() const { return bytes_.size() / sizeof(uint64_t); }
  uint64_t operator[](size_t index) const {
    uint64_t id;
    std::memcpy(&id, bytes_.data() + index * sizeof(id), sizeof(id));
    return id;
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// "Send me": id is the asker's operation; DATA for it carries that id.
struct Want {
  uint64_t id = 0;
  WantAbout about;
  bool into = false;  // KeyWant: for memory of this layout; the asker refuses an offer of another
  bool has_layout = false;
  TensorDescriptor layout;
  std::string_view key;  // KeyWant, first use of key_id; points into the decoded bytes
  // KeyWant without `into`: the asker's operations for the steps that follow about.key().step, at
  // most kMaxStepsOfWant - 1. Points into the decoded bytes.
  IdList following;
  // KeyWant with a destination, on paths of capability kRdma: windows to write it to.
  uint32_t segment_count = 0;
  std::array<Segment, kMaxSegments> segments;
};

// Payload bytes [offset, offset + payload_bytes) of the want `id`.
struct Data {
  uint64_t id = 0;
  uint64_t offset = 0;
  uint32_t payload_bytes = 0;
  // On a further stream alone, and always there: how many messages the first one had carried before
  // it. They are handled before these bytes are.
  bool has_after = false;
  uint64_t after = 0;
};

// Operation `id` of the receiver of this message has ended: with `code`.
struct Done {
  uint64_t id = 0;
  Code code = Code::kOk;
  uint64_t bytes = 0;
};

// Loans that are home again: ids of the receiver's operations.
struct Release {
  uint32_t count = 0;
  std::array<uint64_t, kMaxReleases> ids;
};

// The sender's operation `id` (a want or an offer) is void.
struct Cancel {
  uint64_t id = 0;
  bool offer = false;  // false: a want
};

// Absolute limits since the connection began: a lost or repeated grant does no harm.
struct Credit {
  uint64_t messages = 0;
  uint64_t bytes = 0;
};

struct Ping {
  static constexpr uint8_t kReply = 1;  // header flag
  uint64_t nonce = 0;
  bool reply = false;
};

struct Bye {
  Code code = Code::kOk;
};

// Encoders write the header part to `out` and return its length. Requires:
// out.size() >= kMaxHeaderBytes; counts and lengths within the limits above.
size_t encode(const Hello& message, std::span<std::byte> out);
size_t encode(const Offer& message, std::span<std::byte> out);
size_t encode(const Want& message, std::span<std::byte> out);
size_t encode(const Data& message, std::span<std::byte> out);
size_t encode(const Done& message, std::span<std::byte> out);
size_t encode(const Release& message, std::span<std::byte> out);
size_t encode(const Cancel& message, std::span<std::byte> out);
size_t encode(const Credit& message, std::span<std::byte> out);
size_t encode(const Ping& message, std::span<std::byte> out);
size_t encode(const Bye& message, std::span<std::byte> out);

// Decoders take exactly the header part. Requires: decode_header() accepted it (flags and
// payload are checked there). Errors: kCorrupt; the detail names message, field and value.
// `out` is unspecified then.
Status decode(std::span<const std::byte> header, Hello& out);
Status decode(std::span<const std::byte> header, Offer& out);
Status decode(std::span<const std::byte> header, Want& out);
Status decode(std::span<const std::byte> header, Data& out);
Status decode(std::span<const std::byte> header, Done& out);
Status decode(std::span<const std::byte> header, Release& out);
Status decode(std::span<const std::byte> header, Cancel& out);
Status decode(std::span<const std::byte> header, Credit& out);
Status decode(std::span<const std::byte> header, Ping& out);
Status decode(std::span<const std::byte> header, Bye& out);

// The Offer of an eager tagged message, apart from the general case: the latency path.
// The bytes are those of encode(Offer).
struct TaggedInline {
  uint64_t id = 0;
  Tag tag = 0;
  uint32_t payload_bytes = 0;
  bool report = false;
};
inline constexpr size_t kTaggedInlineBytes = 48;

namespace internal {
// The first word: type, flags, header_bytes.
inline constexpr uint64_t kTaggedInlineWord = static_cast<uint64_t>(MessageType::kOffer) |
                                              uint64_t{Offer::kInline} << 8 |
                                              uint64_t{kTaggedInlineBytes} << 16;
inline constexpr uint64_t kReportBit = uint64_t{Offer::kReport} << 8;
}  // namespace internal

// Whole words: bytes written one by one and copied as a block would stall the copy.
inline size_t encode(const TaggedInline& m, std::span<std::byte> out) {
  uint64_t first = internal::kTaggedInlineWord | (m.report ? internal::kReportBit : 0) |
                   uint64_t{m.payload_bytes} << 32;
  const uint64_t words[6] = {first, m.id, static_cast<uint64_t>(OfferKind::kTagged),
                             m.tag, 0,    m.payload_bytes};
  std::memcpy(out.data(), words, kTaggedInlineBytes);
  return kTaggedInlineBytes;
}
// True if the bytes begin with such an offer and every field is as decode_header() and
// decode(Offer) require; false: ask those.
inline bool decode_fast(std::span<const std::byte> bytes, TaggedInline& out) {
  if (bytes.size() < kTaggedInlineBytes) return false;
  uint64_t words[6];
  std::memcpy(words, bytes.data(), sizeof(words));
  uint64_t payload = words[0] >> 32;
  bool plain = (words[0] & 0xFFFFFFFF & ~internal::kReportBit) == internal::kTaggedInlineWord &&
               (words[2] & 0xFFFFFFFF) == static_cast<uint64_t>(OfferKind::kTagged) &&
               words[5] == payload && payload <= kMaxInlineBytes;
  if (!plain) return false;
  out = {.id = words[1],
         .tag = words[3],
         .payload_bytes = static_cast<uint32_t>(payload),
         .report = (words[0] & internal::kReportBit) != 0};
  return true;
}

namespace internal {
// The first words of what every step of a dataflow sends: 48 bytes of header and no payload.
inline constexpr uint64_t kNumberedWord = static_cast<uint64_t>(MessageType::kOffer) |
                                          uint64_t{Offer::kNumbered} << 8 |
                                          uint64_t{kTaggedInlineBytes} << 16;
inline constexpr uint64_t kPlainWantWord =
    static_cast<uint64_t>(MessageType::kWant) | uint64_t{kTaggedInlineBytes} << 16;
}  // namespace internal
inline constexpr size_t kShortBytes = kTaggedInlineBytes;
// Whether a message begins so. Its common part is as decode_header() requires, then.
// Requires: 8 bytes.
inline bool is_short(const std::byte* message) {
  uint64_t first;
  std::memcpy(&first, message, sizeof(first));
  return first == internal::kNumberedWord || first == internal::kPlainWantWord;
}

// The version both sides speak, or kUnsupported naming both ranges.
Result<uint16_t> negotiate(const Hello& ours, const Hello& theirs);

}  // namespace sluice::wire

#endif  // SLUICE_WIRE_MESSAGES_H_
