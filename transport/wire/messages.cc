#include <sluice/wire/messages.h>

#include <algorithm>

#include "transport/wire/codec.h"
#include "transport/wire/tlv.h"

namespace sluice::wire {

Status corrupt(const char* message, const std::string& what) {
  return Status(Code::kCorrupt, Scope::kEndpoint, "wire", std::string(message) + ": " + what);
}

namespace {

// Flags of each type that have a meaning.
constexpr std::array<uint8_t, kMessageTypeCount> kKnownFlags = {
    0, 0, Offer::kInline | Offer::kReport | Offer::kDataFollows, 0, 0, 0, 0, 0, 0, Ping::kReply, 0};
// Bytes of the common and fixed parts of each type.
constexpr std::array<uint16_t, kMessageTypeCount> kFixedBytes = {0, 96, 48, 48, 24, 32, 16, 24, 32, 16, 24};

struct Common {
  uint8_t flags;
  uint32_t payload_bytes;
  uint64_t id;
};

Common common(Reader& reader) {
  Common c;
  (void)reader.get<uint8_t>();
  c.flags = reader.get<uint8_t>();
  (void)reader.get<uint16_t>();
  c.payload_bytes = reader.get<uint32_t>();
  c.id = reader.get<uint64_t>();
  return c;
}

Status finish(const char* name, const Reader& reader) {
  if (reader.failed()) return corrupt(name, "too short");
  if (!reader.at_end()) return corrupt(name, "has bytes after its last field");
  return Status();
}

bool valid_code(uint32_t code) { return code < static_cast<uint32_t>(kCodeCount); }

}  // namespace

Result<Header> decode_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return corrupt("message", "shorter than 16 bytes");
  Reader reader(bytes);
  Header h;
  auto type = reader.get<uint8_t>();
  h.flags = reader.get<uint8_t>();
  h.header_bytes = reader.get<uint16_t>();
  h.payload_bytes = reader.get<uint32_t>();
  h.id = reader.get<uint64_t>();
  if (type == 0 || type >= kMessageTypeCount) return corrupt("message", "unknown type " + std::to_string(type));
  h.type = static_cast<MessageType>(type);
  if ((h.flags & ~kKnownFlags[type]) != 0) return corrupt("message", "unknown flags " + std::to_string(h.flags));
  if (h.header_bytes < kFixedBytes[type] || h.header_bytes > kMaxHeaderBytes || h.header_bytes % 8 != 0) {
    return corrupt("message", "type " + std::to_string(type) + " with a header of " + std::to_string(h.header_bytes) + " bytes");
  }
  bool may_carry = h.type == MessageType::kData || (h.type == MessageType::kOffer && (h.flags & Offer::kInline) != 0);
  uint32_t most = h.type == MessageType::kData ? kMaxDataBytes : may_carry ? kMaxInlineBytes : 0;
  if (h.payload_bytes > most) {
    return corrupt("message", "type " + std::to_string(type) + " with a payload of " + std::to_string(h.payload_bytes) +
                                  " bytes, at most " + std::to_string(most));
  }
  return h;
}

size_t encode(const Hello& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(kMagic);
  w.put(m.min_version);
  w.put(m.max_version);
  w.put_bytes(m.host.bytes.data(), 16);
  w.put(m.network_namespace);
  w.put(m.user_namespace);
  w.put(m.uid);
  w.put(m.pid);
  w.put(m.arena_bytes);
  w.put(m.credit_messages);
  w.put(m.credit_bytes);
  w.put(uint64_t{0});  // reserved
  if (m.has_rendezvous) {
    w.begin_tlv(TlvType::kRendezvous, 32);
    w.put_bytes(m.rendezvous.bytes.data(), 16);
    w.put_bytes(m.token.bytes.data(), 16);
    w.pad();
  }
  return w.finish(MessageType::kHello, 0, m.incarnation, 0);
}

Status decode(std::span<const std::byte> header, Hello& out) {
  Reader r(header);
  out.incarnation = common(r).id;
  auto magic = r.get<uint32_t>();
  if (magic != kMagic) return corrupt("HELLO", "wrong magic " + std::to_string(magic) + "; the peer does not speak sluice");
  out.min_version = r.get<uint16_t>();
  out.max_version = r.get<uint16_t>();
  if (out.min_version > out.max_version || out.min_version == 0) return corrupt("HELLO", "versions out of order");
  auto host = r.take(16);
  if (host.size() == 16) std::memcpy(out.host.bytes.data(), host.data(), 16);
  out.network_namespace = r.get<uint64_t>();
  out.user_namespace = r.get<uint64_t>();
  out.uid = r.get<uint32_t>();
  out.pid = r.get<uint32_t>();
  out.arena_bytes = r.get<uint64_t>();
  out.credit_messages = r.get<uint64_t>();
  out.credit_bytes = r.get<uint64_t>();
  (void)r.get<uint64_t>();
  if (r.failed()) return corrupt("HELLO", "too short");
  out.has_rendezvous = false;
  return for_each_tlv("HELLO", r, [&](uint16_t type, Reader value) {
    if (type != static_cast<uint16_t>(TlvType::kRendezvous)) return unknown_tlv("HELLO", type);
    auto bytes = value.take(32);
    if (!value.at_end() || bytes.size() != 32) return corrupt("HELLO", "rendezvous is not 32 bytes");
    std::memcpy(out.rendezvous.bytes.data(), bytes.data(), 16);
    std::memcpy(out.token.bytes.data(), bytes.data() + 16, 16);
    out.has_rendezvous = true;
    return Status();
  });
}

size_t encode(const Offer& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(static_cast<uint8_t>(m.kind));
  w.put(uint8_t{0});
  w.put(uint16_t{0});
  w.put(m.epoch);
  w.put(m.a);
  w.put(m.offset);
  w.put(m.total);
  for (uint32_t i = 0; i < m.segment_count; ++i) put_segment(w, m.segments[i]);
  if (m.has_layout) put_layout(w, m.layout);
  return w.finish(MessageType::kOffer, m.flags, m.id, m.payload_bytes);
}

Status decode(std::span<const std::byte> header, Offer& out) {
  Reader r(header);
  Common c = common(r);
  out.id = c.id;
  out.flags = c.flags;
  out.payload_bytes = c.payload_bytes;
  auto kind = r.get<uint8_t>();
  if (kind < 1 || kind > 4) return corrupt("OFFER", "unknown kind " + std::to_string(kind));
  out.kind = static_cast<OfferKind>(kind);
  (void)r.get<uint8_t>();
  (void)r.get<uint16_t>();
  out.epoch = r.get<uint32_t>();
  out.a = r.get<uint64_t>();
  out.offset = r.get<uint64_t>();
  out.total = r.get<uint64_t>();
  if (r.failed()) return corrupt("OFFER", "too short");
  out.has_layout = false;
  out.segment_count = 0;
  uint64_t in_segments = 0;
  SLUICE_RETURN_IF_ERROR(for_each_tlv("OFFER", r, [&](uint16_t type, Reader value) -> Status {
    if (type == static_cast<uint16_t>(TlvType::kLayout)) return take_layout("OFFER", value, out.layout, out.has_layout);
    if (type != static_cast<uint16_t>(TlvType::kSegment)) return unknown_tlv("OFFER", type);
    if (out.segment_count == kMaxSegments) return corrupt("OFFER", "more than 16 segments");
    SLUICE_RETURN_IF_ERROR(take_segment("OFFER", value, out.segments[out.segment_count]));
    if (__builtin_add_overflow(in_segments, out.segments[out.segment_count++].length, &in_segments)) {
      return corrupt("OFFER", "segments of more than 2^64 bytes");
    }
    return Status();
  }));
  if (out.segment_count > 0 && in_segments != out.total) return corrupt("OFFER", "segments do not add up to the total");
  bool is_inline = (out.flags & Offer::kInline) != 0;
  if (is_inline && out.payload_bytes != out.total) return corrupt("OFFER", "inline payload is not the total");
  if (is_inline && out.segment_count > 0) return corrupt("OFFER", "both inline and in segments");
  if (out.total > static_cast<uint64_t>(INT64_MAX)) return corrupt("OFFER", "total above 2^63 - 1");
  if (out.kind == OfferKind::kSupply) {
    if (!out.has_layout) return corrupt("OFFER", "a supplied tensor has no layout");
    if (out.layout.span_bytes() != out.total || out.layout.byte_offset() != 0) {
      return corrupt("OFFER", "layout does not span the total");
    }
  }
  return Status();
}

size_t encode(const Want& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(static_cast<uint8_t>(m.kind));
  w.put(static_cast<uint8_t>(m.into ? 1 : 0));
  w.put(uint16_t{0});
  w.put(m.key_id);
  w.put(m.a);
  w.put(m.offset);
  w.put(m.length);
  if (m.has_layout) put_layout(w, m.layout);
  if (!m.key.empty()) {
    w.begin_tlv(TlvType::kKey, m.key.size());
    w.put_bytes(m.key.data(), m.key.size());
    w.pad();
  }
  return w.finish(MessageType::kWant, 0, m.id, 0);
}

Status decode(std::span<const std::byte> header, Want& out) {
  Reader r(header);
  out.id = common(r).id;
  auto kind = r.get<uint8_t>();
  if (kind < 1 || kind > 3) return corrupt("WANT", "unknown kind " + std::to_string(kind));
  out.kind = static_cast<WantKind>(kind);
  auto into = r.get<uint8_t>();
  if (into > 1) return corrupt("WANT", "into is " + std::to_string(into));
  out.into = into == 1;
  (void)r.get<uint16_t>();
  out.key_id = r.get<uint32_t>();
  out.a = r.get<uint64_t>();
  out.offset = r.get<uint64_t>();
  out.length = r.get<uint64_t>();
  if (r.failed()) return corrupt("WANT", "too short");
  out.has_layout = false;
  out.key = {};
  SLUICE_RETURN_IF_ERROR(for_each_tlv("WANT", r, [&](uint16_t type, Reader value) -> Status {
    if (type == static_cast<uint16_t>(TlvType::kLayout)) return take_layout("WANT", value, out.layout, out.has_layout);
    if (type != static_cast<uint16_t>(TlvType::kKey)) return unknown_tlv("WANT", type);
    auto bytes = value.take_rest();
    if (bytes.empty() || bytes.size() > kMaxKeyBytes) {
      return corrupt("WANT", "key of " + std::to_string(bytes.size()) + " bytes");
    }
    out.key = std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return Status();
  }));
  if (out.into && !out.has_layout) return corrupt("WANT", "a destination without a layout");
  return Status();
}

size_t encode(const Data& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(m.offset);
  return w.finish(MessageType::kData, 0, m.id, m.payload_bytes);
}

Status decode(std::span<const std::byte> header, Data& out) {
  Reader r(header);
  Common c = common(r);
  out.id = c.id;
  out.payload_bytes = c.payload_bytes;
  out.offset = r.get<uint64_t>();
  return finish("DATA", r);
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
  out.id = common(r).id;
  auto code = r.get<uint32_t>();
  if (!valid_code(code)) return corrupt("DONE", "unknown code " + std::to_string(code));
  out.code = static_cast<Code>(code);
  (void)r.get<uint32_t>();
  out.bytes = r.get<uint64_t>();
  return finish("DONE", r);
}

size_t encode(const Release& m, std::span<std::byte> out) {
  Writer w(out);
  for (uint32_t i = 0; i < m.count; ++i) w.put(m.ids[i]);
  return w.finish(MessageType::kRelease, 0, m.count, 0);
}

Status decode(std::span<const std::byte> header, Release& out) {
  Reader r(header);
  uint64_t count = common(r).id;
  if (count > kMaxReleases) return corrupt("RELEASE", std::to_string(count) + " ids, at most 32");
  out.count = static_cast<uint32_t>(count);
  for (uint32_t i = 0; i < out.count; ++i) out.ids[i] = r.get<uint64_t>();
  return finish("RELEASE", r);
}

size_t encode(const Cancel& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(static_cast<uint64_t>(m.offer ? 1 : 0));
  return w.finish(MessageType::kCancel, 0, m.id, 0);
}

Status decode(std::span<const std::byte> header, Cancel& out) {
  Reader r(header);
  out.id = common(r).id;
  auto offer = r.get<uint64_t>();
  if (offer > 1) return corrupt("CANCEL", "kind " + std::to_string(offer));
  out.offer = offer == 1;
  return finish("CANCEL", r);
}

size_t encode(const Credit& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(m.messages);
  w.put(m.bytes);
  return w.finish(MessageType::kCredit, 0, 0, 0);
}

Status decode(std::span<const std::byte> header, Credit& out) {
  Reader r(header);
  (void)common(r);
  out.messages = r.get<uint64_t>();
  out.bytes = r.get<uint64_t>();
  return finish("CREDIT", r);
}

size_t encode(const Ping& m, std::span<std::byte> out) {
  Writer w(out);
  return w.finish(MessageType::kPing, m.reply ? Ping::kReply : 0, m.nonce, 0);
}

Status decode(std::span<const std::byte> header, Ping& out) {
  Reader r(header);
  Common c = common(r);
  out.nonce = c.id;
  out.reply = (c.flags & Ping::kReply) != 0;
  return finish("PING", r);
}

size_t encode(const Bye& m, std::span<std::byte> out) {
  Writer w(out);
  w.put(static_cast<uint64_t>(m.code));
  return w.finish(MessageType::kBye, 0, 0, 0);
}

Status decode(std::span<const std::byte> header, Bye& out) {
  Reader r(header);
  (void)common(r);
  auto code = r.get<uint64_t>();
  if (code >= static_cast<uint64_t>(kCodeCount)) return corrupt("BYE", "unknown code " + std::to_string(code));
  out.code = static_cast<Code>(code);
  return finish("BYE", r);
}

Result<uint16_t> negotiate(const Hello& ours, const Hello& theirs) {
  uint16_t low = std::max(ours.min_version, theirs.min_version);
  uint16_t high = std::min(ours.max_version, theirs.max_version);
  if (low > high) {
    auto range = [](const Hello& h) { return std::to_string(h.min_version) + ".." + std::to_string(h.max_version); };
    return Status(Code::kUnsupported, Scope::kEndpoint, "wire",
                  "we speak versions " + range(ours) + ", the peer " + range(theirs) + "; upgrade the older side");
  }
  return high;
}

}  // namespace sluice::wire
