#include <sluice/l2/carrier/ring.h>

#include <errno.h>
#include <linux/if_packet.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <utility>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/ring";
// A frame begins so far behind its slot (packet(7); SOCK_DGRAM): the kernel's header, and 16.
constexpr size_t kBeforeFrame = TPACKET_ALIGN(TPACKET2_HDRLEN) + 16;
constexpr size_t kCacheLine = 64;
constexpr size_t kSmallFrameLines = 3;
// Blocks are what the kernel allocates in one piece.
constexpr size_t kBlockBytes = 64 << 10, kLargeBlockBytes = 1 << 20;
constexpr size_t kMacBytes = 6;

}  // namespace

Result<ReceiveRing> ReceiveRing::make(int socket, size_t mtu) {
  ReceiveRing made;
  made.slot_bytes_ = (kBeforeFrame + mtu + kCacheLine - 1) / kCacheLine * kCacheLine;
  made.block_bytes_ = made.slot_bytes_ * 4 <= kBlockBytes ? kBlockBytes : kLargeBlockBytes;
  made.per_block_ = made.block_bytes_ / made.slot_bytes_;
  size_t blocks = kRingBytes / made.block_bytes_;
  made.slots_ = made.per_block_ * blocks;
  int version = TPACKET_V2;
  tpacket_req request{.tp_block_size = static_cast<unsigned>(made.block_bytes_),
                      .tp_block_nr = static_cast<unsigned>(blocks),
                      .tp_frame_size = static_cast<unsigned>(made.slot_bytes_),
                      .tp_frame_nr = static_cast<unsigned>(made.slots_)};
  if (::setsockopt(socket, SOL_PACKET, PACKET_VERSION, &version, sizeof(version)) != 0 ||
      ::setsockopt(socket, SOL_PACKET, PACKET_RX_RING, &request, sizeof(request)) != 0) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "the kernel makes no ring for received frames", errno);
  }
  void* memory = ::mmap(nullptr, kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED, socket, 0);
  if (memory == MAP_FAILED) {
    // Frames would go into a ring that nobody sees.
    request = {};
    ::setsockopt(socket, SOL_PACKET, PACKET_RX_RING, &request, sizeof(request));
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                  "the ring for received frames cannot be mapped", errno);
  }
  ::madvise(memory, kRingBytes, MADV_DONTFORK);
  made.memory_ = static_cast<uint8_t*>(memory);
  made.bytes_ = kRingBytes;
  return made;
}

ReceiveRing::ReceiveRing(ReceiveRing&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      bytes_(other.bytes_),
      slot_bytes_(other.slot_bytes_),
      block_bytes_(other.block_bytes_),
      per_block_(other.per_block_),
      slots_(other.slots_),
      first_(other.first_),
      taken_(other.taken_) {}

ReceiveRing::~ReceiveRing() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

bool ReceiveRing::next(RingFrame& out) {
  if (taken_ == slots_) return false;
  size_t index = first_ + taken_;
  uint8_t* place = slot(index < slots_ ? index : index - slots_);
  auto* header = reinterpret_cast<tpacket2_hdr*>(place);
  // Acquire: what the kernel wrote before it said so.
  __u32 status = std::atomic_ref<__u32>(header->tp_status).load(std::memory_order_acquire);
  if ((status & TP_STATUS_USER) == 0) return false;
  ++taken_;
  // What a small frame takes lies in another processor's cache: its lines come together, not one by
  // one as they are read.
  for (size_t line = kCacheLine; line <= kSmallFrameLines * kCacheLine && line < slot_bytes_;
       line += kCacheLine)
    __builtin_prefetch(place + line);
  const auto* source =
      reinterpret_cast<const sockaddr_ll*>(place + TPACKET_ALIGN(sizeof(tpacket2_hdr)));
  out.data = place + header->tp_net;
  out.bytes = header->tp_snaplen;
  out.source = source->sll_halen == kMacBytes ? source->sll_addr : nullptr;
  out.whole = header->tp_snaplen == header->tp_len && (status & TP_STATUS_COPY) == 0;
  return true;
}

void ReceiveRing::release() {
  for (; taken_ > 0; --taken_) {
    auto* header = reinterpret_cast<tpacket2_hdr*>(slot(first_));
    // Release: what was read of the frame was read before.
    std::atomic_ref<__u32>(header->tp_status).store(TP_STATUS_KERNEL, std::memory_order_release);
    first_ = first_ + 1 == slots_ ? 0 : first_ + 1;
  }
}

}  // namespace sluice::l2
