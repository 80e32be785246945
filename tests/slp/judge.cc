#include "tests/slp/judge.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace sluice::slp {
namespace {

// Noise of a prime's length, so that no two places of a transfer look alike by alignment.
constexpr uint64_t kNoise = 65'521;
const std::array<uint8_t, kNoise>& noise() {
  static const auto bytes = [] {
    std::array<uint8_t, kNoise> made{};
    uint64_t state = 88172645463325252u;  // xorshift64 (Marsaglia, 2003)
    for (uint8_t& byte : made) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      byte = static_cast<uint8_t>(state >> 24);
    }
    return made;
  }();
  return bytes;
}

template <typename Piece>
void each_piece(uint64_t id, uint64_t offset, uint64_t bytes, Piece piece) {
  for (uint64_t done = 0; done < bytes;) {
    uint64_t at = (id * 7919 + offset + done) % kNoise;
    uint64_t step = std::min(bytes - done, kNoise - at);
    piece(done, noise().data() + at, step);
    done += step;
  }
}

}  // namespace

void fill(uint64_t id, uint64_t offset, uint8_t* data, uint64_t bytes) {
  each_piece(id, offset, bytes, [&](uint64_t done, const uint8_t* from, uint64_t step) {
    std::memcpy(data + done, from, step);
  });
}

bool matches(uint64_t id, const uint8_t* data, uint64_t bytes) {
  bool same = true;
  each_piece(id, 0, bytes, [&](uint64_t done, const uint8_t* from, uint64_t step) {
    same = same && std::memcmp(data + done, from, step) == 0;
  });
  return same;
}

Region& Account::give(uint64_t cookie, Region::Role role, uint64_t bytes, uint64_t pattern_id) {
  auto [place, fresh] = regions_.emplace(cookie, Region{.role = role, .bytes = {}, .placed = {}});
  require(fresh, "the test used a cookie twice");
  Region& region = place->second;
  region.bytes.resize(bytes);
  if (role == Region::Role::kTarget) {
    region.placed.resize(bytes);
    return region;
  }
  fill(pattern_id, 0, region.bytes.data(), bytes);
  return region;
}

Region& Account::find(uint64_t cookie) {
  auto found = regions_.find(cookie);
  require(found != regions_.end(), "memory that was never given");
  return found->second;
}

void Account::place(uint64_t cookie, uint64_t offset, const uint8_t* data, uint32_t bytes) {
  Region& region = find(cookie);
  require(region.live, "memory was written after it was taken back");
  require(region.role == Region::Role::kTarget, "memory that only may be read was written");
  require(bytes > 0 && offset <= region.bytes.size() && bytes <= region.bytes.size() - offset,
          "bytes outside the memory");
  require(std::memchr(region.placed.data() + offset, 1, bytes) == nullptr,
          "a byte was placed twice");
  std::memset(region.placed.data() + offset, 1, bytes);
  std::memcpy(region.bytes.data() + offset, data, bytes);
  region.filled += bytes;
}

void Account::received(Account& peer, uint64_t id, const uint8_t* data, uint32_t bytes) {
  require(!peer.sent_.empty(), "a message that was not sent, or came twice");
  Sent next = peer.sent_.front();
  peer.sent_.pop_front();
  require(next.id == id, "a message out of order, or one is missing");
  require(next.bytes == bytes, "a message of another length");
  require(matches(id, data, bytes), "a message with other bytes");
  ++delivered;
}

void Account::ended(Account& peer, uint64_t cookie, bool ok) {
  auto found = wanted_.find(cookie);
  require(found != wanted_.end(), "the end of a transfer that nobody asked for");
  Wanted& wanted = found->second;
  require(!wanted.ended, "a transfer ended twice");
  wanted.ended = true;
  wanted.ok = ok;
  ++(ok ? transfers_ok : transfers_failed);
  Region& own = find(wanted.own_region);
  own.live = false;
  if (!ok) return;
  Region& other = peer.find(wanted.peer_region);
  const Region& from = wanted.pull ? other : own;
  const Region& to = wanted.pull ? own : other;
  uint64_t from_offset = wanted.pull ? wanted.offset : 0,
           to_offset = wanted.pull ? 0 : wanted.offset;
  require(std::memchr(to.placed.data() + to_offset, 0, wanted.length) == nullptr,
          "a transfer is over and a byte of it is missing");
  require(
      std::memcmp(to.bytes.data() + to_offset, from.bytes.data() + from_offset, wanted.length) == 0,
      "a byte of a transfer is wrong");
}

size_t Account::open() const {
  size_t open = 0;
  for (const auto& [cookie, wanted] : wanted_) open += !wanted.ended;
  return open;
}

void NonceBook::sealed(uint64_t key, uint32_t direction, uint64_t number) {
  require(used_[{key, direction}].insert(number).second, "a nonce was used twice with one key");
  require(++seals_[key] <= most_, "a key sealed more frames than it may");
}

void NonceBook::taken(uint64_t frame) {
  require(taken_.insert(frame).second, "a frame was taken twice");
}

}  // namespace sluice::slp
