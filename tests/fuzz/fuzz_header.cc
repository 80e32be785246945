// decode_header() alone: its verdict by the tables of docs/wire.md.
#include <cstring>

#include <sluice/wire/messages.h>

#include "tests/fuzz/target.h"

namespace {

std::string problem_of(std::span<const std::byte> bytes) {
  static constexpr uint16_t kLeast[] = {0, 96, 48, 48, 24, 32, 16, 24, 32, 16, 24};
  static constexpr uint8_t kFlags[] = {0, 0, 7, 0, 0, 0, 0, 0, 0, 1, 0};
  auto header = sluice::wire::decode_header(bytes);
  if (!header.ok() &&
      (header.code() != sluice::Code::kCorrupt || header.status().detail().empty())) {
    return "refused without a reason";
  }
  if (bytes.size() < 16) return header.ok() ? "a short header was accepted" : "";
  auto type = static_cast<uint8_t>(bytes[0]);
  auto flags = static_cast<uint8_t>(bytes[1]);
  uint16_t length;
  uint32_t payload;
  uint64_t id;
  std::memcpy(&length, bytes.data() + 2, 2);
  std::memcpy(&payload, bytes.data() + 4, 4);
  std::memcpy(&id, bytes.data() + 8, 8);
  bool good = type >= 1 && type <= 10 && (flags & ~kFlags[type]) == 0 && length >= kLeast[type] &&
              length <= 1024 && length % 8 == 0;
  uint32_t most = !good ? 0 : type == 4 ? 4194304 : type == 2 && (flags & 1) != 0 ? 65536 : 0;
  good = good && payload <= most;
  if (header.ok() != good) return good ? "a good header was refused" : "a bad header was accepted";
  if (good &&
      (static_cast<uint8_t>(header->type) != type || header->flags != flags ||
       header->header_bytes != length || header->payload_bytes != payload || header->id != id)) {
    return "a field was misread";
  }
  return {};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::require_no(problem_of(std::as_bytes(std::span(data, size))));
  return 0;
}
