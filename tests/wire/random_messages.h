// Well-formed messages from a seed, with field values that sit on edges.
#ifndef SLUICE_TESTS_WIRE_RANDOM_MESSAGES_H_
#define SLUICE_TESTS_WIRE_RANDOM_MESSAGES_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/wire/layout_oracle.h"
#include "tests/wire/oracle.h"

namespace sluice::wire::test {

class RandomMessages {
 public:
  explicit RandomMessages(uint64_t seed) : random_(seed) {}

  // The key of a Want stays valid until the next call.
  AnyMessage next(MessageType type);
  // A layout that must be accepted, of up to a few thousand elements or huge and empty.
  TensorDescriptor layout();
  // Any layout at all, mostly hostile.
  RawLayout hostile_layout();

  uint64_t below(uint64_t limit) { return random_() % limit; }
  bool chance(int percent) { return below(100) < static_cast<uint64_t>(percent); }
  uint64_t word();                       // with edges such as 0, 2^63 and 2^64 - 1 made likely
  uint64_t bits() { return random_(); }  // any

 private:
  Offer offer();
  Want want();

  std::mt19937_64 random_;
  std::string key_;
  std::vector<uint64_t> following_;
};

}  // namespace sluice::wire::test

#endif  // SLUICE_TESTS_WIRE_RANDOM_MESSAGES_H_
