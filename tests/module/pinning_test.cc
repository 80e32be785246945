// Which memory may be pinned, and against whose limit it counts.
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/module/memory.h"
#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

TEST_CASE("what an unprivileged process pins counts against its limit, and comes back") {
  Module module;
  Wire wire;
  pid_t child = ::fork();
  if (child == 0) {
    Fd socket = open_socket(wire.a.space);
    Pages pages(256 << 10);
    rlimit limit{.rlim_cur = 128 << 10, .rlim_max = 128 << 10};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::setgroups(0, nullptr) != 0 ||
        ::setresuid(65534, 65534, 65534) != 0)
      ::_exit(1);
    uint32_t first, second;
    if (register_memory(socket.value(), pages.data(), 256 << 10, first) != ENOMEM ||
        pinned_kib() != 0)
      ::_exit(2);
    if (register_memory(socket.value(), pages.data(), 100 << 10, first) != 0 || pinned_kib() != 100)
      ::_exit(3);
    if (register_memory(socket.value(), pages.data(), 32 << 10, second) != ENOMEM) ::_exit(4);
    if (register_memory(socket.value(), pages.data() + 10, 28 << 10, second) != ENOMEM)
      ::_exit(5);  // one page more
    if (register_memory(socket.value(), pages.data(), 28 << 10, second) != 0) ::_exit(6);
    if (unregister_memory(socket.value(), first) != 0 || pinned_kib() != 28) ::_exit(7);
    socket.reset();
    ::_exit(pinned_kib() == 0 ? 0 : 8);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WEXITSTATUS(status) == 0);
}

// A file of a file system that has pages of its own to care for; shared memory's is none.
struct Ramfs {
  char folder[20] = "/tmp/ramfs-XXXXXX";
  Fd file;
  Ramfs() {
    REQUIRE(::mkdtemp(folder) != nullptr);
    REQUIRE(::mount("none", folder, "ramfs", 0, nullptr) == 0);
    file = Fd(::open((std::string(folder) + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    REQUIRE(::ftruncate(file.value(), 64 << 10) == 0);
  }
  ~Ramfs() {
    file.reset();
    ::umount2(folder, MNT_DETACH);
    ::rmdir(folder);
  }
};

TEST_CASE("anonymous, shared and huge memory may be pinned for long, and a file's may not") {
  constexpr size_t kEach = 64 << 10, kHuge = 2 << 20;
  Module module;
  Wire wire;
  Ramfs ram;
  Fd socket = open_socket(wire.a.space), memfd(::memfd_create("shared", MFD_CLOEXEC)),
     huge(::memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB));
  std::ofstream("/proc/sys/vm/nr_hugepages") << 2;
  REQUIRE(::ftruncate(memfd.value(), kEach) == 0);
  uint32_t region = 99;
  auto pins = [&](int fd, int flags, size_t bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    INFO(fd << " " << flags << ": " << std::strerror(errno));
    REQUIRE(at != MAP_FAILED);
    int error = register_memory(socket.value(), at, bytes, region);
    CHECK(pinned_kib() == (error == 0 ? bytes >> 10 : 0));
    if (error == 0) CHECK(unregister_memory(socket.value(), region) == 0);
    ::munmap(at, bytes);
    return error;
  };
  CHECK(pins(-1, MAP_PRIVATE | MAP_ANONYMOUS, kEach) == 0);
  CHECK(pins(-1, MAP_SHARED | MAP_ANONYMOUS, kEach) == 0);
  CHECK(pins(memfd.value(), MAP_SHARED, kEach) == 0);
  CHECK(pins(memfd.value(), MAP_PRIVATE, kEach) == 0);
  CHECK(pins(ram.file.value(), MAP_PRIVATE, kEach) == 0);  // pages of its own
  if (huge.value() >= 0 && ::ftruncate(huge.value(), kHuge) == 0)
    CHECK(pins(huge.value(), MAP_SHARED, kHuge) == 0);
  CHECK(pins(ram.file.value(), MAP_SHARED, kEach) == EOPNOTSUPP);
  // One page of a file among others is enough.
  void* at = ::mmap(nullptr, kEach, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(::mmap(static_cast<char*>(at) + 8 * 4096, 4096, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED, ram.file.value(), 0) != MAP_FAILED);
  CHECK(register_memory(socket.value(), at, kEach, region) == EOPNOTSUPP);
  CHECK(pinned_kib() == 0);
  ::munmap(at, kEach);
  // Nor what a driver or the kernel lends: here the completion ring.
  Ring ring(socket.value(), 256);
  CHECK(register_memory(socket.value(), &ring.raw(), 4096, region) != 0);
  std::ofstream("/proc/sys/vm/nr_hugepages") << 0;
}

}  // namespace
}  // namespace sluice::module_test
