// The XDP program of an interface: SLP's frames to our ports go to their AF_XDP sockets, all else
// passes to the kernel. Made by hand and loaded by bpf(2). Must not know sockets nor sessions.
#ifndef SLUICE_L2_CARRIER_XDP_PROGRAM_H_
#define SLUICE_L2_CARRIER_XDP_PROGRAM_H_

#include <cstdint>
#include <string>

#include <sluice/base/descriptor.h>
#include <sluice/base/mac_address.h>
#include <sluice/base/result.h>

namespace sluice::l2 {

struct XdpPlace {
  std::string interface;
  int index = 0;
  int mtu = 0;
  MacAddress mac{};
  uint32_t queue = 0;
  bool may_be_generic = false;  // by the kernel's network stack where the driver has no XDP
};

class XdpProgram {
 public:
  // Attached as long as this lives, and no longer than the process. Errors: kAccessDenied
  // (capabilities), kTryAgain (another program is attached: the detail names it), kUnsupported (of
  // the driver, its MTU or the kernel), kNoMemory.
  static Result<XdpProgram> attach(const XdpPlace& place);

  // From now on frames to this port go to that socket; all the others pass. Errors: kNoMemory.
  Status direct(uint16_t port, int socket);
  void pass(uint16_t port);

 private:
  XdpProgram(Descriptor map, Descriptor link) : map_(std::move(map)), link_(std::move(link)) {}
  Descriptor map_;   // by port: a socket
  Descriptor link_;  // detaches the program when it is closed
};

// Which XDP program the interface has: "'xdp_filter' (id 7)"; empty: none that can be seen.
std::string attached_xdp_program(int interface_index);

// "sudo setcap ... PROGRAM": what this process lacks for AF_XDP.
std::string xdp_capabilities_remedy();
// Whether this process may load such a program: ok, or what to do about it.
Status xdp_programs_allowed();

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_XDP_PROGRAM_H_
