// Packets on the Unix socket beside the rings. Private to shm.
#ifndef SLUICE_SHM_PACKET_H_
#define SLUICE_SHM_PACKET_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include <sluice/base/result.h>

namespace sluice::shm {

// A doorbell is the byte 1, the end of a side the byte 2; an announcement is this struct
// with one descriptor.
struct ExtentPacket {
  uint32_t kind;  // kExtentPacket
  uint32_t id;
  uint64_t arena_offset;
  uint64_t length;
};
inline constexpr uint32_t kExtentPacket = 0x45585431;  // "1TXE"

// Sends one packet, with `fd` if it is not -1. Errors: kTryAgain (no room now),
// kUnreachable (the peer is gone).
Status send_packet(int socket, std::span<const std::byte> bytes, int fd);

struct Packet {
  size_t length = 0;   // 0: the peer has ended its side
  int fd = -1;         // owned by the caller
};
// Receives one packet into `room`. Surplus descriptors are closed and refused.
// Errors: kTryAgain (none now), kUnreachable, kCorrupt (does not fit, too many descriptors).
Result<Packet> receive_packet(int socket, std::span<std::byte> room);

}  // namespace sluice::shm

#endif  // SLUICE_SHM_PACKET_H_
