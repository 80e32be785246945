// Packet sockets and their ring (see packet_socket.h; packet(7)).
#include "benchmarks/bare/packet_socket.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "benchmarks/bare/program.h"

namespace bare {

PacketEnd packet_end(End end, bool unfiltered) {
  enter(end);
  const End other = end == End::kNear ? End::kFar : End::kNear;
  PacketEnd made;
  made.socket = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made.socket < 0) {
    std::fprintf(stderr, "no packet socket: %s\n", std::strerror(errno));
    std::exit(kExitNothingToRunOn);
  }
  made.to.sll_family = AF_PACKET;
  made.to.sll_protocol = htons(kEtherType);
  made.to.sll_ifindex = static_cast<int>(if_nametoindex(interface_of(end)));
  made.to.sll_halen = 6;
  const auto mac = mac_of(other);
  std::memcpy(made.to.sll_addr, mac.data(), mac.size());
  const int yes = 1;
  if (setsockopt(made.socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof yes) != 0)
    die("PACKET_IGNORE_OUTGOING");
  enlarge(made.socket);
  sockaddr_ll own = made.to;
  if (unfiltered) own.sll_protocol = htons(ETH_P_ALL);
  if (bind(made.socket, reinterpret_cast<sockaddr*>(&own), sizeof own) != 0)
    die("bind to the interface");
  return made;
}

ReceiveRing::ReceiveRing(int socket, unsigned frame_bytes, unsigned frames)
    : frame_bytes_(frame_bytes), frames_(frames) {
  const int version = TPACKET_V2;
  if (setsockopt(socket, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0)
    die("PACKET_VERSION");
  constexpr unsigned kBlockBytes = 1u << 18;
  tpacket_req request{.tp_block_size = kBlockBytes,
                      .tp_block_nr = frames * frame_bytes / kBlockBytes,
                      .tp_frame_size = frame_bytes,
                      .tp_frame_nr = frames};
  if (setsockopt(socket, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) != 0)
    die("PACKET_RX_RING");
  void* memory = mmap(nullptr, size_t{frames} * frame_bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_POPULATE, socket, 0);
  if (memory == MAP_FAILED) die("mmap of the ring");
  memory_ = static_cast<unsigned char*>(memory);
}

tpacket2_hdr* ReceiveRing::header() const {
  return reinterpret_cast<tpacket2_hdr*>(memory_ + size_t{at_} * frame_bytes_);
}

const unsigned char* ReceiveRing::next(size_t& bytes) {
  tpacket2_hdr* frame = header();
  if ((std::atomic_ref<__u32>(frame->tp_status).load(std::memory_order_acquire) & TP_STATUS_USER) ==
      0)
    return nullptr;
  bytes = frame->tp_snaplen;
  return reinterpret_cast<unsigned char*>(frame) + frame->tp_net;
}

void ReceiveRing::prefetch(unsigned ahead) const {
  const unsigned char* frame = memory_ + size_t{(at_ + ahead) % frames_} * frame_bytes_;
  // The kernel's header, and what follows it: the payload of a small frame.
  __builtin_prefetch(frame);
  __builtin_prefetch(frame + 64);
}

void ReceiveRing::release() {
  std::atomic_ref<__u32>(header()->tp_status).store(TP_STATUS_KERNEL, std::memory_order_release);
  at_ = at_ + 1 == frames_ ? 0 : at_ + 1;
}

}  // namespace bare
