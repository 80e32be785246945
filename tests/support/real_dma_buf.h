// A dma-buf of a kernel driver that needs no device: udmabuf, or vgem where the kernel has no
// udmabuf (Debian 12). Takes root.
#ifndef SLUICE_TESTS_SUPPORT_REAL_DMA_BUF_H_
#define SLUICE_TESTS_SUPPORT_REAL_DMA_BUF_H_

#include <cstdint>
#include <string>

namespace sluice::test {

class RealDmaBuf {
 public:
  // Of zero bytes. Requires: a multiple of the page size.
  explicit RealDmaBuf(uint64_t bytes);
  ~RealDmaBuf();
  RealDmaBuf(const RealDmaBuf&) = delete;
  RealDmaBuf& operator=(const RealDmaBuf&) = delete;

  // -1: this kernel has neither driver, for the reason of why().
  int fd() const { return fd_; }
  const std::string& driver() const { return driver_; }
  const std::string& why() const { return why_; }

 private:
  bool export_memory(uint64_t bytes);  // udmabuf
  bool export_object(uint64_t bytes);  // vgem

  int fd_ = -1;
  std::string driver_, why_;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SUPPORT_REAL_DMA_BUF_H_
