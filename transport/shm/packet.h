// Packets on the Unix socket beside the rings. Private to shm.
#ifndef SLUICE_SHM_PACKET_H_
#define SLUICE_SHM_PACKET_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include <sluice/base/descriptor.h>
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
  size_t length = 0;
  bool ended = false;  // the peer has ended its side, or sent a packet without a byte
  Descriptor fd;
};
// Receives one packet into `room`. Descriptors that do not belong to it are closed.
// Errors: kTryAgain (none now), kUnreachable, kCorrupt (does not fit, more than one descriptor,
// one without a byte), kNoMemory (this process has no descriptor left for the peer's).
Result<Packet> receive_packet(int socket, std::span<std::byte> room);

// Closes what a peer has passed and we did not ask for. Blocks: not for as long as the peer likes,
// as close() of a socket does whose SO_LINGER the peer has set.
void close_refused(int fd);

// Closes a socket of ours, and what lies in it unread as close_refused() does. Nothing comes any
// more.
void close_unread(int socket);

}  // namespace sluice::shm

#endif  // SLUICE_SHM_PACKET_H_
