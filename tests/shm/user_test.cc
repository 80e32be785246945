// Whose process is at the other end: what the kernel proves, and what it does not. Each case is two
// processes, one of which leaves its user namespace or changes its user.
#include <sluice/shm/peer_user.h>

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "tests/support/fresh_name.h"
#include "tests/support/skip.h"

namespace sluice::shm {
namespace {

constexpr uid_t kOne = 1000, kOther = 1001, kOverflow = 65534;

// What a process does to itself before it listens or connects.
using Change = std::function<void()>;

void become(uid_t uid) {
  if (::setgroups(0, nullptr) != 0 || ::setresgid(uid, uid, uid) != 0 ||
      ::setresuid(uid, uid, uid) != 0)
    std::_Exit(90);
  // As after execve() of an ordinary program.
  if (::prctl(PR_SET_DUMPABLE, 1) != 0) std::_Exit(91);
}
void leave_namespace() {
  if (::unshare(CLONE_NEWUSER) != 0) std::_Exit(92);
}
void write_file(const char* path, const std::string& text) {
  int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    std::_Exit(93);
  ::close(fd);
}
// Of those that the process is permitted: all in effect, or none ever.
void set_capabilities(bool all) {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, data) != 0) std::_Exit(88);
  for (auto& word : data) {
    if (!all) word.permitted = 0;
    word.effective = word.permitted;
    word.inheritable = 0;
  }
  if (::syscall(SYS_capset, &header, data) != 0) std::_Exit(89);
}
// A new namespace in which the user has the number that it had, and no other is mapped.
void leave_namespace_as_before() {
  const uid_t uid = ::geteuid(), gid = ::getegid();
  leave_namespace();
  write_file("/proc/self/setgroups", "deny");
  write_file("/proc/self/uid_map", std::to_string(uid) + " " + std::to_string(uid) + " 1");
  write_file("/proc/self/gid_map", std::to_string(gid) + " " + std::to_string(gid) + " 1");
  if (::prctl(PR_SET_DUMPABLE, 1) != 0) std::_Exit(94);
}

void hide_proc() {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("none", "/proc", "tmpfs", 0, nullptr) != 0)
    std::_Exit(87);
}
bool handles_tell_namespaces() {
  int own = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  int space = own < 0 ? -1 : ::ioctl(own, _IO(0xFF, 9), 0);  // PIDFD_GET_USER_NAMESPACE
  if (space >= 0) ::close(space);
  if (own >= 0) ::close(own);
  return space >= 0;
}

struct Verdict {
  bool ok = false;
  std::string text;
  uint32_t uid = 0;
};

sockaddr_un address_of(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// In a process of its own: says what check_peer() says of `socket`, down a pipe.
void tell(int pipe, int socket) {
  Result<PeerUser> peer = check_peer(socket);
  Verdict verdict{.ok = peer.ok(),
                  .text = peer.ok() ? "" : peer.status().to_string(),
                  .uid = peer.ok() ? peer->uid : 0};
  std::string line = (verdict.ok ? "1" : "0") + std::to_string(verdict.uid) + "|" + verdict.text;
  if (::write(pipe, line.data(), line.size()) < 0) std::_Exit(95);
}

// Reads to the end.
std::string all_of(int pipe) {
  std::string text;
  char room[512];
  for (ssize_t n; (n = ::read(pipe, room, sizeof(room))) > 0;)
    text.append(room, static_cast<size_t>(n));
  return text;
}

Verdict parse(const std::string& line) {
  REQUIRE(line.size() > 2);
  size_t bar = line.find('|');
  REQUIRE(bar != std::string::npos);
  return {.ok = line[0] == '1',
          .text = line.substr(bar + 1),
          .uid = static_cast<uint32_t>(std::strtoul(line.c_str() + 1, nullptr, 10))};
}

struct Pipe {
  Pipe() { REQUIRE(::pipe2(ends, O_CLOEXEC) == 0); }
  ~Pipe() {
    close_write();
    ::close(ends[0]);
  }
  void close_write() {
    if (ends[1] >= 0) ::close(std::exchange(ends[1], -1));
  }
  int ends[2];
};

// What a listener says of whoever connects to it, and the other way round.
struct Both {
  Verdict listener, caller;
};

Both meet(const Change& listener_first, const Change& caller_first) {
  std::string name = test::fresh_name("user-test");
  socklen_t length;
  sockaddr_un address = address_of(name, length);
  Pipe listening, of_listener, of_caller;
  // A caller that has ended is no peer: it waits until the listener has looked.
  Pipe looked;
  pid_t listener = ::fork();
  if (listener == 0) {
    listener_first();
    int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(fd, 1) != 0)
      std::_Exit(1);
    listening.close_write();
    int peer = ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
    tell(of_listener.ends[1], peer);
    looked.close_write();
    char byte;
    (void)!::read(peer, &byte, 1);  // until the caller has looked, too
    std::_Exit(0);
  }
  pid_t caller = ::fork();
  if (caller == 0) {
    listening.close_write();
    looked.close_write();
    of_listener.close_write();
    caller_first();
    (void)all_of(listening.ends[0]);
    int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) std::_Exit(1);
    tell(of_caller.ends[1], fd);
    (void)all_of(looked.ends[0]);
    std::_Exit(0);
  }
  for (Pipe* pipe : {&listening, &looked, &of_listener, &of_caller}) pipe->close_write();
  std::string heard[2] = {all_of(of_listener.ends[0]), all_of(of_caller.ends[0])};
  for (pid_t child : {listener, caller}) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    INFO("a process ended with " << status);
    REQUIRE(status == 0);
  }
  return {parse(heard[0]), parse(heard[1])};
}

void check_refused(const Verdict& verdict, const char* because) {
  INFO(verdict.text);
  CHECK_FALSE(verdict.ok);
  CHECK(verdict.text.find("kAccessDenied") != std::string::npos);
  CHECK(verdict.text.find(because) != std::string::npos);
}
void check_taken(const Both& both, uid_t uid) {
  for (const Verdict* verdict : {&both.listener, &both.caller}) {
    INFO(verdict->text);
    CHECK(verdict->ok);
    CHECK(verdict->uid == uid);
  }
}

bool can_become() {
  pid_t child = ::fork();
  if (child == 0) {
    become(kOne);
    leave_namespace();
    std::_Exit(0);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && status == 0;
}
#define NEEDS_USERS() \
  if (!can_become()) return test::skip("users", "this test needs root, and user namespaces")

TEST_CASE("two processes of one user are taken for that, whatever the user", "[shm]") {
  NEEDS_USERS();
  for (uid_t uid : {uid_t{0}, kOne, kOverflow}) {
    INFO("user " << uid);
    check_taken(meet(
                    [=] {
                      if (uid != 0) become(uid);
                    },
                    [=] {
                      if (uid != 0) become(uid);
                    }),
                uid);
  }
}

TEST_CASE("another user is refused by both", "[shm]") {
  NEEDS_USERS();
  Both both = meet([] { become(kOne); }, [] { become(kOther); });
  check_refused(both.listener, "the peer runs as user 1001, we as 1000");
  check_refused(both.caller, "the peer runs as user 1000, we as 1001");
}

TEST_CASE(
    "the number of all unmapped users is nobody's, seen from a namespace that leaves users out",
    "[shm]") {
  NEEDS_USERS();
  // Inside, both the process itself and every user outside are shown as 65534.
  Both both = meet([] { become(kOther), leave_namespace(); }, [] { become(kOne); });
  check_refused(both.listener, "the kernel does not prove that process");
  check_refused(both.caller, "the peer runs as user 1001, we as 1000");
  both = meet([] { become(kOne); }, [] { become(kOther), leave_namespace(); });
  check_refused(both.listener, "the peer runs as user 1001, we as 1000");
  check_refused(both.caller, "the kernel does not prove that process");
}

TEST_CASE("the same user in another user namespace is refused by both", "[shm]") {
  NEEDS_USERS();
  Both both = meet([] { become(kOne), leave_namespace_as_before(); }, [] { become(kOne); });
  check_refused(both.listener, "user namespace");
  check_refused(both.caller, "is in another user namespace");
  both = meet([] { become(kOne); }, [] { become(kOne), leave_namespace_as_before(); });
  check_refused(both.listener, "is in another user namespace");
  check_refused(both.caller, "user namespace");
}

// Since Linux 6.11 a process's handle tells its namespace as well.
TEST_CASE(
    "where /proc tells nothing the kernel is asked for the namespaces, and proves both halves",
    "[shm]") {
  NEEDS_USERS();
  if (!handles_tell_namespaces()) {
    Both neither = meet([] { hide_proc(), become(kOne); }, [] { hide_proc(), become(kOne); });
    check_refused(neither.listener, "our own cannot be read");
    return check_refused(neither.caller, "our own cannot be read");
  }
  check_taken(meet([] { hide_proc(), become(kOne); }, [] { hide_proc(), become(kOne); }), kOne);
  Both both = meet([] { hide_proc(), become(kOne); },
                   [] { become(kOne), leave_namespace_as_before(), hide_proc(); });
  check_refused(both.listener, "is in another user namespace");
  check_refused(both.caller, "user namespace");
}

TEST_CASE("a process that may not be looked into has no proof of its namespace", "[shm]") {
  NEEDS_USERS();
  Both both = meet([] { become(kOne); },
                   [] { become(kOne), leave_namespace_as_before(), ::prctl(PR_SET_DUMPABLE, 0); });
  check_refused(both.listener, "the kernel does not prove that process");
}

// Two users inside one namespace that maps neither are both 65534 there. Root of the parent may
// enter it.
TEST_CASE("inside one namespace two unmapped users are told apart, and one and the same is taken",
          "[shm]") {
  NEEDS_USERS();
  // Holds the namespace open.
  Pipe ready, done;
  pid_t holder = ::fork();
  if (holder == 0) {
    done.close_write();
    become(kOne);
    leave_namespace();
    if (::prctl(PR_SET_DUMPABLE, 1) != 0) std::_Exit(1);
    ready.close_write();
    (void)all_of(done.ends[0]);
    std::_Exit(0);
  }
  ready.close_write();
  (void)all_of(ready.ends[0]);
  std::string path = "/proc/" + std::to_string(holder) + "/ns/user";
  auto enter_as = [path, &done](uid_t uid, bool with_capabilities = false) {
    return [path, uid, with_capabilities, &done] {
      done.close_write();
      int space = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (space < 0) std::_Exit(96);
      // Inside nobody may become a user that is not mapped: so before, with the right to enter
      // kept.
      if (::prctl(PR_SET_KEEPCAPS, 1) != 0 || ::setgroups(0, nullptr) != 0 ||
          ::setresgid(uid, uid, uid) != 0)
        std::_Exit(97);
      if (::setresuid(uid, uid, uid) != 0) std::_Exit(97);
      set_capabilities(true);
      if (::setns(space, CLONE_NEWUSER) != 0) std::_Exit(98);
      if (!with_capabilities) set_capabilities(false);
      if (::prctl(PR_SET_DUMPABLE, 1) != 0) std::_Exit(99);
    };
  };
  Both same = meet(enter_as(kOne), enter_as(kOne));
  check_taken(same, kOverflow);
  Both different = meet(enter_as(kOne), enter_as(kOther));
  check_refused(different.listener, "");
  check_refused(different.caller, "");
  // Who may look into everybody learns nothing by being able to.
  different = meet(enter_as(kOne, true), enter_as(kOther));
  check_refused(different.listener,
                "stands for every user that this user namespace has no number for");
  check_refused(different.caller, "");
  done.close_write();
  int status = 0;
  CHECK(::waitpid(holder, &status, 0) == holder);
}

TEST_CASE("a map of ids is whole if it leaves none out", "[shm]") {
  CHECK(maps_every_id("         0          0 4294967295\n"));
  CHECK(maps_every_id("0 0 1\n1 100000 4294967294\n"));
  CHECK_FALSE(maps_every_id("0 1000 1\n"));
  CHECK_FALSE(maps_every_id("0 0 4294967294\n"));
  CHECK_FALSE(maps_every_id("0 100000 65536\n65536 1 1\n"));
  for (const char* text : {"", "\n", "0", "0 0", "x"}) CHECK_FALSE(maps_every_id(text));
}

}  // namespace
}  // namespace sluice::shm
