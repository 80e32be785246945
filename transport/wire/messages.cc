#include <sluice/wire/messages.h>

#include <algorithm>
#include <cstdio>

#include "transport/wire/codec.h"
#include "transport/wire/common_part.h"
#include "transport/wire/tlv.h"

namespace sluice::wire {

Status corrupt(const char* message, const std::string& what) {
  return Status(Code::kCorrupt, Scope::kEndpoint, "wire", std::string(message) + ": " + what);
}

namespace {

// Flags of each type that have a meaning.
constexpr std::array<uint8_t, kMessageTypeCount> kKnownFlags = {
    0,
    0,
    Offer::kInline | Offer::kReport | Offer::kDataFollows | Offer::kNumbered,
    0,
    0,
    0,
    0,
    0,
    0,
    Ping::kReply,
    0};
// Bytes of the common and fixed parts of each type.
constexpr std::array<uint16_t, kMessageTypeCount> kFixedBytes = {0,  96, 48, 48, 24, 32,
                                                                 16, 24, 32, 16, 24};

constexpr TlvType kAfter{0x8008};  // of DATA: bytes that came too early must not be placed

constexpr std::array<const char*, kMessageTypeCount> kNames = {
    "message", "HELLO",  "OFFER",  "WANT", "DATA", "DONE",
    "RELEASE", "CANCEL", "CREDIT", "PING", "BYE"};

}  // namespace

Status open(MessageType type, std::span<const std::byte> header, Reader& reader, Common& c) {
  auto index = static_cast<size_t>(type);
  if (header.size() < kFixedBytes[index]) {
    return corrupt(kNames[index], "header of " + std::to_string(header.size()) +
                                      " bytes, at least " + std::to_string(kFixedBytes[index]));
  }
  auto found = reader.get<uint8_t>();
  if (found != index) return corrupt(kNames[index], "type is " + std::to_string(found));
  c.flags = reader.get<uint8_t>();
  auto header_bytes = reader.get<uint16_t>();
  if (header_bytes != header.size()) {
    return corrupt(kNames[index], "header_bytes is " + std::to_string(header_bytes) +
                                      " in a header of " + std::to_string(header.size()) +
                                      " bytes");
  }
  c.payload_bytes = reader.get<uint32_t>();
  c.id = reader.get<uint64_t>();
  return Status();
}

Status check_zero(const char* name, const char* field, uint64_t value) {
  if (value == 0) return Status();
  return corrupt(name, std::string(field) + " is " + std::to_string(value) + ", not zero");
}

namespace {

// For messages of which no TLV is known.
Status skip_tlvs(const char* name, Reader& reader) {
  return for_each_tlv(name, reader, [&](uint16_t type, Reader) { return unknown_tlv(name, type); });
}

}  // namespace

std::string_view to_string(MessageType type) {
  auto index = static_cast<size_t>(type);
  return index > 0 && index < kNames.size() ? kNames[index] : "unknown type";
}

std::string hex(uint64_t value) {
  char text[19];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

namespace {

uint32_t most_payload(const Header& h) {
  if (h.type == MessageType::kData) return kMaxDataBytes;
  const bool carries = h.type == MessageType::kOffer && (h.flags & Offer::kInline) != 0;
  return carries ? kMaxInlineBytes : 0;
}

bool header_fits(const Header& h) {
  const auto type = static_cast<size_t>(h.type);
  return (h.flags & ~kKnownFlags[type]) == 0 && h.header_bytes >= kFixedBytes[type] &&
         h.header_bytes <= kMaxHeaderBytes && h.header_bytes % 8 == 0 &&
         h.payload_bytes <= most_payload(h);
}

// Requires: !header_fits(h). Apart from the way that every message goes: its texts take registers.
[[gnu::cold, gnu::noinline]] Status why_refused(const Header& h) {
  const auto type = static_cast<size_t>(h.type);
  const char* name = kNames[type];
  if ((h.flags & ~kKnownFlags[type]) != 0) {
    return corrupt(name, "unknown flags " + hex(h.flags) + ", known are " + hex(kKnownFlags[type]));
  }
  if (h.header_bytes < kFixedBytes[type] || h.header_bytes > kMaxHeaderBytes ||
      h.header_bytes % 8 != 0) {
    return corrupt(name, "header_bytes is " + std::to_string(h.header_bytes) +
                             ", must be a multiple of 8 from " + std::to_string(kFixedBytes[type]) +
                             " to " + std::to_string(kMaxHeaderBytes));
  }
  return corrupt(name, "payload_bytes is " + std::to_string(h.payload_bytes) + ", at most " +
                           std::to_string(most_payload(h)));
}

[[gnu::cold, gnu::noinline]] Status no_header(size_t bytes) {
  return corrupt("message", "header of " + std::to_string(bytes) + " bytes, at least 16");
}
[[gnu::cold, gnu::noinline]] Status unknown_type(uint8_t type) {
  return corrupt("message",
                 "unknown type " + std::to_string(type) + "; the peer may not speak sluice");
}

}  // namespace

Result<Header> decode_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return no_header(bytes.size());
  uint64_t first;
  std::memcpy(&first, bytes.data(), sizeof(first));
  const auto type = static_cast<uint8_t>(first);
  if (type == 0 || type >= kMessageTypeCount) return unknown_type(type);
  Header h{.type = static_cast<MessageType>(type),
           .flags = static_cast<uint8_t>(first >> 8),
           .header_bytes = static_cast<uint16_t>(first >> 16),
           .payload_bytes = static_cast<uint32_t>(first >> 32)};
  std::memcpy(&h.id, bytes.data() + 8, sizeof(h.id));
  if (!header_fits(h)) return why_refused(h);
  return h;
}

size_t encode(const Want& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(static_cast<uint8_t>(m.about.kind()));
  w.put(static_cast<uint8_t>(m.into ? 1 : 0));
  w.put(uint16_t{0});
  w.put(m.about.word20());
  w.put(m.about.word24());
  w.put(m.about.word32());
  w.put(m.about.word40());
  if (m.has_layout) put_layout(w, m.layout);
  if (!m.key.empty()) {
    w.begin_tlv(TlvType::kKey, m.key.size());
    w.put_bytes(m.key.data(), m.key.size());
    w.pad();
  }
  for (uint32_t i = 0; i < m.segment_count; ++i) put_segment(w, m.segments[i]);
  if (m.following.size() > 0) {
    w.begin_tlv(TlvType::kFollowing, m.following.bytes().size());
    w.put_bytes(m.following.bytes().data(), m.following.bytes().size());
    w.pad();
  }
  return w.finish(MessageType::kWant, 0, m.id, 0);
}

namespace {

// The WANT of every step of a dataflow: for a key that was named before, of any layout.
bool decode_plain_want(std::span<const std::byte> header, Want& out) {
  constexpr uint64_t kBytes = 48;
  if (header.size() != kBytes) return false;
  uint64_t words[6];
  std::memcpy(words, header.data(), sizeof(words));
  constexpr uint64_t kFirst = static_cast<uint64_t>(MessageType::kWant) | kBytes << 16;
  // Kind, into and the reserved word in one: without a layout there is no destination.
  const bool plain = (words[0] & 0xFFFF00FF) == (kFirst & 0xFFFF00FF) &&
                     (words[2] & 0xFFFFFFFF) == static_cast<uint64_t>(WantKind::kKey);
  if (!plain) return false;
  out.id = words[1];
  out.about = WantAbout(WantKind::kKey, static_cast<uint32_t>(words[2] >> 32), words[3], words[4],
                        words[5]);
  out.into = false;
  out.has_layout = false;
  out.key = {};
  out.following = IdList();
  out.segment_count = 0;
  return true;
}

Status take_following(Reader value, Want& out) {
  if (out.following.size() > 0) return corrupt("WANT", "following appears 2 times");
  const std::span<const std::byte> ids = value.take_rest();
  if (ids.empty() || ids.size() % 8 != 0 || ids.size() / 8 >= kMaxStepsOfWant) {
    return corrupt("WANT", "following of " + std::to_string(ids.size()) +
                               " bytes, must be 8 for each of 1 to 31 ids");
  }
  out.following = IdList(ids);
  return Status();
}

// What the steps behind the first one may stand in.
Status check_following(const Want& want) {
  const size_t count = want.following.size();
  if (want.about.kind() != WantKind::kKey || want.into)
    return corrupt("WANT", "following beside another kind than 1, or into 1");
  if (want.about.key().step >= kNextStep - count)
    return corrupt("WANT", std::to_string(count) + " steps following step " +
                               std::to_string(want.about.key().step) + ", the last is 2^64 - 3");
  return Status();
}

}  // namespace

Status decode(std::span<const std::byte> header, Want& out) {
  if (decode_plain_want(header, out)) [[likely]]
    return Status();
  Reader r(header);
  Common c;
  SLUICE_RETURN_IF_ERROR(open(MessageType::kWant, header, r, c));
  out.id = c.id;
  auto kind = r.get<uint8_t>();
  if (kind < 1 || kind > 3) return corrupt("WANT", "unknown kind " + std::to_string(kind));
  auto into = r.get<uint8_t>();
  if (into > 1) return corrupt("WANT", "into is " + std::to_string(into) + ", not 0 or 1");
  out.into = into == 1;
  SLUICE_RETURN_IF_ERROR(check_zero("WANT", "reserved word 18", r.get<uint16_t>()));
  auto word20 = r.get<uint32_t>();
  auto word24 = r.get<uint64_t>(), word32 = r.get<uint64_t>(), word40 = r.get<uint64_t>();
  out.about = WantAbout(static_cast<WantKind>(kind), word20, word24, word32, word40);
  out.has_layout = false;
  out.key = {};
  out.following = IdList();
  out.segment_count = 0;
  SLUICE_RETURN_IF_ERROR(for_each_tlv("WANT", r, [&](uint16_t type, Reader value) -> Status {
    if (type == static_cast<uint16_t>(TlvType::kLayout))
      return take_layout("WANT", value, out.layout, out.has_layout);
    if (type == static_cast<uint16_t>(TlvType::kSegment)) {
      if (out.segment_count == kMaxSegments) return corrupt("WANT", "segment count is above 16");
      return take_segment("WANT", value, out.segments[out.segment_count++]);
    }
    if (type == static_cast<uint16_t>(TlvType::kFollowing)) return take_following(value, out);
    if (type != static_cast<uint16_t>(TlvType::kKey)) return unknown_tlv("WANT", type);
    if (!out.key.empty()) return corrupt("WANT", "key appears 2 times");
    auto bytes = value.take_rest();
    if (bytes.empty() || bytes.size() > kMaxKeyBytes) {
      return corrupt("WANT",
                     "key of " + std::to_string(bytes.size()) + " bytes, must have 1 to 255");
    }
    out.key = std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return Status();
  }));
  if (out.into && !out.has_layout) return corrupt("WANT", "into is 1 without a layout");
  if (out.following.size() > 0) SLUICE_RETURN_IF_ERROR(check_following(out));
  if (out.segment_count > 0 && !out.into)
    return corrupt(
        "WANT", "segment count is " + std::to_string(out.segment_count) + " without a destination");
  return Status();
}

size_t encode(const Data& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(m.offset);
  if (m.has_after) {
    w.begin_tlv(kAfter, 8);
    w.put(m.after);
    w.pad();
  }
  return w.finish(MessageType::kData, 0, m.id, m.payload_bytes);
}

Status decode(std::span<const std::byte> header, Data& out) {
  Reader r(header);
  Common c;
  SLUICE_RETURN_IF_ERROR(open(MessageType::kData, header, r, c));
  out.id = c.id;
  out.payload_bytes = c.payload_bytes;
  out.offset = r.get<uint64_t>();
  out.has_after = false;
  out.after = 0;
  return for_each_tlv("DATA", r, [&](uint16_t type, Reader value) {
    if (type != static_cast<uint16_t>(kAfter)) return unknown_tlv("DATA", type);
    if (out.has_after) return corrupt("DATA", "after appears 2 times");
    if (value.left() != 8)
      return corrupt("DATA", "after of " + std::to_string(value.left()) + " bytes, not 8");
    out.has_after = true;
    out.after = value.get<uint64_t>();
    return Status();
  });
}

size_t encode(const Done& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(static_cast<uint32_t>(m.code));
  w.put(uint32_t{0});
  w.put(m.bytes);
  return w.finish(MessageType::kDone, 0, m.id, 0);
}

Status decode(std::span<const std::byte> header, Done& out) {
  Reader r(header);
  Common c;
  SLUICE_RETURN_IF_ERROR(open(MessageType::kDone, header, r, c));
  out.id = c.id;
  auto code = r.get<uint32_t>();
  if (code >= static_cast<uint32_t>(kCodeCount))
    return corrupt("DONE", "unknown code " + std::to_string(code));
  out.code = static_cast<Code>(code);
  SLUICE_RETURN_IF_ERROR(check_zero("DONE", "reserved word 20", r.get<uint32_t>()));
  out.bytes = r.get<uint64_t>();
  return skip_tlvs("DONE", r);
}

size_t encode(const Release& m, std::span<std::byte> out) {
  Writer w(out);
  for (uint32_t i = 0; i < m.count; ++i) w.put(m.ids[i]);
  return w.finish(MessageType::kRelease, 0, m.count, 0);
}

Status decode(std::span<const std::byte> header, Release& out) {
  // As encode() writes it: nothing but the ids.
  const size_t ids = header.size() / 8 - kHeaderBytes / 8;
  if (header.size() >= kHeaderBytes && header.size() % 8 == 0 && ids <= kMaxReleases) {
    uint64_t words[2];
    std::memcpy(words, header.data(), sizeof(words));
    constexpr uint64_t kType = static_cast<uint64_t>(MessageType::kRelease);
    if ((words[0] & 0xFFFF00FF) == (kType | header.size() << 16) && words[1] == ids) [[likely]] {
      out.count = static_cast<uint32_t>(ids);
      std::memcpy(out.ids.data(), header.data() + kHeaderBytes, 8 * ids);
      return Status();
    }
  }
  Reader r(header);
  Common c;
  SLUICE_RETURN_IF_ERROR(open(MessageType::kRelease, header, r, c));
  if (c.id > kMaxReleases)
    return corrupt("RELEASE", "count is " + std::to_string(c.id) + ", at most 32");
  if (header.size() < kHeaderBytes + 8 * c.id) {
    return corrupt("RELEASE", "count is " + std::to_string(c.id) + " in a header of " +
                                  std::to_string(header.size()) + " bytes");
  }
  out.count = static_cast<uint32_t>(c.id);
  for (uint32_t i = 0; i < out.count; ++i) out.ids[i] = r.get<uint64_t>();
  return skip_tlvs("RELEASE", r);
}

size_t encode(const Cancel& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(static_cast<uint64_t>(m.offer ? 1 : 0));
  return w.finish(MessageType::kCancel, 0, m.id, 0);
}

Status decode(std::span<const std::byte> header, Cancel& out) {
  Reader r(header);
  Common c;
  SLUICE_RETURN_IF_ERROR(open(MessageType::kCancel, header, r, c));
  out.id = c.id;
  auto offer = r.get<uint64_t>();
  if (offer > 1) return corrupt("CANCEL", "kind is " + std::to_string(offer) + ", not 0 or 1");
  out.offer = offer == 1;
  return skip_tlvs("CANCEL", r);
}

size_t encode(const Credit& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(m.messages);
  w.put(m.bytes);
  return w.finish(MessageType::kCredit, 0, 0, 0);
}

Status decode(std::span<const std::byte> header, Credit& out) {
  Reader r(header);
  Common c;
  SLUICE_RETURN_IF_ERROR(open(MessageType::kCredit, header, r, c));
  SLUICE_RETURN_IF_ERROR(check_zero("CREDIT", "id", c.id));
  out.messages = r.get<uint64_t>();
  out.bytes = r.get<uint64_t>();
  return skip_tlvs("CREDIT", r);
}

size_t encode(const Ping& m, std::span<std::byte> out) {
  Writer w(out);
  return w.finish(MessageType::kPing, m.reply ? Ping::kReply : 0, m.nonce, 0);
}

Status decode(std::span<const std::byte> header, Ping& out) {
  Reader r(header);
  Common c;
  SLUICE_RETURN_IF_ERROR(open(MessageType::kPing, header, r, c));
  out.nonce = c.id;
  out.reply = (c.flags & Ping::kReply) != 0;
  return skip_tlvs("PING", r);
}

size_t encode(const Bye& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(static_cast<uint64_t>(m.code));
  return w.finish(MessageType::kBye, 0, 0, 0);
}

Status decode(std::span<const std::byte> header, Bye& out) {
  Reader r(header);
  Common c;
  SLUICE_RETURN_IF_ERROR(open(MessageType::kBye, header, r, c));
  SLUICE_RETURN_IF_ERROR(check_zero("BYE", "id", c.id));
  auto code = r.get<uint64_t>();
  if (code >= static_cast<uint64_t>(kCodeCount))
    return corrupt("BYE", "unknown code " + std::to_string(code));
  out.code = static_cast<Code>(code);
  return skip_tlvs("BYE", r);
}

}  // namespace sluice::wire
