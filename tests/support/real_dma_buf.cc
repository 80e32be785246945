#include "tests/support/real_dma_buf.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace sluice::test {
namespace {

// Linux's include/uapi/drm/drm_mode.h and drm.h, which Debian keeps from its kernel headers.
struct DumbBuffer {
  uint32_t height, width, bits_per_pixel, flags, handle, pitch;
  uint64_t size;
};
struct PrimeHandle {
  uint32_t handle, flags;
  int32_t fd;
};
constexpr unsigned long kCreateDumb = _IOWR('d', 0xB2, DumbBuffer);
constexpr unsigned long kPrimeHandleToFd = _IOWR('d', 0x2d, PrimeHandle);

}  // namespace

RealDmaBuf::RealDmaBuf(uint64_t bytes) {
  if (std::system("/sbin/modprobe -q udmabuf || /sbin/modprobe -q vgem") != 0)
    why_ = "modprobe knows neither udmabuf nor vgem; ";
  if (export_memory(bytes)) {
    driver_ = "udmabuf";
  } else if (export_object(bytes)) {
    driver_ = "vgem";
  }
}

RealDmaBuf::~RealDmaBuf() {
  if (fd_ >= 0) ::close(fd_);
}

// Of sealed memory (Documentation/userspace-api/dma-buf-alloc-exchange.rst).
bool RealDmaBuf::export_memory(uint64_t bytes) {
  const int device = ::open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
  const int memory = ::memfd_create("dma-buf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (device >= 0 && memory >= 0 && ::ftruncate(memory, static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
    udmabuf_create request{.memfd = static_cast<uint32_t>(memory),
                           .flags = UDMABUF_FLAGS_CLOEXEC,
                           .offset = 0,
                           .size = bytes};
    fd_ = ::ioctl(device, UDMABUF_CREATE, &request);
  }
  if (fd_ < 0) why_ += std::string("udmabuf: ") + std::strerror(errno) + "; ";
  if (memory >= 0) ::close(memory);
  if (device >= 0) ::close(device);
  return fd_ >= 0;
}

// A buffer of the first DRM device, which is vgem where the machine has no graphics: an image with
// one line for each page.
bool RealDmaBuf::export_object(uint64_t bytes) {
  const int device = ::open("/dev/dri/card0", O_RDWR | O_CLOEXEC);
  DumbBuffer image{};
  image.width = 1024;
  image.height = static_cast<uint32_t>(bytes / 4096);
  image.bits_per_pixel = 32;
  if (device >= 0 && ::ioctl(device, kCreateDumb, &image) == 0) {
    PrimeHandle request{.handle = image.handle, .flags = O_CLOEXEC | O_RDWR, .fd = -1};
    if (::ioctl(device, kPrimeHandleToFd, &request) == 0) fd_ = request.fd;
  }
  if (fd_ < 0) why_ += std::string("vgem: ") + std::strerror(errno);
  if (device >= 0) ::close(device);
  return fd_ >= 0;
}

}  // namespace sluice::test
