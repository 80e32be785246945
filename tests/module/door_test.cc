// The two doors to the sockets, socket() and /dev/sluice: for whom they are, and what they let
// through.
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/module/wire.h"
#include "tests/support/skip.h"

namespace sluice::module_test {
namespace {

Fd through_the_door(const End& end, uint16_t port) {
  Fd door(::open("/dev/sluice", O_RDWR | O_CLOEXEC));
  REQUIRE(door.value() >= 0);
  Fd made = end.space.run([&] { return Fd(::ioctl(door.value(), SLUICE_SOCKET, SOCK_CLOEXEC)); });
  REQUIRE(made.value() >= 0);
  set_timeout(made.value(), 20000);
  REQUIRE(bind_to(made.value(), end.local(port)) == 0);
  return made;
}

TEST_CASE("sockets that come from /dev/sluice are as others") {
  Module module;
  Wire wire;
  Fd server = through_the_door(wire.b, 7000), client = through_the_door(wire.a, 7001);
  CHECK(::fcntl(client.value(), F_GETFD) == FD_CLOEXEC);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  REQUIRE(send_on(client.value(), "hello") == 5);
  Received got = receive(server.value());
  CHECK(got.text == "hello");
  CHECK(send_to(server.value(), "back", got.from) == 4);
  CHECK(receive(client.value()).text == "back");
  CHECK(unload_module() == EAGAIN);
}

TEST_CASE("/dev/sluice does what it is for and nothing else, for whom the sockets are for") {
  Module module;
  struct stat device {};
  REQUIRE(::stat("/dev/sluice", &device) == 0);
  CHECK((device.st_mode & 07777) == 0600);  // a filter of socket families does not see it
  Fd door(::open("/dev/sluice", O_RDWR | O_CLOEXEC));
  REQUIRE(door.value() >= 0);
  auto refused = [&](unsigned long command, unsigned long argument) {
    return ::ioctl(door.value(), command, argument) < 0 ? errno : 0;
  };
  CHECK(refused(SLUICE_SOCKET, 1) == EINVAL);
  CHECK(refused(SLUICE_HANG_UP, 0) == ENOTTY);
  char byte;
  CHECK(::read(door.value(), &byte, 1) == -1);
  pid_t child = ::fork();
  if (child == 0) {
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(2);
    if (::open("/dev/sluice", O_RDWR | O_CLOEXEC) >= 0 || errno != EACCES) ::_exit(3);
    ::_exit(refused(SLUICE_SOCKET, 0) == EPERM ? 0 : 1);  // the door was open already
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

// By both doors: 0, or what the first that is shut says.
int tries_to_open(int door) {
  Fd one(::socket(SLUICE_FAMILY, SOCK_RDM | SOCK_CLOEXEC, 0));
  if (one.value() < 0) return errno;
  Fd other(::ioctl(door, SLUICE_SOCKET, SOCK_CLOEXEC));
  return other.value() < 0 ? errno : 0;
}

// As nobody, who has entered the namespace before; `step` does something first.
template <typename Step>
int nobody_opens(const Namespace& space, Step step) {
  Fd door(::open("/dev/sluice", O_RDWR | O_CLOEXEC));
  pid_t child = ::fork();
  if (child == 0) {
    if (::setns(space.fd(), CLONE_NEWNET) != 0 || ::setgroups(0, nullptr) != 0 ||
        ::setgid(65534) != 0 || ::setuid(65534) != 0)
      ::_exit(255);
    step();
    ::_exit(tries_to_open(door.value()));
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE(
    "who has no CAP_NET_RAW in a network namespace opens no sockets there, until its administrator "
    "lets everybody in") {
  Module module;
  Wire wire;
  auto nothing = [] {};
  CHECK(nobody_opens(wire.a.space, nothing) == EPERM);
  // A user namespace of one's own gives none in the network namespace that one came from, and all
  // in one's own.
  CHECK(nobody_opens(wire.a.space, [] {
          if (::unshare(CLONE_NEWUSER) != 0) ::_exit(254);
        }) == EPERM);
  CHECK(nobody_opens(wire.a.space, [] {
          if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) ::_exit(254);
        }) == 0);
  let_everybody_in(wire.a.space);
  CHECK(nobody_opens(wire.a.space, nothing) == 0);
  CHECK(nobody_opens(wire.b.space, nothing) == EPERM);
  let_everybody_in(wire.a.space, false);
  CHECK(nobody_opens(wire.a.space, nothing) == EPERM);
  // Only the administrator's word counts.
  CHECK(nobody_opens(wire.a.space, [] {
          Fd file(::open("/proc/sys/net/sluice/unprivileged", O_WRONLY | O_CLOEXEC));
          if (file.value() >= 0 && ::write(file.value(), "1", 1) == 1) ::_exit(253);
        }) == EPERM);
  CHECK(wire.a.space.run([] {
    Fd file(::open("/proc/sys/net/sluice/unprivileged", O_WRONLY | O_CLOEXEC));
    return ::write(file.value(), "2", 1) < 0 ? errno : 0;
  }) == EINVAL);
}

TEST_CASE("socket() of any user does not load the module: it has no alias") {
  std::ifstream file(module_file(), std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  REQUIRE(bytes.str().find(std::string("license=GPL", 12)) !=
          std::string::npos);  // where aliases would be
  CHECK(bytes.str().find("alias=") == std::string::npos);
}

void write_to(const std::string& path, const std::string& text) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_APPEND));
  INFO(path << ": " << std::strerror(errno));
  REQUIRE((file.value() >= 0 &&
           ::write(file.value(), text.data(), text.size()) == static_cast<ssize_t>(text.size())));
}

// The kernel's own trace of what is asked of security modules: none of which the guest has a rule
// for.
TEST_CASE(
    "security modules are asked for each socket, by either door, as for a user's and not the "
    "kernel's own") {
  const std::string traces = "/sys/kernel/tracing/";
  if (::access((traces + "kprobe_events").c_str(), W_OK) != 0)
    (void)::mount("none", traces.c_str(), "tracefs", 0, nullptr);
  if (::access((traces + "kprobe_events").c_str(), W_OK) != 0)
    return test::skip("kprobes", "this kernel traces no calls");
  Module module;
  write_to(traces + "kprobe_events",
           "p:sluice_asked security_socket_create family=%di:s32 kern=%cx:s32\n");
  write_to(traces + "events/kprobes/sluice_asked/enable", "1");
  Fd door(::open("/dev/sluice", O_RDWR | O_CLOEXEC));
  CHECK(tries_to_open(door.value()) == 0);
  write_to(traces + "events/kprobes/sluice_asked/enable", "0");
  std::ifstream trace(traces + "trace");
  int asked = 0, as_the_kernel = 0;
  for (std::string line; std::getline(trace, line);) {
    if (line.find("family=" + std::to_string(SLUICE_FAMILY) + " ") == std::string::npos) continue;
    ++asked;
    as_the_kernel += line.find("kern=0") == std::string::npos;
  }
  CHECK(asked == 2);
  CHECK(as_the_kernel == 0);
  write_to(traces + "kprobe_events", "-:sluice_asked\n");
}

}  // namespace
}  // namespace sluice::module_test
