// A file descriptor and its owner.
#ifndef SLUICE_SHM_DESCRIPTOR_H_
#define SLUICE_SHM_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace sluice::shm {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { reset(); }

  explicit operator bool() const { return fd_ >= 0; }
  int value() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace sluice::shm

#endif  // SLUICE_SHM_DESCRIPTOR_H_
