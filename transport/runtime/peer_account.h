// Counts what each peer has of a context's resources, and refuses what is too much. For
// backends, sessions and the exchange; programs set PeerLimits.
#ifndef SLUICE_RUNTIME_PEER_ACCOUNT_H_
#define SLUICE_RUNTIME_PEER_ACCOUNT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include <sluice/api/peer_limits.h>
#include <sluice/base/clock.h>
#include <sluice/base/status.h>

struct sockaddr;

namespace sluice {

// Whose resources are counted together.
class PeerIdentity {
 public:
  // The peer's address without its port; of IPv6 the /64 alone, since one host may use all
  // of it. IPv4 in IPv6 counts as IPv4. Other families: all of them are one peer.
  static PeerIdentity of_address(const sockaddr& address);
  static PeerIdentity of_ethernet(const std::array<uint8_t, 6>& mac);
  static PeerIdentity of_user(uint32_t uid);
  // This process itself: loopback.
  static PeerIdentity of_process();

  bool operator==(const PeerIdentity&) const = default;
  std::string to_string() const;  // for example "192.0.2.7", "2001:db8::/64", "user 1000"
  size_t hash() const;

 private:
  enum class Kind : uint8_t { kProcess, kUnknown, kIpv4, kIpv6, kEthernet, kUser };
  Kind kind_ = Kind::kProcess;
  std::array<uint8_t, 8> bytes_{};
};

class PeerAccounts;

// One peer's account. Shared by its connections; outlives the context if they do.
// Thread: the context's.
class PeerAccount {
 public:
  ~PeerAccount();
  PeerAccount(const PeerAccount&) = delete;
  PeerAccount& operator=(const PeerAccount&) = delete;

  const std::string& name() const { return name_; }
  const PeerIdentity& identity() const { return identity_; }
  uint64_t used(PeerResource resource) const { return used_[static_cast<size_t>(resource)]; }
  // Takes `amount` or nothing. Cost: a few ns. Errors: kTryAgain: the text names the peer,
  // the limit and the option that raises it.
  Status charge(PeerResource resource, uint64_t amount = 1) {
    return try_charge(resource, amount) ? Status() : refuse(resource, amount);
  }
  // Takes `amount` of what the peer can do without: if it has at most a quarter of its limit with
  // it, and all peers a quarter of theirs. False: nothing was taken, and nobody is told.
  bool charge_spare(PeerResource resource, uint64_t amount);
  // Gives back what charge() or charge_spare() took.
  void refund(PeerResource resource, uint64_t amount = 1);

  // The peer took so much of the thread for what no operation needed: messages, or a wait.
  void note_idle_talk(Duration took, Instant now);
  // It has had its part of the thread for that, a fifth, for all its connections together, also
  // those that ended. The rest waits.
  bool overdrawn(Instant now) const { return paid_until_ > now; }

 private:
  friend class PeerAccounts;
  struct Book;
  PeerAccount(std::shared_ptr<Book> book, const PeerIdentity& identity);
  bool try_charge(PeerResource resource, uint64_t amount);
  Status refuse(PeerResource resource, uint64_t amount);

  std::shared_ptr<Book> book_;
  PeerIdentity identity_;
  std::string name_;
  std::array<uint64_t, kPeerResourceCount> used_{};
  Instant paid_until_{};  // no idle talk before that
};

// A charge that ends with its holder.
class PeerCharge {
 public:
  PeerCharge() = default;
  // Requires: `amount` was charged to the account.
  PeerCharge(std::shared_ptr<PeerAccount> account, PeerResource resource, uint64_t amount = 1)
      : account_(std::move(account)), amount_(amount), resource_(resource) {}
  PeerCharge(PeerCharge&& other) noexcept
      : account_(std::move(other.account_)), amount_(other.amount_), resource_(other.resource_) {}
  PeerCharge& operator=(PeerCharge&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(amount_, other.amount_);
    std::swap(resource_, other.resource_);
    return *this;
  }
  ~PeerCharge() { end(); }
  void end() {
    if (account_) std::exchange(account_, nullptr)->refund(resource_, amount_);
  }
  const std::shared_ptr<PeerAccount>& account() const { return account_; }

 private:
  std::shared_ptr<PeerAccount> account_;
  uint64_t amount_ = 0;
  PeerResource resource_ = PeerResource::kConnections;
};

// The accounts of one context. Thread: the context's.
class PeerAccounts {
 public:
  // Requires: resolve()d limits.
  explicit PeerAccounts(const PeerLimits& limits);
  ~PeerAccounts();
  PeerAccounts(const PeerAccounts&) = delete;
  PeerAccounts& operator=(const PeerAccounts&) = delete;

  // The account of that peer; it lives as long as somebody holds it.
  std::shared_ptr<PeerAccount> open(const PeerIdentity& identity);
  const PeerLimits& limits() const;
  uint64_t used(PeerResource resource) const;
  size_t size() const;

 private:
  std::shared_ptr<PeerAccount::Book> book_;
};

// An account without limits, of nobody in particular.
std::shared_ptr<PeerAccount> unlimited_peer_account();

}  // namespace sluice

#endif  // SLUICE_RUNTIME_PEER_ACCOUNT_H_
