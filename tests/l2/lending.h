// A broker in a process of its own, and processes of other users that borrow from it. Knows no
// cases.
#ifndef SLUICE_TESTS_L2_LENDING_H_
#define SLUICE_TESTS_L2_LENDING_H_

#include <catch2/catch.hpp>

#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include <sluice/l2/carrier/broker.h>

#include "tests/l2/wire.h"

namespace sluice::test {

inline constexpr uid_t kNobody = 65534, kSomebody = 65533;

inline pid_t start(const std::function<int()>& what) {
  std::fflush(nullptr);
  pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(what());
  }
  return pid;
}
inline int exit_code(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}
// As `setpriv --reuid --clear-groups` does: no capability is left.
inline bool become(uid_t user) {
  return ::setgroups(0, nullptr) == 0 && ::setresgid(user, user, user) == 0 &&
         ::setresuid(user, user, user) == 0;
}
inline bool can_become() {
  return exit_code(start([] { return become(kNobody) ? 0 : 1; })) == 0;
}

// A broker at the interface "left" who lends to nobody (the user) only.
class Broking {
 public:
  // descriptors: that its process may have; 0: as many as this one. open: what it does when it is
  // ready.
  explicit Broking(l2::BrokerOptions options = {}, rlim_t descriptors = 0,
                   const std::function<bool()>& open = {}) {
    char name[] = "/tmp/sluice-broker-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    REQUIRE(::chmod(name, 0755) == 0);
    folder_ = name;
    path = folder_ + "/socket";
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    broker_ = start([&] {
      options.interface = "left", options.path = path, options.users = {kNobody};
      auto broker = l2::Broker::open(options);
      rlimit limit{descriptors, descriptors};
      if (descriptors != 0 && ::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
      if (broker.ok() && open && !open()) return 3;
      if (!broker.ok() || ::write(ready[1], "r", 1) != 1) return 1;
      for (;;) (void)broker->serve_one();
    });
    ::close(ready[1]);
    char byte;
    bool opened = ::read(ready[0], &byte, 1) == 1;
    ::close(ready[0]);
    REQUIRE(opened);
    ::setenv("SLUICE_L2_BROKER", path.c_str(), 1);
  }
  ~Broking() {
    kill();
    ::unsetenv("SLUICE_L2_BROKER");
    ::unlink(path.c_str());
    ::rmdir(folder_.c_str());
  }
  Broking(const Broking&) = delete;
  Broking& operator=(const Broking&) = delete;
  void kill() {
    if (broker_ <= 0) return;
    ::kill(broker_, SIGKILL);
    ::waitpid(broker_, nullptr, 0);
    broker_ = -1;
  }
  std::string path;

 private:
  std::string folder_;
  pid_t broker_ = -1;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_L2_LENDING_H_
