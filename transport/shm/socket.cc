#include <sluice/shm/socket.h>

#include "transport/shm/packet.h"

namespace sluice::shm {

Socket::~Socket() {
  if (fd_ >= 0) close_unread(fd_);
}

}  // namespace sluice::shm
