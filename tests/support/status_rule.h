// What the text of an error must have: a cause and a remedy. Pure.
#ifndef SLUICE_TESTS_SUPPORT_STATUS_RULE_H_
#define SLUICE_TESTS_SUPPORT_STATUS_RULE_H_

#include <string>

#include <sluice/base/status.h>

namespace sluice::test {

// Empty: nothing. Else "a cause" or "a remedy".
std::string what_lacks(const Status& status);

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SUPPORT_STATUS_RULE_H_
