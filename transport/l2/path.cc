#include <sluice/l2/path.h>

#include <sluice/l2/carrier/frames.h>
#include <sluice/l2/carrier/packet_socket.h>
#include <sluice/l2/carrier/udp_socket.h>
#include <sluice/l2/carrier/xdp_carrier.h>
#include <sluice/l2/provider.h>
#include <sluice/l2/traits.h>
#include <sluice/runtime/context_core.h>

namespace sluice::l2 {
namespace {

PathState explain_packet() {
  Status allowed = packet_sockets_allowed();
  return {.usable = allowed.ok(),
          .why = allowed.ok() ? "for peers on the same Ethernet, by l2:// addresses"
                              : std::string(allowed.detail()),
          .properties = l2_traits(Path::kPacket).properties};
}

PathState explain_datagrams() {
  auto how = explain_udp();
  return {.usable = how.ok(),
          .why = how.ok()
                     ? "for every peer that an IP address reaches, by l2://udp/ addresses: " + *how
                     : std::string(how.status().detail()),
          .properties = l2_traits(Path::kUdp).properties};
}

PathState explain_xdp() {
  Status allowed = xdp_allowed();
  return {.usable = allowed.ok(),
          .why = allowed.ok()
                     ? "for peers on the same Ethernet, by l2://xdp/ addresses, one process "
                       "for each interface; the interface's driver must have XDP"
                     : std::string(allowed.detail()),
          .properties = l2_traits(Path::kXdp).properties};
}

std::string packet_trial() { return "l2://lo:0"; }
std::string udp_trial() { return "l2://udp/127.0.0.1:0"; }
std::unique_ptr<Provider> open(ContextCore& context) {
  return std::make_unique<L2Provider>(context);
}

}  // namespace

const PathDescriptor kPacketPath{
    .path = Path::kPacket,
    .scheme = Scheme::kL2,
    .name = "l2",
    .explain = explain_packet,
    .trial_address = packet_trial,
    .remedy = "give the program CAP_NET_RAW, or run `sluice broker`: docs/ethernet.md",
    .needs =
        "both ends must be machines on one Ethernet that may send raw frames, which sluice doctor "
        "says, and the listener must wish Ethernet: set SLUICE_ETHERNET=1 where it runs",
    .open = open,
};

// No trial: the loopback device has no XDP of its own.
const PathDescriptor kXdpPath{
    .path = Path::kXdp,
    .scheme = Scheme::kL2,
    .name = "xdp",
    .explain = explain_xdp,
    .remedy =
        "run it as root, or run `sluice broker --xdp`, or use l2://INTERFACE, which needs less: "
        "docs/ethernet.md",
};

const PathDescriptor kUdpPath{
    .path = Path::kUdp,
    .scheme = Scheme::kL2,
    .name = "udp",
    .explain = explain_datagrams,
    .trial_address = udp_trial,
    .remedy =
        "`sudo ip link set lo up`; then see `ip address show lo` and the firewall's rules "
        "(`sudo nft list ruleset`)",
};

}  // namespace sluice::l2
