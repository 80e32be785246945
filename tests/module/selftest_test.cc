// What the module finds out about itself when it is loaded for that, and what loading leaves behind
// when a step of it fails.
#include <catch2/catch.hpp>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/module/memory.h"
#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

unsigned parameter(const std::string& name) {
  std::ifstream file("/sys/module/sluice/parameters/" + name);
  unsigned value = 0;
  if (!(file >> value))
    throw std::runtime_error("no parameter " + name +
                             ": was the module built with SLUICE_SELFTEST=y?");
  return value;
}

bool names_us(const char* table, const std::string& word) {
  std::ifstream file(table);
  std::stringstream text;
  text << file.rdbuf();
  return text.str().find(word) != std::string::npos;
}

// Doors, tables and hooks of the module that are there.
std::string left_of_it() {
  std::string left;
  if (::access("/proc/net/sluice", F_OK) == 0) left += " /proc/net/sluice";
  if (::access("/sys/class/misc/sluice", F_OK) == 0) left += " the device";
  if (::access("/sys/module/sluice", F_OK) == 0) left += " the module";
  if (names_us("/proc/net/protocols", "SLUICE")) left += " the protocol";
  if (names_us("/proc/net/ptype", "88b5")) left += " the EtherType";
  if (Fd(::socket(SLUICE_FAMILY, SOCK_RDM, 0)).value() >= 0) left += " the family";
  return left;
}

TEST_CASE("the module's tests of itself pass") {
  uint64_t pinned = pinned_kib();
  for (int round = 0; round < 3; ++round) {
    Module module("selftest=1");
    CHECK(parameter("selftest_failed") == 0);
    CHECK(parameter("selftest_passed") == 9);
    CHECK(pinned_kib() == pinned);
    // And it works.
    Wire wire;
    Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
    REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
    CHECK(send_on(client.value(), "hello") == 5);
    CHECK(receive(server.value()).text == "hello");
  }
  CHECK(left_of_it() == "");
}

TEST_CASE("a message that found no memory comes when there is some, also to a reader who sleeps") {
  Module module("starved_messages=3");
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  timeval limit{.tv_sec = 10, .tv_usec = 0};
  REQUIRE(::setsockopt(server.value(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  CHECK(send_on(client.value(), "hello") == 5);
  // The queue is empty: no reading makes room.
  CHECK(receive(server.value()).text == "hello");
  CHECK(parameter("starved_messages") == 0);
}

TEST_CASE("loading leaves nothing behind, whichever step of it fails") {
  { Module module; }  // veth is there
  constexpr int kSteps = 6;
  for (int step = 1; step <= kSteps; ++step) {
    INFO(step);
    CHECK(load_module(("refused_step=" + std::to_string(step)).c_str()) == ENOMEM);
    CHECK(left_of_it() == "");
  }
  // The device is done without.
  {
    Module module("refused_step=7");
    CHECK(left_of_it().find("the device") == std::string::npos);
    CHECK(left_of_it().find("the family") != std::string::npos);
  }
  Module module;
  CHECK(left_of_it().find("the device") != std::string::npos);
}

}  // namespace
}  // namespace sluice::module_test
