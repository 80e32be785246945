// One message type: SLUICE_FUZZ_TYPE says which. What is accepted must encode back to
// its canonical bytes, what is refused must say why.
#include <algorithm>
#include <vector>

#include "tests/fuzz/target.h"
#include "tests/wire/oracle.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::wire;
  if (size < kHeaderBytes || size > kMaxHeaderBytes + 64) return 0;
  test::Bytes bytes(size);
  std::transform(data, data + size, bytes.begin(), [](uint8_t b) { return std::byte{b}; });
  bytes[0] = std::byte{SLUICE_FUZZ_TYPE};
  // Odd inputs keep their length field; the others get the one that fits, to reach deeper.
  if (size % 8 == 0) {
    bytes[2] = static_cast<std::byte>(size & 0xff);
    bytes[3] = static_cast<std::byte>(size >> 8);
  }
  sluice::fuzz::require_no(test::judge(bytes).problem);
  return 0;
}
