// What one connection over shared memory has of its peer's account: its place among the
// connections, addresses and mappings. Knows no socket and no mapping.
#ifndef SLUICE_SHM_CONNECTION_ACCOUNT_H_
#define SLUICE_SHM_CONNECTION_ACCOUNT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include <sluice/proto/connection_ticket.h>
#include <sluice/runtime/peer_account.h>

namespace sluice::shm {

// Shared by the link and by the mapping of the peer's memory, which views may keep for longer and
// end on any thread. Thread: the context's, but for unmapped().
class ConnectionAccount {
 public:
  // `place`: the listener's, if it gave one.
  explicit ConnectionAccount(std::shared_ptr<PeerAccount> peer, proto::ConnectionTicket place = {})
      : peer_(std::move(peer)), place_(std::move(place)) {}
  ~ConnectionAccount() { settle(); }
  ConnectionAccount(const ConnectionAccount&) = delete;
  ConnectionAccount& operator=(const ConnectionAccount&) = delete;

  const std::shared_ptr<PeerAccount>& peer() const { return peer_; }
  // Errors: kTryAgain (PeerLimits::address_bytes, PeerLimits::extents).
  Status take_addresses(uint64_t bytes);
  void give_addresses(uint64_t bytes);
  Status take_extents(uint64_t count);
  void give_extents(uint64_t count);

  // Until unmapped(), the mapping has something of this.
  void mapped() { is_mapped_.store(true, std::memory_order_relaxed); }
  // Thread: any.
  void unmapped() { is_mapped_.store(false, std::memory_order_release); }
  bool is_mapped() const { return is_mapped_.load(std::memory_order_acquire); }

  // The connection is over and nothing of it is mapped: everything goes back. Also at the end of
  // the context, whose account nobody reads any more.
  void settle();

 private:
  std::shared_ptr<PeerAccount> peer_;
  proto::ConnectionTicket place_;
  uint64_t addresses_ = 0, extents_ = 0;
  std::atomic<bool> is_mapped_{false};
};

}  // namespace sluice::shm

#endif  // SLUICE_SHM_CONNECTION_ACCOUNT_H_
