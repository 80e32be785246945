// Skips that are counted: Catch2 2.13 has no SKIP, and a check that silently
// does not run is worth less than none.
#ifndef SLUICE_TESTS_SUPPORT_SKIP_H_
#define SLUICE_TESTS_SUPPORT_SKIP_H_

#include <string_view>

namespace sluice::test {

// Reports that the running test case cannot run here and why. `feature` is a
// word such as "rdma" or "netns": when the environment variable SLUICE_REQUIRE
// lists it (comma separated) the skip is a failure instead.
//
// Use: if (!have_netns()) return skip("netns", "unshare(CLONE_NEWNET): EPERM");
void skip(std::string_view feature, std::string_view reason);

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SUPPORT_SKIP_H_
