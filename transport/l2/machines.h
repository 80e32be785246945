// What the connections with one peer share, whatever their number: its account of what it makes
// us keep, and its part of the budget of pulls. A peer is a MAC address, or in UDP an IP address
// (of IPv6 the /64). Knows no connection.
#ifndef SLUICE_L2_MACHINES_H_
#define SLUICE_L2_MACHINES_H_

#include <memory>
#include <unordered_map>

#include <sluice/l2/carrier/frames.h>
#include <sluice/runtime/peer_account.h>

struct slp_share;

namespace sluice::l2 {

// Shared by its connections: none of them is the one that goes last.
class Machine {
 public:
  explicit Machine(std::shared_ptr<PeerAccount> account);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  const std::shared_ptr<PeerAccount>& account() const { return account_; }
  slp_share* share() { return share_.get(); }

 private:
  std::shared_ptr<PeerAccount> account_;
  std::unique_ptr<slp_share> share_;
};

// The machines that a context knows as peers.
class Machines {
 public:
  explicit Machines(PeerAccounts& accounts) : accounts_(accounts) {}
  std::shared_ptr<Machine> at(const PeerAddress& peer);

 private:
  PeerAccounts& accounts_;
  // By an account that lives; those of others are taken out as the table grows.
  std::unordered_map<const PeerAccount*, std::weak_ptr<Machine>> known_;
  size_t sweep_at_ = 64;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_MACHINES_H_
