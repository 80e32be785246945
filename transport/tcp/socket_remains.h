// Sockets of closed links that the kernel still sends from tensors' pages: kept, with that memory,
// until it has let go, and ended by force if it does not. Knows no link.
#ifndef SLUICE_TCP_SOCKET_REMAINS_H_
#define SLUICE_TCP_SOCKET_REMAINS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include <sluice/allocator/storage.h>
#include <sluice/base/clock.h>
#include <sluice/base/descriptor.h>
#include <sluice/tcp/page_loans.h>

namespace sluice::tcp {

// Of one link and its further streams. The connections that it ends with are reset: the kernel then
// drops what it has not sent, and what the memory is used for next goes to nobody.
struct SocketRemains {
  struct Socket {
    Descriptor fd;
    std::unique_ptr<PageLoans> loans;
  };
  SocketRemains() = default;
  ~SocketRemains();
  SocketRemains(const SocketRemains&) = delete;
  SocketRemains& operator=(const SocketRemains&) = delete;

  std::vector<Socket> sockets;
  std::vector<StorageRef> memory;
  Instant until{};
};

class RemainsList {
 public:
  bool empty() const { return list_.empty(); }
  void add(std::unique_ptr<SocketRemains> remains, Instant now);
  void clear() {
    list_.clear();
    next_look_ = kNever;
  }
  Instant next_look() const { return next_look_; }
  // Gives back what the kernel has let go of, or has had for too long. Returns how many.
  size_t look(Instant now);

 private:
  std::vector<std::unique_ptr<SocketRemains>> list_;
  Instant next_look_ = kNever;
};

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_SOCKET_REMAINS_H_
