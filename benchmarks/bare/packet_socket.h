// Packet sockets at the two ends of the wire, for one EtherType. Must not know what the frames
// hold.
#pragma once

#include <linux/if_packet.h>
#include <sys/uio.h>

#include <cstddef>

#include "benchmarks/bare/wire.h"

namespace bare {

// IEEE Std 802, local experimental 2: SLP has the first.
inline constexpr unsigned kEtherType = 0x88b6;

struct PacketEnd {
  int socket = -1;
  sockaddr_ll to{};  // the other end
};

// Non-blocking, payloads without the Ethernet header. Unfiltered: it gets every frame of its
// interface, of whatever EtherType.
PacketEnd packet_end(End end, bool unfiltered = false);

// A TPACKET_V2 ring of received frames, each in a place of `frame_bytes`.
class ReceiveRing {
 public:
  // Before any frame comes. Exits if the kernel has none.
  ReceiveRing(int socket, unsigned frame_bytes, unsigned frames);
  // The next frame's payload, or null; valid until release().
  const unsigned char* next(size_t& bytes);
  void release();
  // Fetches the frame that lies so many ahead into the caches.
  void prefetch(unsigned ahead) const;

 private:
  tpacket2_hdr* header() const;
  unsigned char* memory_;
  unsigned frame_bytes_, frames_, at_ = 0;
};

}  // namespace bare
