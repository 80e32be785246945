// A process without any privilege.
#ifndef SLUICE_TESTS_MODULE_NOBODY_H_
#define SLUICE_TESTS_MODULE_NOBODY_H_

#include <grp.h>
#include <unistd.h>

namespace sluice::module_test {

// In a child: from here on it is nobody's. Errors: ends the process with status 9.
inline void become_nobody() {
  constexpr uid_t kNobody = 65534;
  if (::setgroups(0, nullptr) != 0 || ::setresgid(kNobody, kNobody, kNobody) != 0 ||
      ::setresuid(kNobody, kNobody, kNobody) != 0)
    ::_exit(9);
}

}  // namespace sluice::module_test

#endif  // SLUICE_TESTS_MODULE_NOBODY_H_
