// Judges the decoders by docs/wire.md: what was accepted must encode back to the same
// canonical bytes, what was refused must be kCorrupt and say why. Shared by the tests
// and the fuzz targets; must not use codec.h or tlv.h.
#ifndef SLUICE_TESTS_WIRE_ORACLE_H_
#define SLUICE_TESTS_WIRE_ORACLE_H_

#include <cstddef>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <sluice/wire/messages.h>

namespace sluice::wire::test {

using Bytes = std::vector<std::byte>;
using AnyMessage = std::variant<Hello, Offer, Want, Data, Done, Release, Cancel, Credit, Ping, Bye>;

// "field value" lines, the text that golden files list beside the bytes.
std::string describe(const AnyMessage& message);
Bytes encode_any(const AnyMessage& message);

// The one encoding of what a well-formed header means: known TLVs in their order,
// layouts in their shortest form. Requires: the decoder accepted it.
Bytes canonical(std::span<const std::byte> header);

struct Verdict {
  bool accepted = false;
  size_t header_bytes = 0;   // accepted: of the message at the front
  size_t message_bytes = 0;  // with its payload, of which less may be there
  std::string text;          // accepted: describe(); refused: the status
  std::string problem;       // not empty: the decoder broke a rule of docs/wire.md
};

// Decodes the message at the front of `bytes`.
Verdict judge(std::span<const std::byte> bytes);

// Decodes message after message until one is refused or the bytes end; returns the
// first problem, or nothing.
std::string judge_stream(std::span<const std::byte> bytes);

std::string to_hex(std::span<const std::byte> bytes);

}  // namespace sluice::wire::test

#endif  // SLUICE_TESTS_WIRE_ORACLE_H_
