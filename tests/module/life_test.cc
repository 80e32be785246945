// The module's coming and going, and namespaces that go under traffic.
#include <catch2/catch.hpp>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>

#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

// Grace periods that are asked for come at once: a thousand lives wait for several each.
struct Hurry {
  Hurry() { std::ofstream("/sys/kernel/rcu_expedited") << 1; }
  ~Hurry() { std::ofstream("/sys/kernel/rcu_expedited") << 0; }
};

// Answers until it is killed.
[[noreturn]] void serve(int fd) {
  for (;;) {
    Received got = receive(fd);
    if (got.result >= 0) send_to(fd, got.text, got.from, MSG_NOSIGNAL);
  }
}

[[noreturn]] void talk(int fd, const sockaddr_sluice& to) {
  for (unsigned i = 0;; ++i) {
    send_to(fd, std::string(i * 97 % SLUICE_MAX_MESSAGE, 'x'), to, MSG_NOSIGNAL);
    receive(fd, MSG_DONTWAIT);
  }
}

TEST_CASE("the module is loaded and unloaded a thousand times") {
  Hurry hurry;
  { Module module; }
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(load_module() == 0);
    // Something to take down, now and then.
    if (i % 50 == 0) {
      Namespace space;
      Fd one = open_socket(space);
    }
    int error = EAGAIN;
    for (int tries = 0; tries < 5000 && (error = unload_module()) == EAGAIN; ++tries)
      ::poll(nullptr, 0, 1);
    REQUIRE(error == 0);
  }
}

TEST_CASE(
    "a family that is taken, an EtherType that is none, and a family that cannot be are refused "
    "whole") {
  CHECK(load_module("family=2") == EEXIST);
  CHECK(load_module("family=46") == EINVAL);
  CHECK(load_module("family=-1") == EINVAL);
  CHECK(load_module("ethertype=100") == EINVAL);
  CHECK(load_module("family=19 ethertype=0x88b6") == 0);
  CHECK(unload_module() == 0);
}

TEST_CASE("namespaces go under traffic") {
  Hurry hurry;
  Module module;
  for (int round = 0; round < 18; ++round) {
    auto wire = std::make_unique<Wire>();
    Fd server = bound_socket(wire->b, 7000), client = open_socket(wire->a.space);
    sockaddr_sluice to = seen_from(wire->a, wire->b, 7000);
    pid_t children[4];
    for (int i = 0; i < 4; ++i) {
      children[i] = ::fork();
      if (children[i] == 0) i < 2 ? serve(server.value()) : talk(client.value(), to);
    }
    // As much traffic as it takes to be in the middle of it.
    for (int tries = 0;
         tries < 20000 && counter(wire->b.space, "messages_in") < static_cast<uint64_t>(round);
         ++tries)
      ::poll(nullptr, 0, 1);
    if (round % 3 == 1) wire->a.space.ip("link delete end0");
    if (round % 3 == 2) server.reset();
    client.reset();
    server.reset();
    wire.reset();
    for (pid_t child : children) ::kill(child, SIGKILL);
    for (pid_t child : children) ::waitpid(child, nullptr, 0);
  }
}

TEST_CASE("a hundred processes with sockets are killed, and nothing of them stays") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000);
  for (int round = 0; round < 4; ++round) {
    pid_t children[25];
    for (pid_t& child : children) {
      child = ::fork();
      if (child == 0) {
        Fd own = open_socket(wire.a.space);
        talk(own.value(), seen_from(wire.a, wire.b, 7000));
      }
    }
    for (int i = 0; i < 200; ++i) CHECK(receive(server.value()).result >= 0);
    for (pid_t child : children) ::kill(child, SIGKILL);
    for (pid_t child : children) ::waitpid(child, nullptr, 0);
  }
  server.reset();
  // A second of leaving, and a grace period.
  for (int tries = 0; tries < 10000 && sockets(wire.a.space).find("port ") != std::string::npos;
       ++tries)
    ::poll(nullptr, 0, 1);
  CHECK(sockets(wire.a.space).find("port ") == std::string::npos);
  CHECK(counter(wire.a.space, "sessions_begun") == counter(wire.a.space, "sessions_ended"));
  CHECK(counter(wire.b.space, "sessions_begun") == counter(wire.b.space, "sessions_ended"));
}

}  // namespace
}  // namespace sluice::module_test
