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

// A descriptor that a listener keeps, to answer callers when there is no other left.
class DescriptorReserve {
 public:
  void fill();  // unless it is full; without effect when there is none left
  void empty() { kept_.reset(); }
  // Accepts some of those who wait at `listener`, and calls answer() with the socket of each.
  template <typename Answer>
  void turn_away(int listener, Answer&& answer) {
    for (int i = 0; kept_ && i < kAtOnce; ++i) {
      Descriptor caller = exchange_for_caller(listener);
      const bool any = static_cast<bool>(caller);
      if (any) answer(std::move(caller));
      fill();
      if (!any) return;
    }
  }

 private:
  static constexpr int kAtOnce = 16;
  Descriptor exchange_for_caller(int listener);
  Descriptor kept_;
};

// kNoMemory: no descriptor is left for another socket.
Status no_descriptor(int error);

}  // namespace sluice

#endif  // SLUICE_BASE_DESCRIPTOR_H_
