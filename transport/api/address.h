// Addresses as users write them. Parsing only; names are resolved by the backend.
#ifndef SLUICE_API_ADDRESS_H_
#define SLUICE_API_ADDRESS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include <sluice/api/path_names.h>
#include <sluice/base/result.h>

namespace sluice {

// sluice://host:port  best path that a probe proves; tcp://host:port  TCP only;
// rdma://host:port  RDMA only, the address of an RDMA device's port;
// l2://interface/MAC:port  Ethernet frames only, by this machine's interface; to listen:
// l2://interface:port; the backend looks a name for the MAC address up (base/mac_names.h). If it
// asks by broadcast, the port may be left out: l2://interface/name; l2://udp/host:port  the same
// frames in UDP datagrams; to listen at every address of this machine: l2://udp:port. So no
// interface can be called udp here; l2://xdp/interface/MAC:port  Ethernet frames by AF_XDP sockets
// and nothing else; to listen: l2://xdp/interface:port; kmod://interface/MAC:port  the same by the
// kernel module's sockets; to listen: kmod://interface:port; shm:name  shared memory only;
// loopback:name  within one process. A host may be a name, an IPv4 address or an IPv6 address in
// brackets.
struct Address {
  Scheme scheme = Scheme::kSluice;
  std::string host;   // sluice, tcp, rdma; l2, kmod: the interface; l2: or "udp"
  uint16_t port = 0;  // sluice, tcp, rdma, l2, kmod; 0 when listening: any free port; after a name:
                      // the port of the listener that has it
  std::string name;   // shm, loopback: 1..64 of [A-Za-z0-9._-]; l2, kmod: the MAC address or a name
                      // for it, of udp the host; or none

  bool xdp = false;  // l2: frames by AF_XDP sockets

  // Errors: kInvalidArgument; the text quotes what was given and shows an example.
  static Result<Address> parse(std::string_view text);
  bool is_udp() const { return scheme == Scheme::kL2 && host == "udp"; }
  std::string to_string() const;
};

}  // namespace sluice

#endif  // SLUICE_API_ADDRESS_H_
