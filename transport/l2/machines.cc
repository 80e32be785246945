#include <sluice/l2/machines.h>

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <utility>

#include <sluice/l2/carrier/udp_socket.h>

#include "kernel_compat/slp/slp.h"

namespace sluice::l2 {
namespace {

constexpr uint8_t kMacBytes = 6;

PeerIdentity identity_of(const PeerAddress& peer) {
  if (peer.size == kMacBytes) {
    std::array<uint8_t, kMacBytes> mac;
    std::copy_n(peer.bytes.begin(), kMacBytes, mac.begin());
    return PeerIdentity::of_ethernet(mac);
  }
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = unpack(peer).address;
  return PeerIdentity::of_address(reinterpret_cast<const sockaddr&>(address));
}

}  // namespace

Machine::Machine(std::shared_ptr<PeerAccount> account)
    : account_(std::move(account)), share_(std::make_unique<slp_share>()) {
  slp_share_init(share_.get());
}

Machine::~Machine() = default;

std::shared_ptr<Machine> Machines::at(const PeerAddress& peer) {
  std::shared_ptr<PeerAccount> account = accounts_.open(identity_of(peer));
  if (known_.size() >= sweep_at_) {
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(64, 2 * known_.size());
  }
  std::weak_ptr<Machine>& known = known_[account.get()];
  if (std::shared_ptr<Machine> machine = known.lock()) return machine;
  auto machine = std::make_shared<Machine>(std::move(account));
  known = machine;
  return machine;
}

}  // namespace sluice::l2
