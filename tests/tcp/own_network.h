// Something that a test does in a child with a network of its own, where nothing but the loopback
// interface is.
#ifndef SLUICE_TESTS_TCP_OWN_NETWORK_H_
#define SLUICE_TESTS_TCP_OWN_NETWORK_H_

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include <catch2/catch.hpp>

#include <sluice/base/descriptor.h>

namespace sluice::tcp::testing {

inline bool set_loopback_up(bool up) {
  Descriptor fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  if (::ioctl(fd.value(), SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags =
      static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  return ::ioctl(fd.value(), SIOCSIFFLAGS, &request) == 0;
}

// Returns the child's exit code; -1: no such namespace here.
template <typename Run>
int in_own_network(Run run) {
  constexpr int kNoNamespace = 77;
  pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    bool ready = (::unshare(CLONE_NEWNET) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) &&
                 set_loopback_up(true);
    std::_Exit(ready ? run() : kNoNamespace);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status) == kNoNamespace ? -1 : WEXITSTATUS(status);
}

}  // namespace sluice::tcp::testing

#endif  // SLUICE_TESTS_TCP_OWN_NETWORK_H_
