// What needs no module: how the family is found, what is said where it is not, and the greeting's
// mark. With the module: tests/module/carrier_doors_test.cc.
#include <catch2/catch.hpp>

#include <sys/socket.h>

#include <cerrno>

#include <sluice/kmod/connection.h>
#include <sluice/kmod/socket.h>

namespace sluice::kmod {
namespace {

TEST_CASE("the family is the number that the parameter's file has, and nothing else is one",
          "[kmod]") {
  CHECK(family_of("19\n") == 19);
  CHECK(family_of("27") == 27);
  for (const char* text :
       {"", "\n", "x", "0\n", "-19\n", "19 \n", "19x", "4711\n", "99999999999999\n"})
    CHECK_FALSE(family_of(text).has_value());
}

TEST_CASE("a missing module is told apart from one that keeps us out, each with its remedy",
          "[kmod]") {
  struct Case {
    int error;
    bool told;
    Code code;
    const char* says;
  };
  for (Case c : {Case{EAFNOSUPPORT, false, Code::kUnsupported, "not loaded; sudo modprobe sluice"},
                 Case{ESOCKTNOSUPPORT, false, Code::kUnsupported, "another protocol's"},
                 Case{EPERM, true, Code::kAccessDenied, "need CAP_NET_RAW"},
                 Case{EPERM, true, Code::kAccessDenied, "sudo sysctl net.sluice.unprivileged=1"},
                 Case{EACCES, true, Code::kAccessDenied, "a security module"},
                 Case{EAFNOSUPPORT, true, Code::kUnsupported, "family 19"},
                 Case{EMFILE, true, Code::kNoMemory, "ulimit -n"},
                 Case{ENOBUFS, true, Code::kNoMemory, "no memory"}}) {
    Status status = no_kmod_socket(c.error, 19, c.told);
    INFO(status.to_string());
    CHECK(status == c.code);
    CHECK(status.os_error() == c.error);
    CHECK(status.detail().find(c.says) != std::string_view::npos);
  }
}

TEST_CASE("which door it was is said, and why it was not the other", "[kmod]") {
  CHECK(KmodDoor{.family = 19}.text() == "by socket family 19");
  CHECK(KmodDoor{.family = 19, .refused = EAFNOSUPPORT}.text() ==
        "by /dev/sluice, since the kernel has no socket family 19");
  CHECK(KmodDoor{.family = 27, .refused = EPERM}.text() ==
        "by /dev/sluice, since this process may not use socket family 27");
  CHECK(KmodDoor{.family = 19, .refused = ESOCKTNOSUPPORT}.text() ==
        "by /dev/sluice, since socket family 19 is another protocol's here");
}

TEST_CASE("a HELLO is marked for answers from another socket, and only one that is", "[kmod]") {
  wire::Hello hello;
  CHECK_FALSE(takes_other_socket(hello));
  hello.has_rendezvous = true;  // of shared memory
  CHECK_FALSE(takes_other_socket(hello));
  mark_for_other_socket(hello);
  hello.token.bytes.fill(std::byte{7});
  std::array<std::byte, wire::kMaxHeaderBytes> bytes;
  size_t length = wire::encode(hello, bytes);
  auto read = read_hello({bytes.data(), length});
  REQUIRE(read.ok());
  CHECK(takes_other_socket(*read));
  CHECK(read->token == hello.token);
  CHECK(read_hello({bytes.data(), length - 8}).status() == Code::kCorrupt);
  CHECK(read_hello({bytes.data(), 3}).status() == Code::kCorrupt);
}

}  // namespace
}  // namespace sluice::kmod
