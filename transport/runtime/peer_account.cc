#include <sluice/runtime/peer_account.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>

namespace sluice {
namespace {

constexpr const char* kOrigin = "api/peer_account";

// The part of each total that is reserved for peers that have little, and how much is little.
constexpr uint64_t kReservedPart = 4;
constexpr uint64_t kShare = 64;
// The part of each limit that charge_spare() may take.
constexpr uint64_t kSparePart = 4;

// How long messages that no operation needs rest for the time that they took: one part of five is
// theirs, so that a flood leaves most of the thread to others.
constexpr int kRestPerTalk = 4;

struct ResourceRow {
  PeerLimit PeerLimits::*limit;
  const char* option;
  const char* what;
};
// By PeerResource.
constexpr std::array<ResourceRow, kPeerResourceCount> kRows = {{
    {&PeerLimits::connections, "connections", "connections"},
    {&PeerLimits::half_open, "half_open", "connections whose handshake is not over"},
    {&PeerLimits::keys, "keys", "named keys"},
    {&PeerLimits::wants, "wants", "waiting requests for keys"},
    {&PeerLimits::unexpected_bytes, "unexpected_bytes",
     "bytes of messages that no receive was posted for"},
    {&PeerLimits::incoming_bytes, "incoming_bytes", "bytes of tensors that it is sending"},
    {&PeerLimits::control_bytes, "control_bytes",
     "bytes of control messages that it does not read"},
    {&PeerLimits::grants, "grants", "grants"},
    {&PeerLimits::extents, "extents", "mapped extents"},
    {&PeerLimits::address_bytes, "address_bytes", "bytes of addresses for its memory"},
}};

std::array<Counter, kPeerResourceCount> refused = {
    Counter("peer.refused_connections"),
    Counter("peer.refused_half_open"),
    Counter("peer.refused_keys"),
    Counter("peer.refused_wants"),
    Counter("peer.refused_unexpected_bytes"),
    Counter("peer.refused_incoming_bytes"),
    Counter("peer.refused_control_bytes"),
    Counter("peer.refused_grants"),
    Counter("peer.refused_extents"),
    Counter("peer.refused_address_bytes"),
};

uint64_t descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return std::min<uint64_t>(limit.rlim_cur, uint64_t{1} << 20);
}

void fill(PeerLimit& limit, uint64_t by_peer, uint64_t total) {
  if (limit.total == 0) limit.total = total;
  if (limit.by_peer == 0) limit.by_peer = std::min(by_peer, limit.total);
}

}  // namespace

PeerLimits resolve(PeerLimits limits, uint64_t arena_limit) {
  const PeerLimits usual;
  const uint64_t connections = std::clamp<uint64_t>(descriptor_limit() / 4 * 3, 1, 65'536);
  fill(limits.connections, std::max<uint64_t>(connections / 2, 1), connections);
  const uint64_t unexpected =
      std::clamp<uint64_t>(arena_limit / 4, uint64_t{1} << 20, uint64_t{256} << 20);
  fill(limits.unexpected_bytes, std::max<uint64_t>(unexpected / 4, uint64_t{1} << 20), unexpected);
  fill(limits.incoming_bytes, std::max<uint64_t>(arena_limit / 2, 1),
       std::max<uint64_t>(arena_limit, 1));
  for (const ResourceRow& row : kRows)
    fill(limits.*row.limit, (usual.*row.limit).by_peer, (usual.*row.limit).total);
  return limits;
}

PeerIdentity PeerIdentity::of_address(const sockaddr& address) {
  PeerIdentity identity;
  identity.kind_ = Kind::kUnknown;
  if (address.sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address, sizeof(v4));
    identity.kind_ = Kind::kIpv4;
    std::memcpy(identity.bytes_.data(), &v4.sin_addr, 4);
  } else if (address.sa_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, &address, sizeof(v6));
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
    identity.kind_ = mapped ? Kind::kIpv4 : Kind::kIpv6;
    std::memcpy(identity.bytes_.data(), v6.sin6_addr.s6_addr + (mapped ? 12 : 0), mapped ? 4 : 8);
  }
  return identity;
}

PeerIdentity PeerIdentity::of_ethernet(const std::array<uint8_t, 6>& mac) {
  PeerIdentity identity;
  identity.kind_ = Kind::kEthernet;
  std::copy(mac.begin(), mac.end(), identity.bytes_.begin());
  return identity;
}

PeerIdentity PeerIdentity::of_user(uint32_t uid) {
  PeerIdentity identity;
  identity.kind_ = Kind::kUser;
  std::memcpy(identity.bytes_.data(), &uid, sizeof(uid));
  return identity;
}

PeerIdentity PeerIdentity::of_process() { return PeerIdentity(); }

std::string PeerIdentity::to_string() const {
  switch (kind_) {
    case Kind::kProcess: return "this process";
    case Kind::kUnknown: return "an unknown address";
    case Kind::kIpv4: {
      char text[INET_ADDRSTRLEN];
      return ::inet_ntop(AF_INET, bytes_.data(), text, sizeof(text));
    }
    case Kind::kIpv6: {
      std::array<uint8_t, 16> address{};
      std::copy(bytes_.begin(), bytes_.end(), address.begin());
      char text[INET6_ADDRSTRLEN];
      return std::string(::inet_ntop(AF_INET6, address.data(), text, sizeof(text))) + "/64";
    }
    case Kind::kEthernet: {
      constexpr char kDigits[] = "0123456789abcdef";
      std::string text;
      for (size_t i = 0; i < 6; ++i) {
        if (i > 0) text += ':';
        text += kDigits[bytes_[i] >> 4];
        text += kDigits[bytes_[i] & 15];
      }
      return text;
    }
    case Kind::kUser: {
      uint32_t uid;
      std::memcpy(&uid, bytes_.data(), sizeof(uid));
      return "user " + std::to_string(uid);
    }
  }
  return "?";
}

size_t PeerIdentity::hash() const {
  std::string_view bytes(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
  return std::hash<std::string_view>()(bytes) ^ static_cast<size_t>(kind_);
}

namespace {
struct IdentityHash {
  size_t operator()(const PeerIdentity& identity) const { return identity.hash(); }
};
}  // namespace

struct PeerAccount::Book {
  PeerLimits limits;
  std::array<uint64_t, kPeerResourceCount> used{};
  std::array<LogThrottle, kPeerResourceCount> logs;
  std::unordered_map<PeerIdentity, std::weak_ptr<PeerAccount>, IdentityHash> accounts;
  // Peers without a connection that were overdrawn when their last one ended, the oldest of them
  // first replaced.
  struct Debt {
    PeerIdentity peer;
    Instant until{};
  };
  std::array<Debt, 64> debts;
  size_t next_debt = 0;
};

PeerAccount::PeerAccount(std::shared_ptr<Book> book, const PeerIdentity& identity)
    : book_(std::move(book)), identity_(identity), name_(identity.to_string()) {}

PeerAccount::~PeerAccount() {
  for (size_t i = 0; i < kPeerResourceCount; ++i) book_->used[i] -= used_[i];
  // A newer account of the same peer may be there: it was opened after our last holder had dropped
  // this one.
  auto found = book_->accounts.find(identity_);
  if (found != book_->accounts.end() && found->second.expired()) book_->accounts.erase(found);
  if (paid_until_ != Instant()) {
    book_->debts[book_->next_debt] = {identity_, paid_until_};
    book_->next_debt = (book_->next_debt + 1) % book_->debts.size();
  }
}

bool PeerAccount::try_charge(PeerResource resource, uint64_t amount) {
  const auto i = static_cast<size_t>(resource);
  const PeerLimit& limit = book_->limits.*kRows[i].limit;
  if (amount > limit.by_peer || used_[i] > limit.by_peer - amount) return false;
  const uint64_t all = book_->used[i];
  if (amount > limit.total || all > limit.total - amount) return false;
  const bool below_share = used_[i] + amount <= std::max<uint64_t>(limit.total / kShare, 1);
  if (!below_share && all + amount > limit.total - limit.total / kReservedPart) return false;
  used_[i] += amount;
  book_->used[i] += amount;
  return true;
}

bool PeerAccount::charge_spare(PeerResource resource, uint64_t amount) {
  const auto i = static_cast<size_t>(resource);
  const PeerLimit& limit = book_->limits.*kRows[i].limit;
  const bool spare = amount <= limit.by_peer / kSparePart && amount <= limit.total / kSparePart &&
                     used_[i] <= limit.by_peer / kSparePart - amount &&
                     book_->used[i] <= limit.total / kSparePart - amount;
  return spare && try_charge(resource, amount);
}

void PeerAccount::refund(PeerResource resource, uint64_t amount) {
  const auto i = static_cast<size_t>(resource);
  amount = std::min(amount, used_[i]);
  used_[i] -= amount;
  book_->used[i] -= amount;
}

void PeerAccount::note_idle_talk(Duration took, Instant now) {
  paid_until_ = std::max(paid_until_, now) + took * kRestPerTalk;
}

Status PeerAccount::refuse(PeerResource resource, uint64_t amount) {
  const auto i = static_cast<size_t>(resource);
  const ResourceRow& row = kRows[i];
  const PeerLimit& limit = book_->limits.*row.limit;
  refused[i].add();
  const bool own = amount > limit.by_peer || used_[i] > limit.by_peer - amount;
  std::string text = "peer " + name_ + " has " + std::to_string(used_[i]) + " " + row.what;
  if (own) {
    text += " of at most " + std::to_string(limit.by_peer);
  } else {
    text += ", all peers together " + std::to_string(book_->used[i]) + " of at most " +
            std::to_string(limit.total) + ", a quarter kept for those that have few";
  }
  text += "; ContextOptions::peer_limits." + std::string(row.option) + " sets the limits";
  book_->logs[i].log(LogLevel::kWarning, "refused: " + text + " (further refusals are counted in " +
                                             refused[i].name() + ")");
  return Status(Code::kTryAgain, Scope::kOperation, kOrigin, text);
}

PeerAccounts::PeerAccounts(const PeerLimits& limits)
    : book_(std::make_shared<PeerAccount::Book>()) {
  book_->limits = limits;
}

PeerAccounts::~PeerAccounts() = default;

std::shared_ptr<PeerAccount> PeerAccounts::open(const PeerIdentity& identity) {
  std::weak_ptr<PeerAccount>& known = book_->accounts[identity];
  if (auto account = known.lock()) return account;
  std::shared_ptr<PeerAccount> account(new PeerAccount(book_, identity));
  for (const auto& debt : book_->debts) {
    if (debt.peer == identity) account->paid_until_ = std::max(account->paid_until_, debt.until);
  }
  known = account;
  return account;
}

const PeerLimits& PeerAccounts::limits() const { return book_->limits; }
uint64_t PeerAccounts::used(PeerResource resource) const {
  return book_->used[static_cast<size_t>(resource)];
}
size_t PeerAccounts::size() const { return book_->accounts.size(); }

std::shared_ptr<PeerAccount> unlimited_peer_account() {
  PeerLimits limits;
  for (const ResourceRow& row : kRows) limits.*row.limit = {UINT64_MAX, UINT64_MAX};
  return PeerAccounts(limits).open(PeerIdentity::of_process());
}

}  // namespace sluice
