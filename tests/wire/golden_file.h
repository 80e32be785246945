// Reads tests/wire/golden/*.txt: named variants, each with the "field value" lines that
// describe() gives and the bytes of the header.
#ifndef SLUICE_TESTS_WIRE_GOLDEN_FILE_H_
#define SLUICE_TESTS_WIRE_GOLDEN_FILE_H_

#include <string>
#include <vector>

#include "tests/wire/oracle.h"

namespace sluice::wire::test {

struct GoldenVariant {
  std::string name;
  std::string text;
  Bytes bytes;
};

// Ends the process if the file is missing or malformed.
std::vector<GoldenVariant> read_golden(const std::string& path);
// As the file has it.
std::string format_golden(const GoldenVariant& variant);

// Files of all message types and of the handshake, below the test's working directory.
std::vector<std::string> golden_paths();

}  // namespace sluice::wire::test

#endif  // SLUICE_TESTS_WIRE_GOLDEN_FILE_H_
