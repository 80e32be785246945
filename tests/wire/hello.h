// All that the tests of the wire format know of HELLO: a new field of it changes this pair, the
// golden file and the second decoder (decode_golden.py). Must not use codec.h or tlv.h.
#ifndef SLUICE_TESTS_WIRE_HELLO_H_
#define SLUICE_TESTS_WIRE_HELLO_H_

#include <cstdint>
#include <string>
#include <vector>

#include <sluice/wire/messages.h>

namespace sluice::wire::test {

class RandomMessages;

// "field value" lines, as describe() of other messages.
std::string describe_hello(const Hello& hello);
// Types of its TLVs, in the order of the one encoding.
const std::vector<uint16_t>& hello_tlvs();
Hello random_hello(RandomMessages& random);

struct NamedHello {
  std::string file;
  std::string name;
  Hello hello;
};
// Those whose bytes are committed.
std::vector<NamedHello> hello_variants();

}  // namespace sluice::wire::test

#endif  // SLUICE_TESTS_WIRE_HELLO_H_
