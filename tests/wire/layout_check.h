// Compares base's TensorDescriptor with the 128-bit oracle. For tests and fuzz targets.
#ifndef SLUICE_TESTS_WIRE_LAYOUT_CHECK_H_
#define SLUICE_TESTS_WIRE_LAYOUT_CHECK_H_

#include <string>

#include "tests/wire/layout_oracle.h"

namespace sluice::wire::test {

// What is wrong with base's answer, or nothing.
std::string disagreement(const RawLayout& layout);

}  // namespace sluice::wire::test

#endif  // SLUICE_TESTS_WIRE_LAYOUT_CHECK_H_
