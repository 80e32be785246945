// Addresses: what parses prints as a text that parses to the same.
#include <string_view>

#include "tests/fuzz/target.h"
#include "tests/wire/address_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  sluice::fuzz::require_no(sluice::wire::test::address_problem(text));
  return 0;
}
