#include <sluice/l2/carrier/places.h>

#include <algorithm>
#include <cstring>

#include <sluice/base/counters.h>
#include <sluice/runtime/identity.h>

#include "kernel_compat/slp/slp_base.h"

namespace sluice::l2 {
namespace {

Counter places_compared("l2.places_compared");

}  // namespace

Places::Hash::Hash() { fill_random(std::as_writable_bytes(std::span(key))); }

size_t Places::Hash::operator()(const Key& k) const {
  uint8_t text[sizeof(k.place.address.bytes) + 1 + 2 + 8] = {};
  std::memcpy(text, k.place.address.bytes.data(), k.place.address.size);
  uint8_t* rest = text + sizeof(k.place.address.bytes);
  rest[0] = k.place.address.size;
  slp_store16(rest + 1, k.place.port);
  slp_store64(rest + 3, k.nonce);
  return slp_siphash(key.data(), text, sizeof(text));
}

bool Places::Equal::operator()(const Key& a, const Key& b) const {
  places_compared.add();
  return a.nonce == b.nonce && a.place == b.place;
}

void Places::add(const PeerPlace& place, uint64_t nonce, uint32_t number) {
  by_place_[{place, 0}].push_back(number);
  if (nonce != 0) by_nonce_[{place, nonce}] = number;
}

void Places::remove(const PeerPlace& place, uint64_t nonce, uint32_t number) {
  auto there = by_place_.find({place, 0});
  std::erase(there->second, number);
  if (there->second.empty()) by_place_.erase(there);
  auto known = nonce != 0 ? by_nonce_.find({place, nonce}) : by_nonce_.end();
  if (known != by_nonce_.end() && known->second == number) by_nonce_.erase(known);
}

uint32_t Places::latest(const PeerPlace& place) const {
  auto there = by_place_.find({place, 0});
  return there != by_place_.end() ? there->second.back() : 0;
}

uint32_t Places::find(const PeerPlace& place, uint64_t nonce) const {
  auto known = by_nonce_.find({place, nonce});
  return known != by_nonce_.end() ? known->second : 0;
}

std::span<const uint32_t> Places::at(const PeerPlace& place) const {
  auto there = by_place_.find({place, 0});
  return there != by_place_.end() ? std::span<const uint32_t>(there->second)
                                  : std::span<const uint32_t>();
}

uint64_t Places::compared() { return places_compared.value(); }

}  // namespace sluice::l2
