// Remote keys: 40 bytes that decode encode back to themselves; all others are refused.
#include <algorithm>

#include <sluice/api/remote_key.h>

#include "tests/fuzz/target.h"

namespace {

std::string problem_of(std::span<const std::byte> bytes) {
  auto key = sluice::RemoteKey::decode(bytes);
  bool good = bytes.size() == 40 && bytes[32] >= std::byte{1} && bytes[32] <= std::byte{7} &&
              std::ranges::all_of(bytes.subspan(33), [](std::byte b) { return b == std::byte{0}; });
  if (key.ok() != good) return good ? "a good key was refused" : "a bad key was accepted";
  if (good) return std::ranges::equal(key->encode(), bytes) ? "" : "it encodes to other bytes";
  bool reason = key.code() == sluice::Code::kInvalidArgument && !key.status().detail().empty();
  return reason ? "" : "refused without a reason";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::require_no(problem_of(std::as_bytes(std::span(data, size))));
  return 0;
}
