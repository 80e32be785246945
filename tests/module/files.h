// A file from one end of a wire to the other, by each of several ways.
#ifndef SLUICE_TESTS_MODULE_FILES_H_
#define SLUICE_TESTS_MODULE_FILES_H_

#include <cstddef>
#include <cstdint>

#include "tests/module/lines.h"

namespace sluice::module_test {

constexpr size_t kFileBytes = 8 << 20;

enum Way { kByTcp, kBySendfile, kByPacket, kByMessages, kByMemory, kByRxe, kWays };
const char* name_of(Way way);
bool usable(Way way, const Place& place);

struct Fetched {
  double us = 0;
  uint64_t calls[2] =
      {};  // of who fetches, and of who has the file; 0 if they were not to be counted
};
// Wire.a fetches what wire.b has, and compares it. `port`: another each time.
Fetched fetch_file(Way way, const Place& place, uint16_t port, bool count_calls);

}  // namespace sluice::module_test

#endif  // SLUICE_TESTS_MODULE_FILES_H_
