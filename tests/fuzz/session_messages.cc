#include "tests/fuzz/session_messages.h"

#include <algorithm>
#include <array>
#include <span>

namespace sluice::fuzz {

uint64_t HostilePeer::id() {
  uint8_t pick = in_.byte();
  if (pick >= 250) return in_.amount();
  if (record_.ids.empty()) return pick;
  uint64_t known = record_.ids[pick % record_.ids.size()];
  return pick >= 240 ? known + (uint64_t{1} << 32) : known;
}

wire::Offer HostilePeer::offer() {
  wire::Offer m{};
  m.id = in_.amount();
  const auto kind = static_cast<wire::OfferKind>(1 + in_.byte() % 4);
  m.flags = in_.byte() & 7;
  m.total = in_.amount();
  switch (kind) {
    case wire::OfferKind::kTagged:
      m.about = wire::TaggedOffer{.tag = static_cast<wire::Tag>(in_.byte() % 4)};
      break;
    case wire::OfferKind::kSupply: m.about = wire::SupplyOffer{.want = id()}; break;
    case wire::OfferKind::kRead: m.about = wire::ReadOffer{.want = id()}; break;
    case wire::OfferKind::kWrite: {
      wire::WriteOffer write{.offset = in_.amount()};
      write.grant = grant(write.epoch);
      m.about = write;
      break;
    }
  }
  if (kind == wire::OfferKind::kSupply || in_.chance()) {
    m.has_layout = true;
    m.layout = layout();
    if (in_.chance()) m.total = m.layout.span_bytes();
  }
  uint32_t pieces = in_.byte() % 4;
  uint64_t left = m.total;
  for (uint32_t i = 0; i < pieces && left > 0; ++i) {
    uint64_t length = i + 1 == pieces ? left : std::min<uint64_t>(left, 1 + in_.byte());
    m.segments[m.segment_count++] = {in_.byte() < 250 ? 1u : 2u, in_.amount(), length};
    left -= length;
  }
  if ((m.flags & wire::Offer::kInline) != 0) m.payload_bytes = static_cast<uint32_t>(m.total);
  return m;
}

wire::Offer HostilePeer::supply() {
  wire::Offer m{};
  m.id = in_.byte();
  m.about = wire::SupplyOffer{.want = id()};
  m.has_layout = true;
  m.total = 1 + in_.byte();
  m.layout = TensorDescriptor::bytes(m.total);
  if (in_.chance()) {
    m.flags = wire::Offer::kInline;
    m.payload_bytes = static_cast<uint32_t>(m.total);
  } else if (views_ && (m.id & 3) != 0) {
    // The number is given, or used: perhaps of another layout, or of none.
    m.flags = wire::Offer::kNumbered;
    m.layout_number = static_cast<uint8_t>(1 + (m.id >> 2) % wire::kLayoutNumbers);
    m.has_layout = (m.id & 3) == 1;
    m.segments[m.segment_count++] = {1, in_.byte(), m.total};
  } else if (views_) {
    m.segments[m.segment_count++] = {1, in_.byte(), m.total};
  } else {
    m.flags = wire::Offer::kDataFollows;
  }
  return m;
}

wire::Want HostilePeer::want() {
  wire::Want m;
  m.id = in_.amount();
  const auto kind = static_cast<wire::WantKind>(1 + in_.byte() % 3);
  uint32_t key_id = in_.byte() < 250 ? in_.byte() : ~0u;
  const uint64_t offset = in_.chance() ? in_.amount() : 0;
  const uint64_t length = in_.amount();
  switch (kind) {
    case wire::WantKind::kKey:
      m.about = wire::KeyWant{.key_id = key_id, .step = in_.amount()};
      break;
    case wire::WantKind::kOffer:
      m.about = wire::PullWant{.offer = id(), .offset = offset, .length = length};
      break;
    case wire::WantKind::kRead: {
      const uint64_t number = grant(key_id);
      m.about =
          wire::ReadWant{.grant = number, .epoch = key_id, .offset = offset, .length = length};
      break;
    }
  }
  key_.assign(in_.byte(), 'k');
  m.key = key_;
  m.has_layout = in_.chance();
  if (m.has_layout) m.layout = layout();
  m.into = m.has_layout && in_.chance();
  const bool several = kind == wire::WantKind::kKey && !m.into && in_.chance();
  if (several && m.about.key().step < wire::kNextStep - following_.size()) {
    for (uint64_t& one : following_) one = in_.chance() ? m.id + 1 : id();
    m.following = wire::IdList(std::span(following_).first(1 + in_.byte() % following_.size()));
  }
  return m;
}

wire::Release HostilePeer::release() {
  wire::Release m{};
  m.count = in_.byte() % 4;
  for (uint32_t i = 0; i < m.count; ++i) m.ids[i] = id();
  return m;
}

// A grant that was given to this peer, or one near it.
uint64_t HostilePeer::grant(uint32_t& epoch) {
  if (keys_.empty()) return in_.amount();
  const RemoteKey& key = keys_[in_.byte() % keys_.size()];
  epoch = key.epoch + (in_.byte() > 250 ? 1 : 0);
  return key.grant + (in_.byte() > 250 ? 1 : 0);
}

TensorDescriptor HostilePeer::layout() {
  std::array<int64_t, 3> shape = {in_.byte() % 8, in_.byte() % 8, 1 + in_.byte() % 40};
  std::array<int64_t, 3> strides = {int64_t{shape[1]} * 50 + 1, 50, 1};
  auto made = in_.chance() ? TensorDescriptor::compact(shape, float32)
                           : TensorDescriptor::strided(shape, strides, float32, 0);
  return made.ok() ? *made : TensorDescriptor::bytes(in_.byte());
}

}  // namespace sluice::fuzz
