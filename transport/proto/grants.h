// Grants of one-sided access: named by random numbers, checked on every use, never reused.
#ifndef SLUICE_PROTO_GRANTS_H_
#define SLUICE_PROTO_GRANTS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>

#include <sluice/allocator/storage.h>
#include <sluice/api/remote_key.h>
#include <sluice/base/checked.h>
#include <sluice/runtime/peer_account.h>
#include <sluice/spi/link.h>

namespace sluice::proto {

struct Grant {
  StorageRef storage;  // keeps the memory while the grant lives
  std::byte* data = nullptr;
  uint64_t length = 0;
  uint32_t epoch = 0;
  Right rights = Right::kRead;
  Instant deadline = kNever;
  WindowId window = 0;  // direct paths: what the peer's device goes through
  PeerCharge charge;
};

// Fills a span with bytes that nobody can guess.
using RandomSource = std::function<void(std::span<std::byte>)>;

class Grants {
 public:
  // Most grants of one endpoint at once.
  static constexpr size_t kLimit = 4096;

  explicit Grants(RandomSource random) : random_(std::move(random)) {}

  Result<RemoteKey> add(Grant grant) {
    if (grants_.size() >= kLimit) {
      return Status(Code::kTryAgain, Scope::kOperation, "proto/grants",
                    "4096 grants to one peer; revoke some");
    }
    // 64 random bits for the number and 32 for the epoch: who was not told them cannot find
    // them, neither from HELLO nor from grants of his own. A stale key of an earlier life of
    // the process is refused like any other guess.
    struct {
      uint64_t number;
      uint32_t epoch;
    } bits;
    do {
      random_(std::as_writable_bytes(std::span(&bits, 1)));
    } while (bits.number == 0 || grants_.contains(bits.number));
    grant.epoch = bits.epoch;
    RemoteKey key{
        .grant = bits.number, .length = grant.length, .epoch = grant.epoch, .rights = grant.rights};
    grants_.emplace(bits.number, std::move(grant));
    return key;
  }
  size_t size() const { return grants_.size(); }
  // Null unless the peer may do `right` on [offset, offset + length) now. `clock` is
  // asked only for a grant that has a deadline.
  template <typename Clock>
  const Grant* check(uint64_t number, uint32_t epoch, Right right, uint64_t offset, uint64_t length,
                     Clock&& clock) const {
    auto found = grants_.find(number);
    if (found == grants_.end()) return nullptr;
    const Grant& grant = found->second;
    bool allowed = (static_cast<uint8_t>(grant.rights) & static_cast<uint8_t>(right)) != 0;
    if (!allowed || grant.epoch != epoch) return nullptr;
    if (grant.deadline != kNever && clock() >= grant.deadline) return nullptr;
    return range_fits(offset, length, grant.length) ? &grant : nullptr;
  }
  bool remove(uint64_t number) { return grants_.erase(number) > 0; }
  const Grant* find(uint64_t number) const {
    auto found = grants_.find(number);
    return found == grants_.end() ? nullptr : &found->second;
  }
  // Calls visit(number, grant) for each, which may not change the table.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [number, grant] : grants_) visit(number, grant);
  }
  void clear() { grants_.clear(); }

 private:
  std::unordered_map<uint64_t, Grant> grants_;
  RandomSource random_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_GRANTS_H_
