// Descriptors against an oracle in 128-bit integers: which bytes are touched.
#include <sluice/base/tensor_descriptor.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace sluice {
namespace {

using Wide = __int128;
constexpr Wide kMost = INT64_MAX;

struct Expected {
  Wide count;       // elements
  Wide span_bytes;  // from the first byte touched to one past the last
};

// What the header promises, without a thought for overflow.
std::optional<Expected> expect(const std::vector<int64_t>& shape,
                               const std::vector<int64_t>& strides, DataType dtype,
                               uint64_t byte_offset) {
  if (shape.size() > static_cast<size_t>(kMaxRank) || strides.size() != shape.size() ||
      !dtype.valid())
    return std::nullopt;
  Wide representable = 1, count = 1;
  for (int64_t n : shape) {
    if (n < 0) return std::nullopt;
    count *= n;
    representable *= std::max<int64_t>(n, 1);
    if (representable * dtype.size_bytes() > kMost) return std::nullopt;
  }
  if (count == 0) {
    if (Wide{byte_offset} > kMost) return std::nullopt;
    return Expected{0, 0};
  }
  std::vector<std::pair<Wide, Wide>> moving;  // stride, extent
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    if (strides[i] <= 0) return std::nullopt;
    moving.emplace_back(strides[i], shape[i]);
  }
  std::sort(moving.begin(), moving.end());
  Wide reach = 1;
  for (auto [stride, n] : moving) {
    if (stride < reach) return std::nullopt;
    reach += stride * (n - 1);
    if (reach > kMost) return std::nullopt;
  }
  if (reach * dtype.size_bytes() + Wide{byte_offset} > kMost) return std::nullopt;
  return Expected{count, reach * dtype.size_bytes()};
}

void compare(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides, DataType dtype,
             uint64_t byte_offset) {
  std::optional<Expected> expected = expect(shape, strides, dtype, byte_offset);
  Result<TensorDescriptor> d = TensorDescriptor::strided(shape, strides, dtype, byte_offset);
  REQUIRE(d.ok() == expected.has_value());
  if (!d.ok()) {
    REQUIRE(d.code() == Code::kInvalidArgument);
    REQUIRE_FALSE(d.status().detail().empty());
    return;
  }
  REQUIRE(Wide{d->element_count()} == expected->count);
  REQUIRE(Wide{d->span_bytes()} == expected->span_bytes);
  REQUIRE(d->byte_offset() == byte_offset);
  REQUIRE(Wide{d->size_bytes()} == expected->count * dtype.size_bytes());
  REQUIRE(std::ranges::equal(d->shape(), shape));
  if (d->is_compact()) REQUIRE(d->span_bytes() == d->size_bytes());
}

TEST_CASE("random shapes and strides are taken or refused as 128-bit arithmetic says") {
  std::mt19937_64 random(11);
  const DataType types[] = {uint8,
                            float32,
                            complex128,
                            {TypeCode::kInt, 4, 3},
                            {TypeCode::kFloat, 7, 1},
                            {TypeCode::kUint, 8, 1024}};
  auto number = [&]() -> int64_t {
    switch (random() % 9) {
      case 0: return 0;
      case 1: return 1;
      case 2: return -static_cast<int64_t>(random() % 5);
      case 3: return INT64_MAX - static_cast<int64_t>(random() % 3);
      case 4: return static_cast<int64_t>(random() >> (1 + random() % 63));
      default: return static_cast<int64_t>(random() % 9);
    }
  };
  for (int i = 0; i < 300'000; ++i) {
    std::vector<int64_t> shape(random() % 10),
        strides(random() % 16 == 0 ? random() % 10 : shape.size());
    for (int64_t& n : shape) n = number();
    for (int64_t& s : strides) s = number();
    uint64_t offset = random() % 3 == 0 ? random() >> (random() % 64) : random() % 100;
    compare(shape, strides, types[random() % 6], offset);
  }
}

TEST_CASE("strides made from a nesting of gaps are taken, in any order of dimensions") {
  std::mt19937_64 random(12);
  for (int i = 0; i < 50'000; ++i) {
    size_t rank = 1 + random() % kMaxRank;
    std::vector<int64_t> shape(rank), strides(rank);
    std::vector<size_t> order(rank);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    int64_t reach = 1;
    for (size_t k : order) {
      shape[k] = 1 + static_cast<int64_t>(random() % 5);
      strides[k] = reach + static_cast<int64_t>(random() % 3);
      reach += strides[k] * (shape[k] - 1);
    }
    REQUIRE(TensorDescriptor::strided(shape, strides, float32, random() % 1000).ok());
    compare(shape, strides, float32, random() % 1000);
  }
}

// Every element's bytes, one by one.
TEST_CASE("no two elements share a byte and all lie in the span") {
  std::mt19937_64 random(13);
  int taken = 0;
  for (int i = 0; i < 40'000; ++i) {
    size_t rank = 1 + random() % 3;
    std::vector<int64_t> shape(rank), strides(rank);
    for (int64_t& n : shape) n = 1 + static_cast<int64_t>(random() % 4);
    for (int64_t& s : strides) s = static_cast<int64_t>(random() % 14);
    Result<TensorDescriptor> d = TensorDescriptor::strided(shape, strides, uint16, 0);
    if (!d.ok()) continue;
    ++taken;
    std::set<int64_t> touched;
    std::vector<int64_t> index(rank, 0);
    for (int64_t e = 0; e < d->element_count(); ++e) {
      int64_t at = 0;
      for (size_t k = 0; k < rank; ++k) at += index[k] * d->strides()[k];
      REQUIRE(touched.insert(at).second);
      for (size_t k = rank; k-- > 0;) {
        if (++index[k] < shape[k]) break;
        index[k] = 0;
      }
    }
    REQUIRE(*touched.begin() == 0);
    REQUIRE(static_cast<uint64_t>(*touched.rbegin() + 1) * 2 == d->span_bytes());
    // Compact says: in row-major order without gaps.
    bool row_major = d->span_bytes() == d->size_bytes();
    int64_t stride = 1;
    for (size_t k = rank; k-- > 0;) {
      row_major = row_major && (shape[k] == 1 || strides[k] == stride);
      stride *= shape[k];
    }
    REQUIRE(d->is_compact() == row_major);
  }
  CHECK(taken > 1000);
}

TEST_CASE("compact descriptors are row-major") {
  std::vector<int64_t> shape = {2, 3, 4};
  auto d = TensorDescriptor::compact(shape, float64);
  REQUIRE(d.ok());
  CHECK(std::ranges::equal(d->strides(), std::vector<int64_t>{12, 4, 1}));
  CHECK(d->size_bytes() == 192);
  CHECK(d->is_compact());
  CHECK(d->to_string() == "float64[2,3,4]");
  shape = {};
  auto scalar = TensorDescriptor::compact(shape, float32);
  REQUIRE(scalar.ok());
  CHECK(scalar->rank() == 0);
  CHECK(scalar->size_bytes() == 4);
  shape = {3, 0, INT64_MAX};
  CHECK(TensorDescriptor::compact(shape, uint8).code() ==
        Code::kInvalidArgument);  // 3 * (2^63 - 1)
  shape = {0, INT64_MAX};
  CHECK(TensorDescriptor::compact(shape, uint8)->size_bytes() == 0);
  CHECK(TensorDescriptor::compact(shape, float32).code() == Code::kInvalidArgument);
  shape.assign(kMaxRank + 1, 1);
  CHECK(TensorDescriptor::compact(shape, uint8).code() == Code::kInvalidArgument);
  shape.assign(255, 1);
  CHECK(TensorDescriptor::compact(shape, uint8).code() == Code::kInvalidArgument);
}

TEST_CASE("bytes are a vector of uint8; none are the default") {
  TensorDescriptor d = TensorDescriptor::bytes(10);
  CHECK(d.to_string() == "uint8[10]");
  CHECK(d.span_bytes() == 10);
  CHECK(TensorDescriptor() == TensorDescriptor::bytes(0));
}

TEST_CASE("copies of every rank equal the original") {
  std::vector<int64_t> shape, strides;
  for (int rank = 0; rank <= kMaxRank; ++rank) {
    auto d = TensorDescriptor::compact(shape, int16);
    REQUIRE(d.ok());
    TensorDescriptor copy = *d;
    CHECK(copy == *d);
    TensorDescriptor assigned;
    assigned = copy;
    CHECK(assigned == *d);
    CHECK(assigned.same_layout(copy));
    CHECK(assigned.to_string() == d->to_string());
    shape.push_back(rank + 2);
  }
}

TEST_CASE("layouts differ by dtype and shape, descriptors also by place and strides") {
  std::vector<int64_t> shape = {2, 2}, wide = {4, 1}, tight = {2, 1};
  auto a = TensorDescriptor::strided(shape, tight, float32, 0);
  auto b = TensorDescriptor::strided(shape, wide, float32, 0);
  auto c = TensorDescriptor::strided(shape, tight, float32, 8);
  auto e = TensorDescriptor::strided(shape, tight, int32, 0);
  CHECK(a->same_layout(*b));
  CHECK_FALSE(*a == *b);
  CHECK(a->same_layout(*c));
  CHECK_FALSE(*a == *c);
  CHECK_FALSE(a->same_layout(*e));
  CHECK(*a == *TensorDescriptor::compact(shape, float32));
}

TEST_CASE("at the start of other memory a layout keeps all but its place") {
  std::vector<int64_t> shape = {2, 2}, wide = {4, 1};
  auto there = TensorDescriptor::strided(shape, wide, float32, 8);
  CHECK(there->at_start() == *TensorDescriptor::strided(shape, wide, float32, 0));
  CHECK(there->at_start().span_bytes() == there->span_bytes());
  CHECK(there->byte_offset() == 8);
}

}  // namespace
}  // namespace sluice
