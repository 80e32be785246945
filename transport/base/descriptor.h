// A file descriptor and its owner.
#ifndef SLUICE_BASE_DESCRIPTOR_H_
#define SLUICE_BASE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

#include <sluice/base/status.h>

namespace sluice {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = other.release();
    }
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

// Of nothing: to be given up for another one when there is none left.
Descriptor spare_descriptor();

// kNoMemory: no descriptor is left for another socket.
Status no_descriptor(int error);

}  // namespace sluice

#endif  // SLUICE_BASE_DESCRIPTOR_H_
