// The sockets as honest processes use them. For whom they are: door_test.cc.
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/sockios.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>

#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

std::string pattern(size_t bytes, unsigned seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + seed);
  return text;
}

TEST_CASE("two processes in two namespaces exchange messages, connected and not") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  pid_t child = ::fork();
  if (child == 0) {
    for (unsigned i = 0; i < 200; ++i) {
      Received got = receive(server.value());
      if (got.result < 0 || send_to(server.value(), got.text, got.from) != got.result) ::_exit(1);
    }
    ::_exit(0);
  }
  for (unsigned i = 0; i < 200; ++i) {
    std::string text = pattern(i * 28 % (SLUICE_MAX_MESSAGE + 1), i);
    REQUIRE(send_on(client.value(), text) == static_cast<int>(text.size()));
    Received back = receive(client.value());
    REQUIRE(back.result == static_cast<int>(text.size()));
    REQUIRE(back.text == text);
    REQUIRE(back.from.port == 7000);
    REQUIRE((back.flags & MSG_EOR) != 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  sluice_status said{};
  socklen_t length = sizeof(said);
  REQUIRE(::getsockopt(client.value(), SOL_SLUICE, SLUICE_STATUS, &said, &length) == 0);
  CHECK(said.state == 2);
  CHECK(said.frames_sent >= 200);
}

// A process that stops at its system calls, to be counted.
template <typename Call>
pid_t traced(Call call) {
  pid_t child = ::fork();
  if (child != 0) return child;
  ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  ::raise(SIGSTOP);
  bool good = call();
  ::_exit(good ? 0 : 1);
}

struct Counted {
  pid_t pid;
  int stops = 0, status = -1;  // a call stops twice: before and after
};

// Until both have ended.
void count_calls(Counted (&both)[2]) {
  for (int running = 2; running > 0;) {
    int status = 0;
    pid_t pid = ::waitpid(-1, &status, 0);
    REQUIRE(pid > 0);
    for (Counted& one : both) {
      if (one.pid != pid) continue;
      if (WIFSTOPPED(status)) {
        one.stops += WSTOPSIG(status) == (SIGTRAP | 0x80);
        ::ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
        REQUIRE(::ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr) == 0);
      } else {
        one.status = status;
        --running;
      }
    }
  }
}

TEST_CASE("a message costs one system call at each end") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  constexpr int kMessages = 100;
  const std::string text = pattern(64, 1);
  Counted both[2] = {
      {.pid = traced([&] {
         for (int i = 0; i < kMessages; ++i)
           if (send_on(client.value(), text) != 64 || receive(client.value()).text != text)
             return false;
         return true;
       })},
      {.pid = traced([&] {
         for (int i = 0; i < kMessages; ++i) {
           Received got = receive(server.value());
           if (send_to(server.value(), got.text, got.from) != 64) return false;
         }
         return true;
       })}};
  count_calls(both);
  // The last is exit_group(), from which nobody comes back.
  for (const Counted& one : both) {
    CHECK(one.status == 0);
    CHECK(one.stops == 2 * 2 * kMessages + 1);
  }
}

TEST_CASE("messages that nobody reads stop the sender, and come in order when somebody does") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  int room = 20000;
  REQUIRE(::setsockopt(server.value(), SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)) == 0);
  set_timeout(client.value(), 300);
  unsigned sent = 0;
  int last = 0;
  while (sent < 10000 && (last = send_on(client.value(), pattern(1000, sent))) == 1000) ++sent;
  CHECK(last == -EAGAIN);
  CHECK(sent >= 10);
  CHECK(sent < 200);
  pollfd wait{.fd = client.value(), .events = POLLOUT, .revents = 0};
  CHECK(::poll(&wait, 1, 0) == 0);
  for (unsigned i = 0; i < sent; ++i) REQUIRE(receive(server.value()).text == pattern(1000, i));
  CHECK(::poll(&wait, 1, 20000) == 1);
  CHECK(wait.revents == POLLOUT);
}

TEST_CASE("a port is one socket's, and free again when it is closed") {
  Module module;
  Wire wire;
  Fd first = bound_socket(wire.a, 7000), second = open_socket(wire.a.space);
  CHECK(bind_to(second.value(), wire.a.local(7000)) == EADDRINUSE);
  first.reset();
  CHECK(bind_to(second.value(), wire.a.local(7000)) == 0);
  CHECK(bind_to(second.value(), wire.a.local(7001)) == EINVAL);
  Fd any = bound_socket(wire.a, 0);
  sockaddr_sluice name{};
  socklen_t length = sizeof(name);
  REQUIRE(::getsockname(any.value(), reinterpret_cast<sockaddr*>(&name), &length) == 0);
  CHECK(length == sizeof(name));
  CHECK(name.port >= 32768);
  CHECK(std::memcmp(name.mac, wire.a.mac, 6) == 0);
}

TEST_CASE("nobody at a port is refused if the port is a socket's, and silent otherwise") {
  Module module;
  Wire wire;
  Fd client = open_socket(wire.a.space), other = bound_socket(wire.b, 7000);
  int dead = 300;
  REQUIRE(::setsockopt(client.value(), SOL_SLUICE, SLUICE_DEAD_MS, &dead, sizeof(dead)) == 0);
  CHECK(connect_to(client.value(), seen_from(wire.a, wire.b, 7001)) == ETIMEDOUT);
  // A connected socket hears its peer only.
  Fd third = bound_socket(wire.a, 7003);
  REQUIRE(connect_to(other.value(), seen_from(wire.b, wire.a, 7003)) == 0);
  CHECK(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == ECONNREFUSED);
}

TEST_CASE("who does not wait for a connection hears that it was refused, however soon that was") {
  Module module;
  Wire wire;
  Fd other = bound_socket(wire.b, 7000), third = bound_socket(wire.a, 7003);
  // A connected socket hears its peer only. On a veth pair its refusal is here before the call of
  // the one who asks has returned.
  REQUIRE(connect_to(other.value(), seen_from(wire.b, wire.a, 7003)) == 0);
  for (int i = 0; i < 20; ++i) {
    Fd client = open_socket(wire.a.space, SOCK_NONBLOCK);
    int error = connect_to(client.value(), seen_from(wire.a, wire.b, 7000));
    if (error == EINPROGRESS) {
      pollfd wait{.fd = client.value(), .events = POLLOUT, .revents = 0};
      REQUIRE(::poll(&wait, 1, 20000) == 1);
      socklen_t length = sizeof(error);
      REQUIRE(::getsockopt(client.value(), SOL_SOCKET, SO_ERROR, &error, &length) == 0);
    }
    CHECK(error == ECONNREFUSED);
  }
}

TEST_CASE("a signal ends the wait for a connection, which goes on, also if its handler restarts") {
  Module module;
  Wire wire;
  Fd client = open_socket(wire.a.space), server = bound_socket(wire.b, 7000);
  int dead = 20000;
  REQUIRE(::setsockopt(client.value(), SOL_SLUICE, SLUICE_DEAD_MS, &dead, sizeof(dead)) == 0);
  // By which calls are made again only if there is no limit to their time.
  set_timeout(client.value(), 0);
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  struct sigaction before {};
  REQUIRE(::sigaction(SIGALRM, &action, &before) == 0);
  wire.b.space.ip("link set end0 down");
  itimerval often{.it_interval = {.tv_sec = 0, .tv_usec = 100'000},
                  .it_value = {.tv_sec = 0, .tv_usec = 100'000}};
  REQUIRE(::setitimer(ITIMER_REAL, &often, nullptr) == 0);
  CHECK(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == EINTR);
  often = {};
  REQUIRE(::setitimer(ITIMER_REAL, &often, nullptr) == 0);
  ::sigaction(SIGALRM, &before, nullptr);
  wire.b.space.ip("link set end0 up");
  pollfd wait{.fd = client.value(), .events = POLLOUT, .revents = 0};
  REQUIRE(::poll(&wait, 1, 20000) == 1);
  CHECK(wait.revents == POLLOUT);
  CHECK(send_on(client.value(), "hello") == 5);
  CHECK(receive(server.value()).text == "hello");
}

TEST_CASE("a send buffer of the largest size sends") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  int most = INT_MAX;
  REQUIRE(::setsockopt(client.value(), SOL_SOCKET, SO_SNDBUFFORCE, &most, sizeof(most)) == 0);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  REQUIRE(send_on(client.value(), "hello") == 5);
  CHECK(receive(server.value()).text == "hello");
}

TEST_CASE(
    "a new session takes the interface's MTU as it is then, also of a socket that was bound") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000);
  for (int mtu : {9000, 1300}) {
    Fd client = bound_socket(wire.a, 0);
    for (const End* end : {&wire.a, &wire.b})
      end->space.ip("link set end0 mtu " + std::to_string(mtu));
    REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
    sluice_status said{};
    socklen_t length = sizeof(said);
    REQUIRE(::getsockopt(client.value(), SOL_SLUICE, SLUICE_STATUS, &said, &length) == 0);
    CHECK(said.mtu == static_cast<uint32_t>(mtu));
  }
}

TEST_CASE("what was sent before close arrives, and then the end does") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  REQUIRE(send_on(client.value(), "last words") == 10);
  Received first = receive(server.value());
  CHECK(first.text == "last words");
  REQUIRE(send_to(server.value(), "answer", first.from) == 6);
  server.reset();
  CHECK(receive(client.value()).text == "answer");
  CHECK(receive(client.value()).result == 0);
  CHECK(send_on(client.value(), "nobody", MSG_NOSIGNAL) == -EPIPE);
}

TEST_CASE("what came before a session failed is read before its error, and then the end is") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  int dead = 200;
  REQUIRE(::setsockopt(client.value(), SOL_SLUICE, SLUICE_DEAD_MS, &dead, sizeof(dead)) == 0);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  REQUIRE(send_on(client.value(), "hello") == 5);
  Received asked = receive(server.value());
  for (const char* text : {"one", "two"}) REQUIRE(send_to(server.value(), text, asked.from) == 3);
  // Both are here, and then nothing comes any more.
  pollfd wait{.fd = client.value(), .events = POLLIN, .revents = 0};
  REQUIRE(::poll(&wait, 1, 20000) == 1);
  int left = 1;
  for (int tries = 0; tries < 20000 && left != 0; ++tries) {
    REQUIRE(::ioctl(server.value(), SIOCOUTQ, &left) == 0);
    ::poll(nullptr, 0, 1);
  }
  REQUIRE(left == 0);
  wire.b.space.ip("link set end0 down");
  REQUIRE(send_on(client.value(), "nobody") == 6);
  wait.events = 0;  // the error
  REQUIRE(::poll(&wait, 1, 20000) == 1);
  CHECK(receive(client.value()).text == "one");
  CHECK(receive(client.value()).text == "two");
  CHECK(receive(client.value()).result == -ETIMEDOUT);
  CHECK(receive(client.value()).result == 0);
}

TEST_CASE("a killed process's peers are told at once") {
  Module module;
  Wire wire;
  Fd client = open_socket(wire.a.space);
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  pid_t child = ::fork();
  if (child == 0) {
    Fd server = bound_socket(wire.b, 7000);
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) receive(server.value());
  }
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  REQUIRE(send_on(client.value(), "hello") == 5);
  ::kill(child, SIGKILL);
  CHECK(receive(client.value()).result == 0);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("two unconnected sockets that call each other at once hear each other") {
  Module module;
  Wire wire;
  Fd a = bound_socket(wire.a, 7000), b = bound_socket(wire.b, 7000);
  for (int i = 0; i < 20; ++i) {
    REQUIRE(send_to(a.value(), "from a", seen_from(wire.a, wire.b, 7000)) == 6);
    REQUIRE(send_to(b.value(), "from b", seen_from(wire.b, wire.a, 7000)) == 6);
  }
  for (int i = 0; i < 20; ++i) {
    REQUIRE(receive(a.value()).text == "from b");
    REQUIRE(receive(b.value()).text == "from a");
  }
}

TEST_CASE("busy waiting receives as sleeping does") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  int spin = 1000000;
  REQUIRE(::setsockopt(server.value(), SOL_SLUICE, SLUICE_SPIN_US, &spin, sizeof(spin)) == 0);
  REQUIRE(::setsockopt(client.value(), SOL_SLUICE, SLUICE_SPIN_US, &spin, sizeof(spin)) == 0);
  pid_t child = ::fork();
  if (child == 0) {
    for (int i = 0; i < 100; ++i) {
      Received got = receive(server.value());
      if (send_to(server.value(), got.text, got.from) != got.result) ::_exit(1);
    }
    ::_exit(0);
  }
  for (int i = 0; i < 100; ++i) {
    REQUIRE(send_on(client.value(), "ping") == 4);
    REQUIRE(receive(client.value()).text == "ping");
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("a module in use is not unloaded") {
  Module module;
  Wire wire;
  Fd client = open_socket(wire.a.space);
  CHECK(unload_module() == EAGAIN);
}

TEST_CASE("an interface that goes ends what used it") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  wire.a.space.ip("link delete end0");
  CHECK(receive(client.value()).result == -ENODEV);
  CHECK(receive(client.value()).result == 0);
  CHECK(receive(server.value()).result == -ENODEV);
  CHECK(send_to(server.value(), "x", seen_from(wire.b, wire.a, 7000)) == -ENODEV);
}

TEST_CASE("outgoing and incoming queues are told") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  REQUIRE(send_on(client.value(), "twelve bytes") == 12);
  pollfd wait{.fd = server.value(), .events = POLLIN, .revents = 0};
  REQUIRE(::poll(&wait, 1, 20000) == 1);
  int bytes = 0;
  REQUIRE(::ioctl(server.value(), SIOCINQ, &bytes) == 0);
  CHECK(bytes == 12);
  int left = 1;
  for (int tries = 0; tries < 20000 && left != 0; ++tries) {
    REQUIRE(::ioctl(client.value(), SIOCOUTQ, &left) == 0);
    ::poll(nullptr, 0, 1);
  }
  CHECK(left == 0);
  Received cut = receive(server.value(), MSG_TRUNC, 3);
  CHECK(cut.result == 12);
  CHECK(cut.text == "twe");
  CHECK((cut.flags & MSG_TRUNC) != 0);
}

TEST_CASE("who does not wait hears of the end as well") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space, SOCK_NONBLOCK);
  int error = connect_to(client.value(), seen_from(wire.a, wire.b, 7000));
  CHECK((error == EINPROGRESS || error == 0));
  CHECK(receive(client.value()).result == -EAGAIN);
  REQUIRE(send_on(client.value(), "hello") == 5);
  REQUIRE(receive(server.value()).result == 5);
  server.reset();
  pollfd wait{.fd = client.value(), .events = POLLIN, .revents = 0};
  REQUIRE(::poll(&wait, 1, 10000) == 1);
  CHECK((wait.revents & POLLHUP) != 0);
  CHECK(receive(client.value()).result == 0);
  CHECK(receive(client.value()).result == 0);
}

TEST_CASE("a peer that a server hangs up on is told, and may call again") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space),
     other = open_socket(wire.a.space);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  REQUIRE(connect_to(other.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  REQUIRE(send_on(client.value(), "hello") == 5);
  Received got = receive(server.value());
  REQUIRE(got.result == 5);
  auto hang_up = [&](const sockaddr_sluice& peer) {
    return ::ioctl(server.value(), SLUICE_HANG_UP, &peer) == 0 ? 0 : errno;
  };
  CHECK(hang_up(sockaddr_sluice{}) == EAFNOSUPPORT);
  sockaddr_sluice nobody = got.from;
  nobody.port = 1;
  CHECK(hang_up(nobody) == ENOENT);
  REQUIRE(hang_up(got.from) == 0);
  CHECK(hang_up(got.from) == ENOENT);
  CHECK(receive(client.value()).result == 0);  // it has closed
  CHECK(::ioctl(server.value(), SLUICE_HANG_UP, nullptr) == -1);
  // The others stay, and the one may come back.
  REQUIRE(send_on(other.value(), "still here") == 10);
  CHECK(receive(server.value()).text == "still here");
  Fd again = open_socket(wire.a.space);
  REQUIRE(connect_to(again.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  REQUIRE(send_on(again.value(), "again") == 5);
  CHECK(receive(server.value()).text == "again");
  // A connected socket has one peer, and close().
  sockaddr_sluice peer = seen_from(wire.a, wire.b, 7000);
  CHECK((::ioctl(again.value(), SLUICE_HANG_UP, &peer) == -1 && errno == EISCONN));
}

}  // namespace
}  // namespace sluice::module_test
