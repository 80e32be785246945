// The messages whose bytes are committed, built as a program would build them.
#ifndef SLUICE_TESTS_WIRE_GOLDEN_VARIANTS_H_
#define SLUICE_TESTS_WIRE_GOLDEN_VARIANTS_H_

#include <string>
#include <vector>

#include "tests/wire/oracle.h"

namespace sluice::wire::test {

struct NamedMessage {
  std::string file;  // "hello"
  std::string name;
  AnyMessage message;
};

std::vector<NamedMessage> golden_variants();

}  // namespace sluice::wire::test

#endif  // SLUICE_TESTS_WIRE_GOLDEN_VARIANTS_H_
