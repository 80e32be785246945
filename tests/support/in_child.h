// Something that a process does to itself for good, such as giving up privileges, done in a
// child. Knows nothing of what that is.
#ifndef SLUICE_TESTS_SUPPORT_IN_CHILD_H_
#define SLUICE_TESTS_SUPPORT_IN_CHILD_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include <catch2/catch.hpp>

namespace sluice::test {

// What `work` returns in a child of this process; waits for it. 0 is the usual sign that all
// was well, other numbers say what was not. The child leaves by _Exit().
inline int in_child(int (*work)()) {
  pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) std::_Exit(work());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SUPPORT_IN_CHILD_H_
