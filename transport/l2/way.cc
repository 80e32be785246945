#include <sluice/l2/way.h>

#include <utility>
#include <vector>

#include <sluice/base/mac_names.h>
#include <sluice/l2/carrier/udp_carrier.h>
#include <sluice/l2/carrier/xdp_carrier.h>
#include <sluice/runtime/awaits.h>
#include <sluice/runtime/names.h>

namespace sluice::l2 {

Task<Result<Way>> open_way(ContextCore& context, Address address, bool ring, Instant deadline) {
  if (address.is_udp()) {
    SLUICE_CO_TRY(std::vector<SocketAddress> found,
                  co_await addresses_of(context.awaits(), address, deadline));
    SLUICE_CO_TRY(UdpMeeting meeting, open_udp_towards(found));
    co_return Way{std::move(meeting.opened), meeting.peer};
  }
  SLUICE_CO_TRY(MacAddress mac, mac_at(address.host, address.name));
  SLUICE_CO_TRY(OpenedCarrier opened, address.xdp ? open_xdp_carrier(address.host, 0)
                                                  : open_packet_carrier(address.host, 0, ring));
  co_return Way{std::move(opened), peer_at(mac)};
}

}  // namespace sluice::l2
