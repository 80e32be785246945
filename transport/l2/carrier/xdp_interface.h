// AF_XDP at one interface for all ports of a process: the memory that frames lie in, and sockets
// for each port. Program and sockets are its own, or a broker's. Must not know sessions.
//
// A receive queue of an interface has one such memory, whoever asks: so an interface belongs to one
// process at a time, whose ports share it.
#ifndef SLUICE_L2_CARRIER_XDP_INTERFACE_H_
#define SLUICE_L2_CARRIER_XDP_INTERFACE_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <sluice/base/descriptor.h>
#include <sluice/base/result.h>
#include <sluice/l2/carrier/packet_socket.h>
#include <sluice/l2/carrier/xdp_places.h>
#include <sluice/l2/carrier/xdp_source.h>

namespace sluice::l2 {

// The sockets of one port: who receives for it, in the kernel, writes to the one, and its own
// thread to the other. They outlive the port: the next one has them.
struct XdpSocket {
  Descriptor fd;        // receives
  Descriptor send_fd;   // sends
  uint32_t number = 0;  // of the pair, to whom it is from
  XdpRing<xdp_desc> rx, tx;
  XdpSends sends;  // guarded by the interface
  bool taken = false;
};

// Who opens an interface, or ends with it, has the lock; `held`: its claim is not free.
struct XdpDoor {
  std::mutex one_at_a_time;
  std::condition_variable freed;
  bool held = false;
};

class XdpInterface {
 public:
  // Bytes before a frame that the kernel keeps for programs (XDP_PACKET_HEADROOM).
  static constexpr size_t kHeadroom = 256;
  static constexpr size_t kEthernetHeader = 14;
  // Ports of one interface: so many whose rings hold kLargeRing frames that have come, then
  // others. The memory has a place for all that all of them hold: a port that is not asked takes
  // nothing from the others.
  static constexpr size_t kLargePorts = 4, kSmallPorts = 32;
  static constexpr uint32_t kLargeRing = 1024, kSmallRing = 128;
  static constexpr uint32_t kLargeSends = 256, kSmallSends = 64;

  // This process's at that interface of this network, or of the broker's; opened if it has none.
  // Shared by the ports there: the queue has one memory. Errors: those of OwnXdp::attach(), and of
  // borrow_xdp() where this process lacks the right and a broker is there; kNoMemory
  // (RLIMIT_MEMLOCK), kUnsupported.
  static Result<std::shared_ptr<XdpInterface>> of(const std::string& interface);
  ~XdpInterface();
  XdpInterface(const XdpInterface&) = delete;
  XdpInterface& operator=(const XdpInterface&) = delete;

  const XdpPlace& place() const { return source_->place(); }
  // Whether frames still come, as far as whom the program is from can tell.
  Status look() const { return source_->look(); }
  // The kernel puts no copy between the memory and the device.
  bool zero_copy() const { return zero_copy_; }
  // Bytes of the largest frame without its Ethernet header.
  size_t most_frame() const { return places_.place_bytes() - kHeadroom - kEthernetHeader; }
  // Of a place that take_places() gave.
  uint8_t* at(uint64_t address) const { return places_.at(address); }
  // Of a frame that has come; null: its descriptor names none.
  const uint8_t* frame(const xdp_desc& came) const { return places_.frame(came); }

  // Sockets that get the frames of this port, or any. Errors: kTryAgain (too many ports),
  // kInvalidArgument (it is taken), kNoMemory, kUnreachable (the broker has gone).
  struct Port {
    XdpSocket* socket;
    PortClaim claimed;
  };
  Result<Port> open(uint16_t port);
  void close(XdpSocket& socket, uint16_t port);

  // In a child, after fork(): the memory is not there, and the map is the parent's.
  bool forked() const;

  // Places for frames to be sent, at most so many; returns how many.
  size_t take_places(XdpSocket& socket, std::span<uint64_t> out);
  void return_places(XdpSocket& socket, std::span<const uint64_t> places);
  // Places of frames that have come and been read.
  void give_back(std::span<const uint64_t> places);
  // A driver without copies may sleep until it is told that there are places.
  void wake_if_asked(const XdpSocket& socket) const;

 private:
  XdpInterface() = default;
  Status begin(std::unique_ptr<XdpSource> source);
  Status reserve();
  Status bind_first();
  Status make_socket(bool large);
  void take_back_late(XdpSocket& socket);

  std::unique_ptr<XdpSource> source_;
  std::shared_ptr<XdpDoor> door_;  // with whoever opens or closes it; null: it is not open yet
  int process_ = 0;
  uint8_t* memory_ = nullptr;
  Descriptor base_;  // has the memory and the two rings below; no frame is for it
  XdpRing<xdp_desc> base_rx_;
  XdpPlaces places_;
  bool zero_copy_ = false;
  // Contexts on other threads have ports here too. Whoever opens or closes one takes the first, as
  // a broker may keep him waiting; the second is for places, and for short.
  std::mutex ports_lock_, lock_;
  std::vector<std::unique_ptr<XdpSocket>> sockets_;
  size_t large_ = 0;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_XDP_INTERFACE_H_
