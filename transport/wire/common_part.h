// What all messages begin with, for their decoders. Private to wire.
#ifndef SLUICE_WIRE_COMMON_PART_H_
#define SLUICE_WIRE_COMMON_PART_H_

#include "transport/wire/codec.h"

namespace sluice::wire {

struct Common {
  uint8_t flags = 0;
  uint32_t payload_bytes = 0;
  uint64_t id = 0;
};

// Reads the common part. After it the fixed part of `type` is known to be there, and
// the reader ends where the message says it ends.
Status open(MessageType type, std::span<const std::byte> header, Reader& reader, Common& c);

Status check_zero(const char* name, const char* field, uint64_t value);

}  // namespace sluice::wire

#endif  // SLUICE_WIRE_COMMON_PART_H_
