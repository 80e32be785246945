#include "tests/wire/random_messages.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "tests/wire/hello.h"

namespace sluice::wire::test {
namespace {

constexpr std::array<DataType, 10> kTypes = {int8,
                                             uint8,
                                             float32,
                                             float64,
                                             bfloat16,
                                             boolean,
                                             complex128,
                                             DataType{TypeCode::kInt, 4, 1},
                                             DataType{TypeCode::kFloat, 32, 4},
                                             DataType{TypeCode::kFloat6_e2m3fn, 6, 3}};

}  // namespace

uint64_t RandomMessages::word() {
  static constexpr uint64_t kEdges[] = {0,
                                        1,
                                        2,
                                        7,
                                        255,
                                        256,
                                        0x7fffffff,
                                        0x80000000,
                                        0xffffffff,
                                        0x100000000,
                                        0x7fffffffffffffff,
                                        0x8000000000000000,
                                        0xffffffffffffffff};
  if (chance(40)) return kEdges[below(std::size(kEdges))];
  return random_() >> below(64);
}

TensorDescriptor RandomMessages::layout() {
  auto rank = below(kMaxRank + 1);
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};
  for (size_t i = 0; i < rank; ++i)
    shape[i] = static_cast<int64_t>(below(20) == 0 ? 0 : 1 + below(5));
  DataType dtype = kTypes[below(kTypes.size())];
  std::span<const int64_t> extents(shape.data(), rank);
  if (chance(40)) return *TensorDescriptor::compact(extents, dtype);
  // Any order of the dimensions in memory, with gaps.
  std::array<size_t, kMaxRank> order{};
  std::iota(order.begin(), order.begin() + rank, size_t{0});
  std::shuffle(order.begin(), order.begin() + rank, random_);
  int64_t step = 1;
  for (size_t k = 0; k < rank; ++k) {
    strides[order[k]] = step + static_cast<int64_t>(chance(30) ? below(100) : 0);
    step = strides[order[k]] * std::max<int64_t>(shape[order[k]], 1);
  }
  return *TensorDescriptor::strided(extents, {strides.data(), rank}, dtype, 0);
}

RawLayout RandomMessages::hostile_layout() {
  RawLayout l;
  DataType dtype = kTypes[below(kTypes.size())];
  l.code = chance(5) ? static_cast<uint8_t>(word()) : static_cast<uint8_t>(dtype.code);
  l.bits = chance(5) ? static_cast<uint8_t>(word()) : dtype.bits;
  l.lanes = chance(5) ? static_cast<uint16_t>(word()) : dtype.lanes;
  l.shape.resize(chance(3) ? 9 + below(247) : below(9));
  l.has_strides = chance(70);
  int wild = static_cast<int>(below(3)) * 15;
  for (int64_t& n : l.shape) n = static_cast<int64_t>(chance(wild) ? word() : below(6));
  if (l.has_strides) {
    int64_t step = 1;
    for (size_t i = l.shape.size(); i-- > 0;) {
      l.strides.insert(
          l.strides.begin(),
          static_cast<int64_t>(chance(wild) ? word() : step + (chance(20) ? below(9) : 0)));
      step = static_cast<int64_t>(static_cast<uint64_t>(l.strides.front()) *
                                  static_cast<uint64_t>(l.shape[i]));
    }
    if (chance(20)) std::shuffle(l.strides.begin(), l.strides.end(), random_);
    if (chance(30)) l.byte_offset = word();
  }
  return l;
}

Offer RandomMessages::offer() {
  Offer m{};
  m.id = word();
  auto kind = static_cast<OfferKind>(1 + below(4));
  auto epoch = static_cast<uint32_t>(word());
  uint64_t first = word(), second = word();
  m.about = OfferAbout(kind, epoch, first, second);
  m.total = std::min<uint64_t>(word(), INT64_MAX);
  if (kind == OfferKind::kSupply || chance(30)) {
    m.has_layout = true;
    m.layout = layout();
    if (kind == OfferKind::kSupply) m.total = m.layout.span_bytes();
  }
  if (kind == OfferKind::kSupply && m.total > 0 && chance(40)) {
    m.flags = Offer::kNumbered;
    m.layout_number = static_cast<uint8_t>(1 + below(kLayoutNumbers));
    m.has_layout = chance(30);
    if (!m.has_layout) {
      m.segments[m.segment_count++] = {epoch, second % (uint64_t{1} << 62), m.total};
      m.about = OfferAbout(kind, epoch, first, second % (uint64_t{1} << 62));
    }
    return m;
  }
  if (chance(50)) m.flags |= Offer::kReport;
  if (m.total <= kMaxInlineBytes && chance(50)) {
    m.flags |= Offer::kInline;
    m.payload_bytes = static_cast<uint32_t>(m.total);
    return m;
  }
  if (chance(30)) {
    m.flags |= Offer::kDataFollows;
    return m;
  }
  uint64_t left = m.total;
  while (left > 0 && (m.segment_count < kMaxSegments - 1 || left == 0) && chance(80)) {
    uint64_t length = chance(30) ? left : 1 + below(left);
    m.segments[m.segment_count++] = {static_cast<uint32_t>(word()), below(uint64_t{1} << 62),
                                     length};
    left -= length;
  }
  if (m.segment_count > 0 && left > 0) m.segments[m.segment_count++] = {7, 0, left};
  return m;
}

Want RandomMessages::want() {
  Want m;
  m.id = word();
  auto kind = static_cast<WantKind>(1 + below(3));
  auto key_id = static_cast<uint32_t>(word());
  uint64_t first = word(), second = word(), third = word();
  m.about = WantAbout(kind, key_id, first, second, third);
  m.has_layout = chance(40);
  if (m.has_layout) m.layout = layout();
  m.into = m.has_layout && chance(50);
  if (chance(50)) {
    key_.resize(chance(20) ? kMaxKeyBytes : 1 + below(kMaxKeyBytes));
    for (char& c : key_) c = static_cast<char>(random_());
    m.key = key_;
  }
  if (kind == WantKind::kKey && !m.into && chance(50)) {
    following_.resize(chance(20) ? kMaxStepsOfWant - 1 : 1 + below(kMaxStepsOfWant - 1));
    for (uint64_t& id : following_) id = word();
    m.following = IdList(following_);
    const uint64_t last = kNextStep - 1 - following_.size();
    m.about = WantAbout(kind, key_id, std::min(first, last), second, third);
  }
  if (m.into && chance(50)) {
    m.segment_count = static_cast<uint32_t>(chance(20) ? kMaxSegments : 1 + below(kMaxSegments));
    // Windows are wherever the device counts, of any length, also together beyond 2^64.
    for (uint32_t i = 0; i < m.segment_count; ++i) {
      uint64_t address = std::min(word(), ~uint64_t{0} - 1);
      m.segments[i] = {static_cast<uint32_t>(word()), address,
                       1 + std::min(word(), ~uint64_t{0} - 1 - address)};
    }
  }
  return m;
}

AnyMessage RandomMessages::next(MessageType type) {
  switch (type) {
    case MessageType::kHello: return random_hello(*this);
    case MessageType::kOffer: return offer();
    case MessageType::kWant: return want();
    case MessageType::kData: {
      Data m{word(), word(), static_cast<uint32_t>(below(kMaxDataBytes + 1))};
      m.has_after = chance(50);
      if (m.has_after) m.after = word();
      return m;
    }
    case MessageType::kDone: return Done{word(), static_cast<Code>(below(kCodeCount)), word()};
    case MessageType::kRelease: {
      Release m{};
      m.count = static_cast<uint32_t>(below(kMaxReleases + 1));
      for (uint32_t i = 0; i < m.count; ++i) m.ids[i] = word();
      return m;
    }
    case MessageType::kCancel: return Cancel{word(), chance(50)};
    case MessageType::kCredit: return Credit{word(), word()};
    case MessageType::kPing: return Ping{word(), chance(50)};
    case MessageType::kBye: return Bye{static_cast<Code>(below(kCodeCount))};
  }
  return Bye{};
}

}  // namespace sluice::wire::test
