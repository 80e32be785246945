#include <sluice/base/map_over.h>

#include <errno.h>
#include <sys/mman.h>

namespace sluice {

int map_over(void* at, size_t length, int protection, int fd) {
  // MAP_FIXED unmaps first and asks the file afterwards: if that refuses (no huge page is
  // free), the place is open to every other thread. So the file is asked elsewhere first.
  // Huge pages that were found then stay with the file when the trial is unmapped.
  void* trial = ::mmap(nullptr, length, protection, MAP_SHARED, fd, 0);
  if (trial == MAP_FAILED) return errno;
  ::munmap(trial, length);
  if (::mmap(at, length, protection, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED) return 0;
  int error = errno;
  // Limits are looked at before anything is unmapped. If the kernel itself was out of
  // memory, the place is taken again, unless somebody was quicker.
  ::mmap(at, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
         -1, 0);
  return error;
}

}  // namespace sluice
