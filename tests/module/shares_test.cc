// What one user may take of the module, and whose memory it counts as.
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <vector>

#include "tests/module/nobody.h"
#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

TEST_CASE(
    "an unprivileged process may not take an administrator's port, nor more sessions than there "
    "are") {
  Module module;
  Wire wire;
  pid_t child = ::fork();
  if (child == 0) {
    Fd low = open_socket(wire.a.space), many = open_socket(wire.a.space, SOCK_NONBLOCK);
    become_nobody();
    if (bind_to(low.value(), wire.a.local(1023)) != EACCES) ::_exit(1);
    if (bind_to(low.value(), wire.a.local(1024)) != 0) ::_exit(2);
    int most = SLUICE_MAX_PEERS;
    ::setsockopt(many.value(), SOL_SLUICE, SLUICE_PEERS, &most, sizeof(most));
    int sent = 0;
    for (uint16_t port = 1; port <= 400; ++port)
      sent += send_to(many.value(), "x", seen_from(wire.a, wire.b, port)) == 1;
    ::_exit(sent == SLUICE_MAX_PEERS ? 0 : 3);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a user takes his share of the sessions, and leaves the rest to others") {
  Module module("max_sessions_per_user=40");
  Wire wire;
  let_everybody_in(wire.a.space);
  Fd other = bound_socket(wire.b, 7000), own = open_socket(wire.a.space);
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  pid_t child = ::fork();
  if (child == 0) {
    if (::setns(wire.a.space.fd(), CLONE_NEWNET) != 0) ::_exit(8);
    become_nobody();
    int sent = 0;
    std::vector<Fd> many;
    for (int i = 0; i < 4; ++i) {
      many.emplace_back(::socket(SLUICE_FAMILY, SOCK_RDM | SOCK_NONBLOCK, 0));
      for (uint16_t port = 1; port <= 20; ++port)
        sent += send_to(many.back().value(), "x", seen_from(wire.a, wire.b, port)) == 1;
    }
    char told = static_cast<char>(sent);
    if (::write(ready[1], &told, 1) != 1) ::_exit(1);
    ::pause();
  }
  char sent = 0;
  REQUIRE(::read(ready[0], &sent, 1) == 1);
  CHECK(sent == 40);
  CHECK(connect_to(own.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

// A cgroup of its own for a process. Its last charges may go a little later than the process.
struct Cgroup {
  Cgroup() {
    std::ofstream("/sys/fs/cgroup/cgroup.subtree_control") << "+memory";
    REQUIRE(::mkdir("/sys/fs/cgroup/sluice_test", 0755) == 0);
  }
  ~Cgroup() {
    int error = EBUSY;
    for (int tries = 0; tries < 5000 && error == EBUSY; ++tries) {
      error = ::rmdir("/sys/fs/cgroup/sluice_test") == 0 ? 0 : errno;
      if (error == EBUSY) ::poll(nullptr, 0, 1);
    }
    CHECK(error == 0);
  }
  static void enter() { std::ofstream("/sys/fs/cgroup/sluice_test/cgroup.procs") << ::getpid(); }
};

uint64_t counted_bytes() {
  std::ifstream file("/sys/fs/cgroup/sluice_test/memory.current");
  uint64_t bytes = 0;
  file >> bytes;
  return bytes;
}

// In a cgroup of its own: makes rings by sockets that it keeps. 0: they were counted.
int make_rings(const Wire& wire) {
  Cgroup::enter();
  uint64_t before = counted_bytes();
  if (before == 0) return 2;
  constexpr int kRings = 64;
  std::vector<Fd> sockets;
  for (int i = 0; i < kRings; ++i) {
    int entries = SLUICE_MAX_RING;
    sockets.push_back(open_socket(wire.a.space));
    if (::setsockopt(sockets.back().value(), SOL_SLUICE, SLUICE_RING, &entries, sizeof(entries)) !=
        0)
      return 3;
  }
  return counted_bytes() - before >= kRings * SLUICE_MAX_RING * sizeof(sluice_completion) ? 0 : 4;
}

TEST_CASE("the memory of completion rings counts where the process's other memory does") {
  Module module;
  Wire wire;
  Cgroup cgroup;
  pid_t child = ::fork();
  if (child == 0) ::_exit(make_rings(wire));
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("sessions that strangers begin count where the listener's memory does") {
  constexpr uint64_t kSessions = 48, kLeastBytes = 40 << 10;
  Module module;
  Wire wire;
  Cgroup cgroup;
  int ready[2], stay[2];
  REQUIRE((::pipe(ready) == 0 && ::pipe(stay) == 0));
  pid_t child = ::fork();
  if (child == 0) {
    ::close(stay[1]);
    Cgroup::enter();
    Fd listener = bound_socket(wire.b, 7000);
    int most = SLUICE_MAX_PEERS;
    ::setsockopt(listener.value(), SOL_SLUICE, SLUICE_PEERS, &most, sizeof(most));
    char word = 1;
    if (::write(ready[1], &word, 1) != 1) ::_exit(1);
    ::_exit(::read(stay[0], &word, 1) == 0 ? 0 : 1);
  }
  char word = 0;
  REQUIRE(::read(ready[0], &word, 1) == 1);
  uint64_t before = counted_bytes();
  CHECK(before > 0);
  std::vector<Fd> callers;
  for (uint64_t i = 0; i < kSessions; ++i) {
    callers.push_back(open_socket(wire.a.space));
    REQUIRE(connect_to(callers.back().value(), seen_from(wire.a, wire.b, 7000)) == 0);
  }
  CHECK(counted_bytes() >= before + kSessions * kLeastBytes);
  ::close(stay[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
  for (int fd : {ready[0], ready[1], stay[0]}) ::close(fd);
}

}  // namespace
}  // namespace sluice::module_test
