// Files mapped over reserved addresses: what refuses to be mapped leaves no hole.
#include <sluice/base/map_over.h>

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace sluice {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kBytes = size_t{1} << 42;  // more than any pool of huge pages has

struct Reservation {
  Reservation() {
    base = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Reservation() { ::munmap(base, kBytes); }
  // Whether a mapping that replaces nothing finds no place there.
  bool held() const {
    bool all = true;
    for (size_t at : {size_t{0}, kMiB, kBytes / 2, kBytes - 4096}) {
      void* place = static_cast<char*>(base) + at;
      void* made =
          ::mmap(place, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      if (made != MAP_FAILED) ::munmap(made, 4096);
      all = all && made == MAP_FAILED && errno == EEXIST;
    }
    return all;
  }
  void* base;
};

TEST_CASE("a file comes to lie where it was wanted") {
  Reservation reservation;
  REQUIRE(reservation.base != MAP_FAILED);
  int fd = ::memfd_create("sluice-test", MFD_CLOEXEC);
  REQUIRE(::ftruncate(fd, 2 * kMiB) == 0);
  char* at = static_cast<char*>(reservation.base) + kMiB;
  REQUIRE(map_over(at, 2 * kMiB, PROT_READ | PROT_WRITE, fd) == 0);
  at[5] = 'x';
  char read = 0;
  CHECK(::pread(fd, &read, 1, 5) == 1);
  CHECK(read == 'x');
  CHECK(reservation.held());
  ::close(fd);
}

TEST_CASE("a file that refuses leaves the addresses reserved") {
  Reservation reservation;
  REQUIRE(reservation.base != MAP_FAILED);
  REQUIRE(reservation.held());
  SECTION("huge pages that there are not") {
    int fd = ::memfd_create("sluice-test", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);
    REQUIRE(fd >= 0);
    REQUIRE(::ftruncate(fd, static_cast<off_t>(kBytes)) == 0);
    CHECK(map_over(reservation.base, kBytes, PROT_READ, fd) == ENOMEM);
    ::close(fd);
  }
  SECTION("a seal") {
    int fd = ::memfd_create("sluice-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(::ftruncate(fd, static_cast<off_t>(kBytes)) == 0);
    REQUIRE(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
    CHECK(map_over(reservation.base, kBytes, PROT_READ | PROT_WRITE, fd) == EPERM);
    ::close(fd);
  }
  SECTION("no file") { CHECK(map_over(reservation.base, kBytes, PROT_READ, -1) == EBADF); }
  CHECK(reservation.held());
}

}  // namespace
}  // namespace sluice
