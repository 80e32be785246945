// Judges what Address::parse made of a text. For tests and the fuzz target.
#ifndef SLUICE_TESTS_WIRE_ADDRESS_CHECK_H_
#define SLUICE_TESTS_WIRE_ADDRESS_CHECK_H_

#include <string>
#include <string_view>

namespace sluice::wire::test {

// What is wrong with the parser's answer, or nothing.
std::string address_problem(std::string_view text);

}  // namespace sluice::wire::test

#endif  // SLUICE_TESTS_WIRE_ADDRESS_CHECK_H_
