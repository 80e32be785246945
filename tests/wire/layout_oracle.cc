#include "tests/wire/layout_oracle.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace sluice::wire::test {
namespace {

using Wide = unsigned __int128;
constexpr Wide kMost = (Wide{1} << 63) - 1;

bool known_dtype(const RawLayout& l) {
  auto one_of = [&](std::initializer_list<int> widths) {
    return std::ranges::find(widths, l.bits) != widths.end();
  };
  if (l.lanes < 1 || l.lanes > 1024) return false;
  if (l.code <= 1) return one_of({4, 8, 16, 32, 64});
  if (l.code == 2) return one_of({16, 32, 64});
  if (l.code == 3) return one_of({8, 16, 32, 64});
  if (l.code == 4) return l.bits == 16;
  if (l.code == 5) return one_of({64, 128});
  if (l.code <= 14) return l.bits == 8;
  if (l.code <= 16) return l.bits == 6;
  return l.code == 17 && l.bits == 4;
}

}  // namespace

std::optional<LayoutMeaning> meaning_of(const RawLayout& l) {
  size_t rank = l.shape.size();
  if (rank > 8 || !known_dtype(l)) return std::nullopt;
  if (l.has_strides && l.strides.size() != rank) return std::nullopt;
  Wide element = (Wide{l.bits} * l.lanes + 7) / 8;
  Wide count = 1;
  bool empty = false;
  for (int64_t n : l.shape) {
    if (n < 0) return std::nullopt;
    empty = empty || n == 0;
    count *= static_cast<Wide>(std::max<int64_t>(n, 1));
    if (count > kMost) return std::nullopt;
  }
  if (count * element > kMost) return std::nullopt;
  LayoutMeaning m;
  m.strides.resize(rank);
  Wide step = 1;
  for (size_t i = rank; i-- > 0;) {
    m.strides[i] = static_cast<int64_t>(step);
    step *= static_cast<Wide>(std::max<int64_t>(l.shape[i], 1));
  }
  m.elements = empty ? 0 : static_cast<uint64_t>(count);
  m.size_bytes = static_cast<uint64_t>(m.elements * element);
  m.span_bytes = m.size_bytes;
  if (!l.has_strides) return m;
  if (Wide{l.byte_offset} > kMost) return std::nullopt;
  if (empty) return m;
  std::vector<size_t> order;
  for (size_t i = 0; i < rank; ++i) {
    if (l.shape[i] < 2) continue;
    if (l.strides[i] < 1) return std::nullopt;
    order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](size_t i) { return l.strides[i]; });
  Wide reach = 1;  // elements from the first to one past the last
  for (size_t i : order) {
    if (static_cast<Wide>(l.strides[i]) < reach) return std::nullopt;
    reach += static_cast<Wide>(l.strides[i]) * static_cast<Wide>(l.shape[i] - 1);
    if (reach > kMost) return std::nullopt;
    m.compact = m.compact && l.strides[i] == m.strides[i];
    m.strides[i] = l.strides[i];
  }
  if (reach * element + l.byte_offset > kMost) return std::nullopt;
  m.span_bytes = static_cast<uint64_t>(reach * element);
  return m;
}

std::vector<std::byte> layout_value(const RawLayout& l) {
  std::vector<std::byte> out(12);
  out[0] = std::byte{l.code};
  out[1] = std::byte{l.bits};
  out[2] = static_cast<std::byte>(l.lanes & 0xff);
  out[3] = static_cast<std::byte>(l.lanes >> 8);
  out[4] = static_cast<std::byte>(l.shape.size());
  out[5] = static_cast<std::byte>(l.has_strides ? 1 : 0);
  auto add = [&](const std::vector<int64_t>& words) {
    for (int64_t w : words) {
      for (int i = 0; i < 8; ++i)
        out.push_back(static_cast<std::byte>(static_cast<uint64_t>(w) >> (8 * i)));
    }
  };
  add(l.shape);
  if (l.has_strides) add(l.strides);
  return out;
}

std::optional<RawLayout> parse_layout_value(std::span<const std::byte> value) {
  if (value.size() < 12) return std::nullopt;
  auto at = [&](size_t i) { return static_cast<uint8_t>(value[i]); };
  RawLayout l;
  l.code = at(0);
  l.bits = at(1);
  l.lanes = static_cast<uint16_t>(at(2) | at(3) << 8);
  size_t rank = at(4);
  for (size_t i = 6; i < 12; ++i) {
    if (at(i) != 0) return std::nullopt;
  }
  if (at(5) > 1 || value.size() != 12 + 8 * rank * (1u + at(5))) return std::nullopt;
  l.has_strides = at(5) == 1;
  l.shape.resize(rank);
  if (rank > 0) std::memcpy(l.shape.data(), value.data() + 12, 8 * rank);
  if (l.has_strides) {
    l.strides.resize(rank);
    if (rank > 0) std::memcpy(l.strides.data(), value.data() + 12 + 8 * rank, 8 * rank);
  }
  return l;
}

std::vector<uint64_t> touched_elements(const RawLayout& l) {
  std::vector<uint64_t> positions{0};
  for (size_t i = 0; i < l.shape.size(); ++i) {
    std::vector<uint64_t> next;
    for (uint64_t p : positions) {
      for (int64_t k = 0; k < l.shape[i]; ++k)
        next.push_back(p + static_cast<uint64_t>(k * l.strides[i]));
    }
    positions = std::move(next);
  }
  return positions;
}

}  // namespace sluice::wire::test
