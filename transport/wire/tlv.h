// The TLVs that several messages share. Private to wire.
#ifndef SLUICE_WIRE_TLV_H_
#define SLUICE_WIRE_TLV_H_

#include "transport/wire/codec.h"

namespace sluice::wire {

void put_segment(Writer& writer, const Segment& segment);
Status take_segment(const char* message, Reader& value, Segment& out);

// Layout: code u8, bits u8, lanes u16 | rank u8, form u8, zero u16, zero u32 |
// shape i64 per dimension | strides i64 per dimension if form is 1.
void put_layout(Writer& writer, const TensorDescriptor& layout);
Status take_layout(const char* message, Reader& value, TensorDescriptor& out, bool& seen);

inline Status unknown_tlv(const char* message, uint16_t type) {
  if ((type & kTlvCritical) == 0) return Status();
  return corrupt(message, "unknown critical TLV " + hex(type));
}

// Calls visit(type, value) for each TLV up to the end of the message.
template <typename Visit>
Status for_each_tlv(const char* message, Reader& reader, Visit&& visit) {
  while (!reader.at_end()) {
    auto type = reader.get<uint16_t>();
    auto length = reader.get<uint16_t>();
    auto value = reader.take(length);
    // Messages are multiples of 8 long and TLVs start at multiples of 8: a value that
    // fits has room for its padding.
    auto padding = reader.take((8 - (4 + size_t{length}) % 8) % 8);
    if (reader.failed()) {
      return corrupt(message, "TLV " + hex(type) + " of length " + std::to_string(length) +
                                  " reaches beyond the message");
    }
    for (std::byte b : padding) {
      if (b != std::byte{0}) {
        return corrupt(message, "padding of TLV " + hex(type) + " has " +
                                    hex(static_cast<uint8_t>(b)) + ", not zero");
      }
    }
    SLUICE_RETURN_IF_ERROR(visit(type, Reader(value)));
  }
  return Status();
}

}  // namespace sluice::wire

#endif  // SLUICE_WIRE_TLV_H_
