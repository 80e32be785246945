// What must be true of two ends that talk SLP, whatever happens between them: messages in
// order and once, every byte of a transfer once and in its place, nothing touched before or
// after, every operation ended once. Knows nothing of how the protocol does it.
#ifndef SLUICE_TESTS_SLP_JUDGE_H_
#define SLUICE_TESTS_SLP_JUDGE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace sluice::slp {

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool truth, const char* what) {
  if (!truth) throw Wrong(what);
}

// Fills with the bytes from `offset` on of the memory or the message number `id`.
void fill(uint64_t id, uint64_t offset, uint8_t* data, uint64_t bytes);
bool matches(uint64_t id, const uint8_t* data, uint64_t bytes);

// Memory that one end has given to the protocol under a cookie.
struct Region {
  enum class Role { kSource, kTarget };
  Role role;
  std::vector<uint8_t> bytes;
  std::vector<uint8_t> placed;  // how often, for each byte
  uint64_t filled = 0;          // bytes placed
  bool live = true;             // the protocol may touch it
};

// A transfer that one end has asked for.
struct Wanted {
  bool pull;
  uint64_t peer_region, offset, length;  // whose bytes, or where they go
  uint64_t own_region;
  bool ended = false, ok = false;
};

// One end of one session, and what it has promised or been promised.
class Account {
 public:
  // A message leaves: in this order they must arrive.
  void sent(uint64_t id, uint32_t bytes) { sent_.push_back({id, bytes}); }
  Region& give(uint64_t cookie, Region::Role role, uint64_t bytes, uint64_t pattern_id);
  void take_back(uint64_t cookie) { find(cookie).live = false; }
  Region& find(uint64_t cookie);
  void place(uint64_t cookie, uint64_t offset, const uint8_t* data, uint32_t bytes);
  // The next message of the other end's account, which this one has received.
  void received(Account& peer, uint64_t id, const uint8_t* data, uint32_t bytes);
  void want(uint64_t cookie, const Wanted& wanted) { wanted_.emplace(cookie, wanted); }
  void ended(Account& peer, uint64_t cookie, bool ok);
  bool knows(uint64_t cookie) const { return wanted_.contains(cookie); }

  // That is the next message to arrive.
  bool expects(uint64_t id) const { return !sent_.empty() && sent_.front().id == id; }
  size_t undelivered() const { return sent_.size(); }
  size_t open() const;
  uint64_t delivered = 0, transfers_ok = 0, transfers_failed = 0;

 private:
  struct Sent {
    uint64_t id;
    uint32_t bytes;
  };
  std::deque<Sent> sent_;
  std::map<uint64_t, Region> regions_;
  std::map<uint64_t, Wanted> wanted_;
};

// Every seal of a world: two of one key and one nonce would give its secrets away.
class NonceBook {
 public:
  // A key may seal so many frames.
  explicit NonceBook(uint64_t most) : most_(most) {}
  void sealed(uint64_t key, uint32_t direction, uint64_t number);
  // Frames are named by what no two of them have in common.
  void taken(uint64_t frame);
  uint64_t keys() const { return seals_.size(); }

 private:
  uint64_t most_;
  // By key and direction: numbers.
  std::map<std::pair<uint64_t, uint32_t>, std::unordered_set<uint64_t>> used_;
  std::map<uint64_t, uint64_t> seals_;
  std::unordered_set<uint64_t> taken_;
};

}  // namespace sluice::slp

#endif  // SLUICE_TESTS_SLP_JUDGE_H_
