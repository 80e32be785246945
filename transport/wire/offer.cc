// OFFER, with the short ways of those that every step of a dataflow sends.
#include <array>
#include <cstring>
#include <string>

#include <sluice/wire/messages.h>

#include "transport/wire/codec.h"
#include "transport/wire/common_part.h"
#include "transport/wire/tlv.h"

namespace sluice::wire {

namespace {

// An OFFER that says its layout by number: no TLV. The segment's extent is at byte 20 and its
// offset at 32, which other supplies do not use; its length is the total.
constexpr size_t kNumberedBytes = kShortBytes;
using internal::kNumberedWord;

// Requires: one segment. Whole words: see encode(TaggedInline).
size_t encode_numbered(const Offer& m, std::span<std::byte> out) {
  const Segment& segment = m.segments[0];
  const uint64_t kind = static_cast<uint64_t>(OfferKind::kSupply) | uint64_t{m.layout_number} << 8 |
                        uint64_t{segment.extent} << 32;
  const uint64_t words[6] = {kNumberedWord, m.id, kind, m.about.word24(), segment.offset, m.total};
  std::memcpy(out.data(), words, kNumberedBytes);
  return kNumberedBytes;
}

}  // namespace

size_t encode(const Offer& m, std::span<std::byte> out) {
  if (m.layout_number != 0 && !m.has_layout) return encode_numbered(m, out);
  Writer w(out);
  w.put(static_cast<uint8_t>(m.about.kind()));
  w.put(m.layout_number);
  w.put(uint16_t{0});
  w.put(m.about.word20());
  w.put(m.about.word24());
  w.put(m.about.word32());
  w.put(m.total);
  for (uint32_t i = 0; i < m.segment_count; ++i) put_segment(w, m.segments[i]);
  if (m.has_layout) put_layout(w, m.layout);
  return w.finish(MessageType::kOffer, m.flags, m.id, m.payload_bytes);
}

namespace {

// Total, payload, segments and layout must tell the same story.
Status check_amounts(const Offer& offer, uint64_t in_segments) {
  auto total = [&] { return "total is " + std::to_string(offer.total); };
  if (offer.total > static_cast<uint64_t>(INT64_MAX))
    return corrupt("OFFER", total() + ", above 2^63 - 1");
  if (offer.segment_count > 0 && in_segments != offer.total) {
    return corrupt("OFFER",
                   total() + " but the segments have " + std::to_string(in_segments) + " bytes");
  }
  if ((offer.flags & Offer::kInline) != 0) {
    if (offer.payload_bytes != offer.total) {
      return corrupt("OFFER", total() + " but the inline payload has " +
                                  std::to_string(offer.payload_bytes) + " bytes");
    }
    if (offer.segment_count > 0) {
      return corrupt("OFFER", "segment count is " + std::to_string(offer.segment_count) +
                                  " beside an inline payload");
    }
  }
  if (offer.about.kind() != OfferKind::kSupply) return Status();
  if (!offer.has_layout && offer.layout_number != 0) return Status();  // who knows it looks
  if (!offer.has_layout) return corrupt("OFFER", "kind 2 (supply) without a layout");
  if (offer.layout.span_bytes() != offer.total) {
    return corrupt("OFFER", total() + " but the layout spans " +
                                std::to_string(offer.layout.span_bytes()) + " bytes");
  }
  return Status();
}

bool number_is_known(uint64_t number) { return number >= 1 && number <= kLayoutNumbers; }

// The run of a supply of this total, whose layout is a number.
bool is_run(uint64_t offset, uint64_t total) {
  uint64_t end;
  return total != 0 && total <= static_cast<uint64_t>(INT64_MAX) &&
         !__builtin_add_overflow(offset, total, &end);
}

// As encode_numbered() writes it. False: ask the long way, also for the error.
bool decode_numbered(std::span<const std::byte> header, Offer& out) {
  if (header.size() != kNumberedBytes) return false;
  uint64_t words[6];
  std::memcpy(words, header.data(), sizeof(words));
  const uint64_t number = words[2] >> 8 & 0xFF;
  const bool plain = words[0] == kNumberedWord &&
                     (words[2] & 0xFFFF00FF) == static_cast<uint64_t>(OfferKind::kSupply) &&
                     number_is_known(number) && is_run(words[4], words[5]);
  if (!plain) return false;
  const auto extent = static_cast<uint32_t>(words[2] >> 32);
  out.id = words[1];
  out.flags = Offer::kNumbered;
  out.about = OfferAbout(OfferKind::kSupply, extent, words[3], words[4]);
  out.total = words[5];
  out.payload_bytes = 0;
  out.layout_number = static_cast<uint8_t>(number);
  out.has_layout = false;
  out.segment_count = 1;
  out.segments[0] = {.extent = extent, .offset = words[4], .length = words[5]};
  return true;
}

// The same of any header. Requires: the flag, and no layout.
Status take_run(Offer& out) {
  if (out.segment_count > 0)
    return corrupt("OFFER", "segment count is " + std::to_string(out.segment_count) +
                                " beside a layout's number alone");
  if (!is_run(out.about.word32(), out.total)) {
    return corrupt("OFFER", "total is " + std::to_string(out.total) + " at offset " +
                                std::to_string(out.about.word32()) +
                                ", must be at least 1 byte and end below 2^64");
  }
  out.segment_count = 1;
  out.segments[0] = {
      .extent = out.about.word20(), .offset = out.about.word32(), .length = out.total};
  return Status();
}

Status check_number(const Offer& offer) {
  const bool numbered = (offer.flags & Offer::kNumbered) != 0;
  if (!numbered) return check_zero("OFFER", "reserved byte 17", offer.layout_number);
  if (offer.flags != Offer::kNumbered)
    return corrupt("OFFER", "flags " + hex(offer.flags) + ": 0x8 comes alone");
  if (offer.about.kind() != OfferKind::kSupply)
    return corrupt("OFFER", "flag 0x8 in another kind than 2 (supply)");
  if (!number_is_known(offer.layout_number))
    return corrupt("OFFER",
                   "layout number is " + std::to_string(offer.layout_number) + ", must be 1 to 8");
  return Status();
}

// The OFFER of every step of a dataflow: a supply of one segment with a compact layout,
// as encode() writes it. True only if every field is as the long way requires; false: ask
// that, also for the error.
bool decode_plain_supply(std::span<const std::byte> header, Offer& out) {
  constexpr size_t kSegmentAt = 48, kLayoutAt = kSegmentAt + 24, kShapeAt = kLayoutAt + 16;
  if (header.size() < kShapeAt) return false;
  auto word = [&](size_t at) {
    uint64_t value;
    std::memcpy(&value, header.data() + at, 8);
    return value;
  };
  uint64_t rank = (header.size() - kShapeAt) / 8;
  constexpr uint64_t kFirst = static_cast<uint64_t>(MessageType::kOffer);
  constexpr uint64_t kSegment = static_cast<uint64_t>(TlvType::kSegment) | uint64_t{20} << 16;
  uint64_t layout_tlv = static_cast<uint64_t>(TlvType::kLayout) | (12 + 8 * rank) << 16;
  uint64_t kind = word(16), extent = word(kSegmentAt), type = word(kLayoutAt);
  bool plain = word(0) == (kFirst | header.size() << 16) &&
               (kind & 0xFFFFFFFF) == static_cast<uint64_t>(OfferKind::kSupply) &&
               (extent & 0xFFFFFFFF) == kSegment && (type & 0xFFFFFFFF) == layout_tlv &&
               word(kLayoutAt + 8) == rank && rank <= kMaxRank &&
               header.size() == kShapeAt + 8 * rank;
  if (!plain) return false;
  Segment segment{.extent = static_cast<uint32_t>(extent >> 32),
                  .offset = word(kSegmentAt + 8),
                  .length = word(kSegmentAt + 16)};
  uint64_t total = word(40), end;
  if (segment.length != total || total == 0 || total > static_cast<uint64_t>(INT64_MAX))
    return false;
  if (__builtin_add_overflow(segment.offset, segment.length, &end)) return false;
  std::array<int64_t, kMaxRank> shape;
  std::memcpy(shape.data(), header.data() + kShapeAt, 8 * rank);
  DataType dtype{.code = static_cast<TypeCode>(type >> 32 & 0xFF),
                 .bits = static_cast<uint8_t>(type >> 40),
                 .lanes = static_cast<uint16_t>(type >> 48)};
  // Of what is not taken here all of `out` is written again.
  if (!out.layout.assign_compact(std::span<const int64_t>(shape.data(), rank), dtype) ||
      out.layout.span_bytes() != total)
    return false;
  out.id = word(8);
  out.flags = 0;
  out.about = OfferAbout(OfferKind::kSupply, static_cast<uint32_t>(kind >> 32), word(24), word(32));
  out.total = total;
  out.payload_bytes = 0;
  out.layout_number = 0;
  out.has_layout = true;
  out.segment_count = 1;
  out.segments[0] = segment;
  return true;
}

}  // namespace

Status decode(std::span<const std::byte> header, Offer& out) {
  if (decode_numbered(header, out)) [[likely]]
    return Status();
  if (decode_plain_supply(header, out)) return Status();
  Reader r(header);
  Common c;
  SLUICE_RETURN_IF_ERROR(open(MessageType::kOffer, header, r, c));
  out.id = c.id;
  out.flags = c.flags;
  out.payload_bytes = c.payload_bytes;
  auto kind = r.get<uint8_t>();
  if (kind < 1 || kind > 4) return corrupt("OFFER", "unknown kind " + std::to_string(kind));
  out.layout_number = r.get<uint8_t>();
  SLUICE_RETURN_IF_ERROR(check_zero("OFFER", "reserved word 18", r.get<uint16_t>()));
  auto word20 = r.get<uint32_t>();
  auto word24 = r.get<uint64_t>(), word32 = r.get<uint64_t>();
  out.about = OfferAbout(static_cast<OfferKind>(kind), word20, word24, word32);
  SLUICE_RETURN_IF_ERROR(check_number(out));
  out.total = r.get<uint64_t>();
  out.has_layout = false;
  out.segment_count = 0;
  uint64_t in_segments = 0;
  SLUICE_RETURN_IF_ERROR(for_each_tlv("OFFER", r, [&](uint16_t type, Reader value) -> Status {
    if (type == static_cast<uint16_t>(TlvType::kLayout))
      return take_layout("OFFER", value, out.layout, out.has_layout);
    if (type != static_cast<uint16_t>(TlvType::kSegment)) return unknown_tlv("OFFER", type);
    if (out.segment_count == kMaxSegments) return corrupt("OFFER", "segment count is above 16");
    const Segment& segment = out.segments[out.segment_count];
    SLUICE_RETURN_IF_ERROR(take_segment("OFFER", value, out.segments[out.segment_count++]));
    if (__builtin_add_overflow(in_segments, segment.length, &in_segments)) {
      return corrupt("OFFER", "segment " + std::to_string(out.segment_count - 1) + " of length " +
                                  std::to_string(segment.length) +
                                  " takes the sum beyond 2^64 - 1");
    }
    return Status();
  }));
  if (out.layout_number != 0 && !out.has_layout) {
    SLUICE_RETURN_IF_ERROR(take_run(out));
    in_segments = out.total;
  }
  return check_amounts(out, in_segments);
}

}  // namespace sluice::wire
