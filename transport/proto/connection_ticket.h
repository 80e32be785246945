// The right to one connection of a listener: counted there and in the peer's account until it ends.
#ifndef SLUICE_PROTO_CONNECTION_TICKET_H_
#define SLUICE_PROTO_CONNECTION_TICKET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

#include <sluice/runtime/peer_account.h>

namespace sluice::proto {

// Open connections of one listener. Thread: the context's.
struct OpenConnections {
  struct Hash {
    size_t operator()(const PeerIdentity& identity) const { return identity.hash(); }
  };
  uint64_t all = 0;
  std::unordered_map<PeerIdentity, uint64_t, Hash> by_peer;
};

// Shares what it is counted in: it may outlive the listener and the context.
class ConnectionTicket {
 public:
  ConnectionTicket() = default;
  ConnectionTicket(std::shared_ptr<OpenConnections> counted, const PeerIdentity& identity,
                   PeerCharge charge)
      : counted_(std::move(counted)), identity_(identity), charge_(std::move(charge)) {
    ++counted_->all;
    ++counted_->by_peer[identity_];
  }
  ConnectionTicket(ConnectionTicket&& other) noexcept
      : counted_(std::move(other.counted_)),
        identity_(other.identity_),
        charge_(std::move(other.charge_)) {}
  ConnectionTicket& operator=(ConnectionTicket&& other) noexcept {
    std::swap(counted_, other.counted_);
    std::swap(identity_, other.identity_);
    charge_ = std::move(other.charge_);
    return *this;
  }
  ~ConnectionTicket() { end(); }
  void end() {
    charge_.end();
    if (!counted_) return;
    --counted_->all;
    auto found = counted_->by_peer.find(identity_);
    if (--found->second == 0) counted_->by_peer.erase(found);
    counted_.reset();
  }

 private:
  std::shared_ptr<OpenConnections> counted_;
  PeerIdentity identity_;
  PeerCharge charge_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_CONNECTION_TICKET_H_
