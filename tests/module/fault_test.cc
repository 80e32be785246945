// Every allocation of every call fails once (a debug kernel's /proc/thread-self/fail-nth): what
// was begun is undone, and the next call finds everything in order. KASAN and kmemleak judge.
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/module/memory.h"
#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

constexpr int kMostFaults = 2000;

void allow_faults() {
  for (const char* what : {"failslab", "fail_page_alloc"}) {
    std::string folder = std::string("/sys/kernel/debug/") + what;
    for (const char* option : {"/ignore-gfp-wait", "/ignore-gfp-highmem"})
      std::ofstream(folder + option) << "N";
    std::ofstream(folder + "/verbose") << 0;
    std::ofstream(folder + "/min-order") << 0;
  }
}

// Calls until no more fault is met; returns how many there were.
template <typename Call>
int with_each_fault(Call call) {
  allow_faults();
  for (int n = 1; n < kMostFaults; ++n) {
    Fd file(::open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC));
    REQUIRE(file.value() >= 0);
    std::string wanted = std::to_string(n);
    REQUIRE(::pwrite(file.value(), wanted.data(), wanted.size(), 0) ==
            static_cast<ssize_t>(wanted.size()));
    call();
    char left[16] = {};
    ssize_t length = ::pread(file.value(), left, sizeof(left) - 1, 0);
    (void)!::pwrite(file.value(), "0", 1, 0);
    REQUIRE(length > 0);
    if (std::atoi(left) != 0) return n - 1;
  }
  FAIL("a call that never ends its allocations");
  return 0;
}

TEST_CASE("loading undoes what it did, whatever fails") {
  // Its part of each namespace, too: the second one's fails when the first has its own.
  Namespace other;
  int loaded = 0;
  int faults = with_each_fault([&] {
    if (load_module() == 0) {
      ++loaded;
      REQUIRE(unload_module() == 0);
    }
  });
  CHECK(faults > 10);
  CHECK(loaded > 0);
}

TEST_CASE("calls of a socket fail alone") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000);
  sockaddr_sluice to = seen_from(wire.a, wire.b, 7000);
  int opened = wire.a.space.run(
      [] { return with_each_fault([] { Fd any(::socket(SLUICE_FAMILY, SOCK_RDM, 0)); }); });
  CHECK(opened > 1);
  int sent = 0;
  const std::string text(3000, 'x');
  int faults = wire.a.space.run([&] {
    return with_each_fault([&] {
      Fd client(::socket(SLUICE_FAMILY, SOCK_RDM, 0));
      if (client.value() < 0) return;
      if (bind_to(client.value(), wire.a.local(0)) != 0) return;
      if (connect_to(client.value(), to) != 0) return;
      if (send_on(client.value(), text) == 3000) ++sent;
    });
  });
  CHECK(faults > 3);
  // What was said to be sent arrives, although frames were not made.
  set_timeout(server.value(), 20000);
  for (int i = 0; i < sent; ++i) CHECK(receive(server.value()).result == 3000);
}

TEST_CASE("the other door fails alone, and a ring that cannot be mapped is not mapped in part") {
  Module module;
  int made = 0;
  int faults = with_each_fault([&] {
    Fd door(::open("/dev/sluice", O_RDWR | O_CLOEXEC));
    if (door.value() < 0) return;
    Fd socket(::ioctl(door.value(), SLUICE_SOCKET, SOCK_CLOEXEC));
    if (socket.value() >= 0) ++made;
  });
  CHECK(faults > 3);
  CHECK(made > 0);
  Fd socket(::socket(SLUICE_FAMILY, SOCK_RDM | SOCK_CLOEXEC, 0));
  int entries = SLUICE_MAX_RING;
  REQUIRE(::setsockopt(socket.value(), SOL_SLUICE, SLUICE_RING, &entries, sizeof(entries)) == 0);
  const size_t bytes =
      (sizeof(sluice_ring) + SLUICE_MAX_RING * sizeof(sluice_completion) + 4095) / 4096 * 4096;
  int mapped = 0;
  faults = with_each_fault([&] {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, socket.value(), 0);
    if (at == MAP_FAILED) return;
    mapped += static_cast<sluice_ring*>(at)->mask == SLUICE_MAX_RING - 1;
    while (::munmap(at, bytes) != 0)
      REQUIRE(errno == ENOMEM);  // which may be made to fail, too, once
  });
  CHECK(faults > 0);
  CHECK(mapped > 0);
}

TEST_CASE("memory that cannot be registered, opened or moved is given back") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  Pages pages(1 << 20);
  int faults = with_each_fault([&] {
    uint32_t region, handle;
    int fd = client.value();
    if (register_memory(fd, pages.data(), 1 << 20, region) != 0) return;
    if (open_handle(fd, {}, region, 0, 4096, SLUICE_MAY_READ, handle) == 0)
      CHECK(close_handle(fd, {}, handle) == 0);
    CHECK(unregister_memory(fd, region) == 0);
  });
  CHECK(faults > 2);
  faults = with_each_fault([&] {
    Fd one(::socket(SLUICE_FAMILY, SOCK_RDM, 0));
    int entries = 64;
    if (one.value() >= 0)
      ::setsockopt(one.value(), SOL_SLUICE, SLUICE_RING, &entries, sizeof(entries));
  });
  CHECK(faults > 2);
  Ring ring(client.value(), 64);
  uint32_t region;
  REQUIRE(register_memory(client.value(), pages.data(), 1 << 20, region) == 0);
  int moved = 0;
  with_each_fault([&] {
    sluice_transfer request{};
    request.kind = SLUICE_PULL;
    request.length = 4096;
    request.region = region;
    request.handle = 5;  // which the peer never gave
    if (transfer(client.value(), request) == 0) ++moved;
  });
  for (int i = 0; i < moved; ++i) CHECK(ring.wait()->status != 0);
}

}  // namespace
}  // namespace sluice::module_test
