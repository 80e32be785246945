// Grants of one-sided access: numbered, checked on every use, never reused.
#ifndef SLUICE_PROTO_GRANTS_H_
#define SLUICE_PROTO_GRANTS_H_

#include <cstdint>
#include <unordered_map>

#include <sluice/allocator/storage.h>
#include <sluice/api/remote_key.h>
#include <sluice/base/checked.h>
#include <sluice/proto/link.h>

namespace sluice::proto {

struct Grant {
  StorageRef storage;  // keeps the memory while the grant lives
  std::byte* data = nullptr;
  uint64_t length = 0;
  uint32_t epoch = 0;
  Right rights = Right::kRead;
  Instant deadline = kNever;
  WindowId window = 0;  // direct paths: what the peer's device goes through
};

class Grants {
 public:
  // Most grants of one endpoint at once.
  static constexpr size_t kLimit = 4096;

  Result<RemoteKey> add(Grant grant) {
    if (grants_.size() >= kLimit) {
      return Status(Code::kTryAgain, Scope::kOperation, "proto/grants", "4096 grants to one peer; revoke some");
    }
    // The epoch is mixed from the number so that a stale key of an earlier life of the
    // process, whose numbers start alike, is refused.
    uint64_t number = next_++;
    grant.epoch = static_cast<uint32_t>((number + salt_) * 0x9E3779B97F4A7C15u >> 32);
    RemoteKey key{.grant = number, .length = grant.length, .epoch = grant.epoch, .rights = grant.rights};
    grants_.emplace(number, std::move(grant));
    return key;
  }
  void set_salt(uint64_t salt) { salt_ = salt; }
  // Null unless the peer may do `right` on [offset, offset + length) now. `clock` is
  // asked only for a grant that has a deadline.
  template <typename Clock>
  const Grant* check(uint64_t number, uint32_t epoch, Right right, uint64_t offset, uint64_t length, Clock&& clock) const {
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
  uint64_t next_ = 1;
  uint64_t salt_ = 0;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_GRANTS_H_
