// This machine's network interfaces as Ethernet sees them, and what keeps each from being
// used. Opens no packet socket and knows no session.
#ifndef SLUICE_L2_CARRIER_INTERFACES_H_
#define SLUICE_L2_CARRIER_INTERFACES_H_

#include <net/if.h>

#include <string>
#include <vector>

namespace sluice::l2 {

struct Interface {
  std::string name;
  std::string mac;  // "02:00:00:00:00:0b"; empty: it has none
  int mtu = 0;
  bool up = false;        // administratively: ip link set NAME up
  bool carrier = false;   // there is a cable, and somebody at its other end
  bool loopback = false;  // reaches this machine only
  std::string obstacle;   // empty: frames can cross; else what to do about it
};

// The interfaces of this network namespace, in the kernel's order.
std::vector<Interface> survey_interfaces();

// For the calls of netdevice(7): about the interface of that name, which is cut to 15 bytes.
ifreq request_for(const std::string& name);

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_INTERFACES_H_
