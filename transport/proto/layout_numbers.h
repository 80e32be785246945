// Layouts that both ends know by number, so that an offer need not say them: one of these at the
// sender and one at the receiver, for each direction. Knows no message.
#ifndef SLUICE_PROTO_LAYOUT_NUMBERS_H_
#define SLUICE_PROTO_LAYOUT_NUMBERS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include <sluice/base/tensor_descriptor.h>
#include <sluice/wire/messages.h>

namespace sluice::proto {

// Allocates once, with the first layout: a connection without any has none of that memory.
class LayoutNumbers {
 public:
  // The one number that a layout can have: its place by a hash. Two that share it push each other
  // out, which costs the longer offer.
  static uint8_t number_of(const TensorDescriptor& layout) {
    const uint64_t rows = layout.rank() > 0 ? static_cast<uint64_t>(layout.shape()[0]) : 0;
    const uint64_t mixed = (layout.span_bytes() + rows * 0xC2B2AE3D27D4EB4F) * 0x9E3779B97F4A7C15;
    return static_cast<uint8_t>(1 + (mixed >> 32) % wire::kLayoutNumbers);
  }
  // Null: the number stands for none.
  const TensorDescriptor* find(uint8_t number) const {
    if (layouts_ == nullptr || number < 1 || number > wire::kLayoutNumbers) return nullptr;
    const std::optional<TensorDescriptor>& place = (*layouts_)[number - 1];
    return place ? &*place : nullptr;
  }
  // Whether the number stands for just this layout. Of compact ones: strides are not compared.
  bool has(uint8_t number, const TensorDescriptor& layout) const {
    const TensorDescriptor* kept = find(number);
    return kept != nullptr && kept->same_layout(layout);
  }
  // Requires: 1 <= number <= kLayoutNumbers.
  void keep(uint8_t number, const TensorDescriptor& layout) {
    if (layouts_ == nullptr) layouts_ = std::make_unique<Places>();
    (*layouts_)[number - 1] = layout;
  }

 private:
  using Places = std::array<std::optional<TensorDescriptor>, wire::kLayoutNumbers>;
  std::unique_ptr<Places> layouts_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_LAYOUT_NUMBERS_H_
