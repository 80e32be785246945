// The room that the kernel keeps for a socket of either carrier. Knows no frames.
#ifndef SLUICE_L2_CARRIER_SOCKET_ROOM_H_
#define SLUICE_L2_CARRIER_SOCKET_ROOM_H_

#include <cstddef>
#include <string>

namespace sluice::l2 {

// Bytes that the kernel keeps for a socket, as it counts them: with what surrounds each frame.
struct SocketRoom {
  size_t receive = 0, send = 0;
  bool limited = false;  // less than was asked for
  std::string text() const;
};
// Makes both as large as this process may, and reads back what they are.
SocketRoom enlarge(int fd);

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_SOCKET_ROOM_H_
