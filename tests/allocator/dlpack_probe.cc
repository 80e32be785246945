// A library for dlpack_numpy_test.py: sluice's side of an exchange with a Python program.
#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include <sluice/allocator/arena.h>
#include <sluice/allocator/dlpack.h>

namespace {
sluice::Arena& arena() {
  static std::unique_ptr<sluice::Arena> arena =
      std::move(sluice::Arena::create({.limit_bytes = size_t{16} << 20,
                                       .first_extent_bytes = size_t{4} << 20,
                                       .receive_reserve_bytes = size_t{1} << 20}))
          .value();
  return *arena;
}
sluice::Tensor held;
std::string said;
}  // namespace

extern "C" {
// rows * cols floats, from 0 up.
DLManagedTensor* probe_export(int64_t rows, int64_t cols, bool writable) {
  sluice::Buffer buffer =
      std::move(arena().allocate(std::array<int64_t, 2>{rows, cols}, sluice::float32)).value();
  float next = 0;
  for (float& value : buffer.as<float>()) value = next++;
  if (writable) return std::move(sluice::to_legacy_dlpack(std::move(buffer))).value().release();
  return std::move(sluice::to_legacy_dlpack(std::move(buffer).freeze())).value().release();
}
size_t probe_outstanding() { return arena().statistics().outstanding; }

// Takes the tensor and holds it; what it is, as text, or why not (and it is not taken).
const char* probe_import(DLManagedTensor* managed, bool* taken) {
  sluice::LegacyDlpackTensor handle(managed);
  auto tensor = sluice::tensor_from_dlpack(std::move(handle));
  *taken = tensor.ok();
  if (tensor.ok()) {
    held = std::move(*tensor);
    said = held.descriptor().to_string() + " by";
    for (int64_t stride : held.descriptor().strides()) said += " " + std::to_string(stride);
  } else {
    (void)handle.release();
    said = tensor.status().to_string();
  }
  return said.c_str();
}
const void* probe_data() { return held.data(); }
void probe_drop() { held = sluice::Tensor(); }
}
