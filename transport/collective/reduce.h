// Element-wise reduction of memory. Knows dtypes, no endpoints.
#ifndef SLUICE_COLLECTIVE_REDUCE_H_
#define SLUICE_COLLECTIVE_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include <sluice/base/dtype.h>
#include <sluice/base/status.h>

namespace sluice {

enum class ReduceOp : uint8_t { kSum, kMin, kMax, kProduct };

// Errors: kUnsupported. Supported: float32, float64, int32, int64, and for kSum and kProduct also
// complex64 and complex128.
Status check_reducible(DataType dtype, ReduceOp op);

// into[i] = sources[0][i] op sources[1][i] ..., in this order, so that every rank that has the same
// sources gets the same bits. `into` may be one of the sources.
// kMin and kMax keep a NaN of the first source and ignore those of the others: to keep all of them
// takes twice the time in the cache.
// Requires: check_reducible(); memory aligned to its elements. `count` in elements.
void reduce(DataType dtype, ReduceOp op, std::byte* into, std::span<const std::byte* const> sources,
            size_t count);

}  // namespace sluice

#endif  // SLUICE_COLLECTIVE_REDUCE_H_
