// What takes privileges for AF_XDP at an interface: the program, the sockets, and which ports have
// frames. By the process's own rights here; by a broker's in borrowed_xdp.h. Must not know the
// memory of frames, nor rings, nor sessions.
#ifndef SLUICE_L2_CARRIER_XDP_SOURCE_H_
#define SLUICE_L2_CARRIER_XDP_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <sluice/base/descriptor.h>
#include <sluice/base/result.h>
#include <sluice/l2/carrier/packet_socket.h>
#include <sluice/l2/carrier/xdp_program.h>

namespace sluice::l2 {

// Ports of one interface.
inline constexpr size_t kMostXdpPorts = 36;

// Of one port at a time; they are not bound yet, and need no privilege any more.
struct XdpSockets {
  Descriptor receive, send;
};

class XdpSource {
 public:
  virtual ~XdpSource() = default;
  const XdpPlace& place() const { return place_; }
  // A socket in the interface's network, for netdevice(7). This process need not be there.
  int questions() const { return claim_.value(); }
  // Stands for the interface and queue. Processes that ask who has them are told whose it was when
  // the program was attached, or the last one that called announce_xdp() with it.
  int claim() const { return claim_.value(); }
  // An AF_XDP socket which no frame is for. Once.
  Descriptor take_base() { return std::move(base_); }

  // Errors of all: kAccessDenied, kNoMemory, kTryAgain (too many), those of claim_any_port(); of
  // a borrowed one also kUnreachable (the broker has gone).
  // Of that number, for open(): the next, or one whose sockets are gone.
  virtual Result<XdpSockets> sockets(uint32_t number) = 0;
  // Frames to that port, which nobody has, or to any, come to those sockets from now on.
  virtual Result<PortClaim> open(uint32_t number, int receive, uint16_t port) = 0;
  virtual void close(uint16_t port) = 0;
  // Whether frames still come.
  virtual Status look() const { return Status(); }

 protected:
  XdpPlace place_;
  Descriptor claim_;
  Descriptor base_;
};

class OwnXdp final : public XdpSource {
 public:
  // Errors: those of XdpProgram::attach(); kInvalidArgument (no such interface), kUnreachable (it
  // is down), kUnsupported, kTryAgain (a process has it: the detail has its number).
  static Result<std::unique_ptr<OwnXdp>> attach(const std::string& interface);

  // From now on the holders of sockets can bind them at this interface only (Linux 6.5), and can
  // undo that with CAP_NET_RAW only.
  Status confine();

  Result<XdpSockets> sockets(uint32_t number) override;
  Result<PortClaim> open(uint32_t number, int receive, uint16_t port) override;
  void close(uint16_t port) override { program_->pass(port); }

 private:
  Status claim_queue();
  Status keep_here(int socket) const;

  std::optional<XdpProgram> program_;
  bool confined_ = false;
};

// Processes that ask about the claim are told the number of the one that calls this.
Status announce_xdp(int claim);

// "process 12 uses AF_XDP at eth0, ..."; 0: its number is not known.
Status xdp_is_taken(const std::string& interface, int process);

// What the interface is: index, MTU, MAC address. Errors: kInvalidArgument (it is not there),
// kUnsupported (no Ethernet), kUnreachable (it is down).
Status describe_xdp_place(int questions, XdpPlace& place);

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_XDP_SOURCE_H_
