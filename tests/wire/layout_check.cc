#include "tests/wire/layout_check.h"

#include <algorithm>

#include <sluice/base/tensor_descriptor.h>

namespace sluice::wire::test {
namespace {

DataType dtype_of(const RawLayout& l) { return {static_cast<TypeCode>(l.code), l.bits, l.lanes}; }

Result<TensorDescriptor> describe_by_base(const RawLayout& l) {
  return l.has_strides ? TensorDescriptor::strided(l.shape, l.strides, dtype_of(l), l.byte_offset)
                       : TensorDescriptor::compact(l.shape, dtype_of(l));
}

}  // namespace

std::string disagreement(const RawLayout& l) {
  auto ours = describe_by_base(l);
  auto truth = meaning_of(l);
  if (!ours.ok()) {
    if (truth) return "refused: " + ours.status().to_string();
    if (ours.code() != Code::kInvalidArgument || ours.status().detail().empty())
      return "refused without a reason";
    return {};
  }
  if (!truth) return "accepted: " + ours->to_string();
  if (!std::ranges::equal(ours->strides(), truth->strides)) return "strides";
  if (ours->is_compact() != truth->compact) return "is_compact";
  if (static_cast<uint64_t>(ours->element_count()) != truth->elements) return "element_count";
  if (ours->size_bytes() != truth->size_bytes) return "size_bytes";
  if (ours->span_bytes() != truth->span_bytes) return "span_bytes";
  if (ours->byte_offset() != l.byte_offset) return "byte_offset";
  if (truth->elements == 0 || truth->elements > 600) return {};
  // The bytes touched, one by one: no element twice, none beyond the span.
  RawLayout full = l;
  full.strides = truth->strides;
  auto touched = touched_elements(full);
  std::ranges::sort(touched);
  if (std::ranges::adjacent_find(touched) != touched.end()) return "two indices share an element";
  if ((touched.back() + 1) * ours->dtype().size_bytes() != ours->span_bytes())
    return "span is not what is touched";
  return {};
}

}  // namespace sluice::wire::test
