// Connections of one port, by the place of their peer and its nonce: whose a HELLO is. Hashed
// under a random key, so that nobody can choose places that collide. Knows numbers only.
#ifndef SLUICE_L2_CARRIER_PLACES_H_
#define SLUICE_L2_CARRIER_PLACES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include <sluice/l2/carrier/frames.h>

namespace sluice::l2 {

struct PeerPlace {
  PeerAddress address;
  uint16_t port = 0;
  bool operator==(const PeerPlace&) const = default;
};

class Places {
 public:
  // Nonce 0: the peer's is not known. Requires: `number` is not zero, and not there.
  void add(const PeerPlace& place, uint64_t nonce, uint32_t number);
  // Requires: as it was added.
  void remove(const PeerPlace& place, uint64_t nonce, uint32_t number);
  // The one that was added last at a place, and the last that has this nonce there; 0: none.
  // Cost: one look-up, however many there are.
  uint32_t latest(const PeerPlace& place) const;
  uint32_t find(const PeerPlace& place, uint64_t nonce) const;
  // All of one place, until add() or remove(): one, but for those with a secret that are not
  // confirmed yet, which their listener bounds (half_open.h).
  std::span<const uint32_t> at(const PeerPlace& place) const;

  // Keys that were compared so far, in every Places of the process: for tests.
  static uint64_t compared();

 private:
  struct Key {
    PeerPlace place;
    uint64_t nonce = 0;
  };
  struct Hash {
    Hash();  // of a random key
    std::array<uint8_t, 16> key;
    size_t operator()(const Key& k) const;
  };
  struct Equal {
    bool operator()(const Key& a, const Key& b) const;
  };
  template <typename Value>
  using Table = std::unordered_map<Key, Value, Hash, Equal>;

  Table<std::vector<uint32_t>> by_place_;  // in the order in which they were added
  Table<uint32_t> by_nonce_;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_PLACES_H_
