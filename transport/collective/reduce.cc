#include <sluice/collective/reduce.h>

#include <algorithm>
#include <complex>
#include <cstring>
#include <string>

namespace sluice {
namespace {

template <typename T, ReduceOp kOp>
T combine(T a, T b) {
  if constexpr (kOp == ReduceOp::kSum) return a + b;
  if constexpr (kOp == ReduceOp::kProduct) return a * b;
  if constexpr (kOp == ReduceOp::kMin) return b < a ? b : a;
  if constexpr (kOp == ReduceOp::kMax) return a < b ? b : a;
}

// Signed overflow wraps, as in MPI: sums and products of integers are made unsigned.
template <typename T>
struct Arithmetic {
  using Type = T;
};
template <>
struct Arithmetic<int32_t> {
  using Type = uint32_t;
};
template <>
struct Arithmetic<int64_t> {
  using Type = uint64_t;
};

template <typename T, ReduceOp kOp>
void reduce_as(std::byte* into, std::span<const std::byte* const> sources, size_t count) {
  auto* out = reinterpret_cast<T*>(into);
  const auto* first = reinterpret_cast<const T*>(sources[0]);
  if (sources.size() == 2) {
    const auto* second = reinterpret_cast<const T*>(sources[1]);
    for (size_t i = 0; i < count; ++i) out[i] = combine<T, kOp>(first[i], second[i]);
    return;
  }
  // `into` may be a later source: a block is finished before it is stored. 4 KiB stay in L1.
  constexpr size_t kBlock = 4096 / sizeof(T);
  T block[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = std::min(kBlock, count - at);
    std::copy_n(first + at, n, block);
    for (const std::byte* source : sources.subspan(1)) {
      const auto* next = reinterpret_cast<const T*>(source) + at;
      for (size_t i = 0; i < n; ++i) block[i] = combine<T, kOp>(block[i], next[i]);
    }
    std::copy_n(block, n, out + at);
  }
}

template <typename T>
void reduce_ordered(ReduceOp op, std::byte* into, std::span<const std::byte* const> sources,
                    size_t count) {
  using Wrapping = typename Arithmetic<T>::Type;
  switch (op) {
    case ReduceOp::kSum: return reduce_as<Wrapping, ReduceOp::kSum>(into, sources, count);
    case ReduceOp::kProduct: return reduce_as<Wrapping, ReduceOp::kProduct>(into, sources, count);
    case ReduceOp::kMin: return reduce_as<T, ReduceOp::kMin>(into, sources, count);
    case ReduceOp::kMax: return reduce_as<T, ReduceOp::kMax>(into, sources, count);
  }
}

template <typename T>
void reduce_complex(ReduceOp op, std::byte* into, std::span<const std::byte* const> sources,
                    size_t count) {
  if (op == ReduceOp::kSum) return reduce_as<T, ReduceOp::kSum>(into, sources, count);
  reduce_as<T, ReduceOp::kProduct>(into, sources, count);
}

}  // namespace

Status check_reducible(DataType dtype, ReduceOp op) {
  if (static_cast<uint8_t>(op) > static_cast<uint8_t>(ReduceOp::kProduct))
    return Status(Code::kInvalidArgument, Scope::kOperation, "collective/reduce",
                  "no such reduction: use kSum, kMin, kMax or kProduct");
  if (dtype == float32 || dtype == float64 || dtype == int32 || dtype == int64) return Status();
  const bool complex = dtype == complex64 || dtype == complex128;
  if (complex && (op == ReduceOp::kSum || op == ReduceOp::kProduct)) return Status();
  return Status(Code::kUnsupported, Scope::kOperation, "collective/reduce",
                complex ? "complex numbers have no order: use kSum or kProduct"
                        : "cannot reduce " + dtype.to_string() +
                              ": use float32, float64, int32, int64, complex64 or complex128");
}

void reduce(DataType dtype, ReduceOp op, std::byte* into, std::span<const std::byte* const> sources,
            size_t count) {
  if (count == 0) return;
  if (sources.size() == 1) {
    if (into != sources[0]) std::memcpy(into, sources[0], count * dtype.size_bytes());
    return;
  }
  if (dtype == float32) return reduce_ordered<float>(op, into, sources, count);
  if (dtype == float64) return reduce_ordered<double>(op, into, sources, count);
  if (dtype == int32) return reduce_ordered<int32_t>(op, into, sources, count);
  if (dtype == int64) return reduce_ordered<int64_t>(op, into, sources, count);
  if (dtype == complex64) return reduce_complex<std::complex<float>>(op, into, sources, count);
  if (dtype == complex128) return reduce_complex<std::complex<double>>(op, into, sources, count);
}

}  // namespace sluice
