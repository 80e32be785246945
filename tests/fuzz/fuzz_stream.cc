// A stream of messages of any type with their payloads, as a path receives them, and
// the common header alone.
#include <algorithm>

#include "tests/fuzz/target.h"
#include "tests/wire/oracle.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::wire;
  test::Bytes bytes(size);
  std::transform(data, data + size, bytes.begin(), [](uint8_t b) { return std::byte{b}; });
  sluice::fuzz::require_no(test::judge_stream(bytes));
  return 0;
}
