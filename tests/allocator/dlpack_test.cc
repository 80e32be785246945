// DLPack in and out: what a consumer sees, what a producer may send, who ends what.
#include <sluice/allocator/dlpack.h>

#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <limits>
#include <thread>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/allocator/dlpack_abi.h>

namespace sluice {
namespace {

// Sizes and places of DLPack 1.1 on a 64-bit machine: two libraries share these bytes.
static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, ndim) == 16 &&
              offsetof(DLTensor, dtype) == 20 && offsetof(DLTensor, shape) == 24 &&
              offsetof(DLTensor, byte_offset) == 40);
static_assert(sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, deleter) == 56);
static_assert(sizeof(DLManagedTensorVersioned) == 80 &&
              offsetof(DLManagedTensorVersioned, manager_ctx) == 8 &&
              offsetof(DLManagedTensorVersioned, deleter) == 16 &&
              offsetof(DLManagedTensorVersioned, flags) == 24 &&
              offsetof(DLManagedTensorVersioned, dl_tensor) == 32);

using Versioned = DLManagedTensorVersioned;
using Legacy = DLManagedTensor;

template <typename Managed>
auto export_as(auto&& memory) {
  if constexpr (std::is_same_v<Managed, Versioned>) {
    return to_dlpack(std::forward<decltype(memory)>(memory));
  } else {
    return to_legacy_dlpack(std::forward<decltype(memory)>(memory));
  }
}

template <typename Managed>
using Handle = std::unique_ptr<Managed, DlpackRelease>;

// Another library's tensor: eight rows of eight floats, unless a test says otherwise.
template <typename Managed>
struct Producer {
  Producer() {
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { ++static_cast<Producer*>(self->manager_ctx)->deleted; };
    if constexpr (std::is_same_v<Managed, Versioned>) managed.version = {1, 0};
    managed.dl_tensor = {.data = bytes.data(),
                         .device = {kDLCPU, 0},
                         .ndim = 2,
                         .dtype = {2, 32, 1},
                         .shape = shape.data(),
                         .strides = strides.data(),
                         .byte_offset = 0};
  }
  Handle<Managed> lend() { return Handle<Managed>(&managed); }
  // Refused both ways, nothing taken, and the deleter runs once: the caller's.
  void refused(Code code, const char* why) {
    for (bool as_buffer : {false, true}) {
      int before = deleted;
      {
        Handle<Managed> handle = lend();
        Status status = as_buffer ? buffer_from_dlpack(std::move(handle)).status()
                                  : tensor_from_dlpack(std::move(handle)).status();
        INFO(status.to_string());
        CHECK(status.code() == code);
        CHECK(std::string(status.detail()).find(why) != std::string::npos);
        CHECK(handle != nullptr);
        CHECK(deleted == before);
      }
      CHECK(deleted == before + 1);
    }
  }
  DLTensor& tensor() { return managed.dl_tensor; }

  alignas(16) std::array<std::byte, 1024> bytes{};
  std::array<int64_t, 16> shape{8, 8}, strides{8, 1};
  Managed managed{};
  std::atomic<int> deleted{0};
};

std::unique_ptr<Arena> arena() {
  auto made = Arena::create({.limit_bytes = size_t{16} << 20,
                             .first_extent_bytes = size_t{4} << 20,
                             .receive_reserve_bytes = size_t{1} << 20});
  REQUIRE(made.ok());
  return std::move(*made);
}

std::vector<DataType> all_dtypes() {
  std::vector<DataType> all;
  for (int code = 0; code < 32; ++code) {
    for (int bits = 1; bits < 256; ++bits) {
      for (int lanes : {1, 2, 3, 4, 1024}) {
        DataType dtype{static_cast<TypeCode>(code), static_cast<uint8_t>(bits),
                       static_cast<uint16_t>(lanes)};
        if (dtype.valid()) all.push_back(dtype);
      }
    }
  }
  return all;
}

TEMPLATE_TEST_CASE("every dtype goes out and comes back as the same memory", "[dlpack]", Versioned,
                   Legacy) {
  auto memory = arena();
  int tried = 0, sub_byte = 0;
  for (DataType dtype : all_dtypes()) {
    INFO(dtype.to_string());
    Buffer buffer = std::move(memory->allocate(std::array<int64_t, 2>{3, 5}, dtype)).value();
    std::byte* place = buffer.data();
    Tensor tensor = std::move(buffer).freeze();
    auto out = export_as<TestType>(tensor);
    bool legacy = std::is_same_v<TestType, Legacy>;
    bool whole = dtype.bits * dtype.lanes % 8 == 0;
    if (!whole && (legacy || dtype.lanes > 1)) {
      CHECK(out.code() == Code::kUnsupported);
      ++sub_byte;
      continue;
    }
    REQUIRE(out.ok());
    const DLTensor& seen = (*out)->dl_tensor;
    CHECK(seen.data == place);
    CHECK(reinterpret_cast<uintptr_t>(seen.data) % 256 == 0);
    CHECK((seen.dtype.code == static_cast<uint8_t>(dtype.code) && seen.dtype.bits == dtype.bits &&
           seen.dtype.lanes == dtype.lanes));
    CHECK((seen.ndim == 2 && seen.shape[0] == 3 && seen.shape[1] == 5 && seen.strides[0] == 5 &&
           seen.strides[1] == 1));
    CHECK((seen.device.device_type == kDLCPU && seen.device.device_id == 0));
    auto back = tensor_from_dlpack(std::move(*out));
    REQUIRE(back.ok());
    CHECK(back->data() == place);
    CHECK(back->descriptor() == tensor.descriptor());
    CHECK(back->storage()->kind() == StorageKind::kArena);
    ++tried;
  }
  CHECK(tried > 100);
  CHECK(sub_byte == (std::is_same_v<TestType, Legacy> ? 12 : 7));
  CHECK(memory->statistics().outstanding == 0);
}

TEMPLATE_TEST_CASE("another library's memory is seen in place and given back once", "[dlpack]",
                   Versioned, Legacy) {
  Producer<TestType> producer;
  {
    auto tensor = tensor_from_dlpack(producer.lend());
    REQUIRE(tensor.ok());
    CHECK(tensor->data() == producer.bytes.data());
    CHECK(tensor->descriptor() ==
          *TensorDescriptor::compact(std::array<int64_t, 2>{8, 8}, float32));
    CHECK(tensor->storage()->kind() == StorageKind::kForeign);
    CHECK_FALSE(tensor->try_thaw());
    Tensor copy = *tensor;
    *tensor = Tensor();
    CHECK(producer.deleted == 0);
  }
  CHECK(producer.deleted == 1);
  {
    Result<Buffer> buffer = buffer_from_dlpack(producer.lend());
    REQUIRE(buffer.ok());
    buffer->as<float>()[9] = 7;
    CHECK(reinterpret_cast<float*>(producer.bytes.data())[9] == 7);
    Tensor frozen = std::move(*buffer).freeze();
    auto thawed = frozen.try_thaw();
    REQUIRE(thawed);
    CHECK(producer.deleted == 1);
  }
  CHECK(producer.deleted == 2);
}

TEMPLATE_TEST_CASE("strides, byte offsets and missing strides are understood", "[dlpack]",
                   Versioned, Legacy) {
  Producer<TestType> producer;
  DLTensor& t = producer.tensor();
  SECTION("columns first") {
    producer.strides = {1, 8};
    auto tensor = tensor_from_dlpack(producer.lend());
    REQUIRE(tensor.ok());
    CHECK_FALSE(tensor->descriptor().is_compact());
    CHECK(tensor->descriptor().strides()[1] == 8);
  }
  SECTION("a part of rows, from the second element") {
    t.byte_offset = 4;
    producer.shape = {4, 2};
    producer.strides = {16, 1};
    auto buffer = buffer_from_dlpack(producer.lend());
    REQUIRE(buffer.ok());
    CHECK(buffer->data() == producer.bytes.data() + 4);
    CHECK(buffer->size_bytes() == (3 * 16 + 2) * 4);
    CHECK(buffer->descriptor().to_string() == "float32[4,2]");
    // Nothing before or behind the elements' span is within reach.
    CHECK(buffer->capacity_bytes() == buffer->size_bytes());
  }
  SECTION("null strides are compact") {
    t.strides = nullptr;
    auto tensor = tensor_from_dlpack(producer.lend());
    REQUIRE(tensor.ok());
    CHECK(tensor->descriptor().is_compact());
    CHECK(tensor->descriptor().strides()[0] == 8);
  }
  SECTION("rank 0 is one element, with or without arrays") {
    t.ndim = 0;
    t.shape = t.strides = nullptr;
    auto tensor = tensor_from_dlpack(producer.lend());
    REQUIRE(tensor.ok());
    CHECK(tensor->descriptor().rank() == 0);
    CHECK(tensor->size_bytes() == 4);
  }
  SECTION("a tensor without elements has no data") {
    producer.shape = {0, 8};
    t.data = nullptr;
    t.byte_offset = 640;
    auto tensor = tensor_from_dlpack(producer.lend());
    REQUIRE(tensor.ok());
    CHECK(tensor->size_bytes() == 0);
    CHECK(tensor->descriptor().shape()[1] == 8);
  }
  SECTION("a dimension of one may have any stride") {
    producer.shape = {1, 8};
    producer.strides = {std::numeric_limits<int64_t>::min(), 1};
    CHECK(tensor_from_dlpack(producer.lend()).ok());
  }
  CHECK(producer.deleted == 1);
}

TEMPLATE_TEST_CASE("rank 0, no elements and strides go out and come back", "[dlpack]", Versioned,
                   Legacy) {
  auto memory = arena();
  auto goes_round = [&](const TensorDescriptor& descriptor) {
    Buffer buffer = std::move(memory->allocate(4096)).value();
    REQUIRE(buffer.reshape(descriptor).ok());
    const std::byte* place = buffer.data();
    auto out = export_as<TestType>(std::move(buffer));
    REQUIRE(out.ok());
    CHECK_FALSE(buffer);
    const DLTensor& seen = (*out)->dl_tensor;
    CHECK(seen.ndim == descriptor.rank());
    CHECK(seen.strides != nullptr);
    bool empty = descriptor.element_count() == 0;
    CHECK((seen.data == nullptr) == empty);
    if (!empty) CHECK(static_cast<std::byte*>(seen.data) + seen.byte_offset == place);
    if (!empty) CHECK(reinterpret_cast<uintptr_t>(seen.data) % 256 == 0);
    auto back = buffer_from_dlpack(std::move(*out));
    REQUIRE(back.ok());
    if (!empty) CHECK(back->descriptor() == descriptor);
    CHECK(back->descriptor().same_layout(descriptor));
    CHECK(back->storage()->kind() == StorageKind::kArena);
    CHECK(back->capacity_bytes() >= 4096);
  };
  goes_round(*TensorDescriptor::compact(std::span<const int64_t>(), float64));
  goes_round(*TensorDescriptor::compact(std::array<int64_t, 3>{4, 0, 4}, float32));
  goes_round(*TensorDescriptor::strided(std::array<int64_t, 2>{4, 6}, std::array<int64_t, 2>{1, 10},
                                        int16, 130));
  goes_round(
      *TensorDescriptor::compact(std::array<int64_t, 8>{2, 1, 2, 1, 2, 1, 2, 2}, complex128));
  CHECK(memory->statistics().outstanding == 0);
}

TEMPLATE_TEST_CASE("what a producer may not send is refused and stays the caller's", "[dlpack]",
                   Versioned, Legacy) {
  Producer<TestType> producer;
  DLTensor& t = producer.tensor();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  SECTION("a device of another kind") {
    for (int32_t device : {0, 2, 3, 10, 13, -1, 12345}) {
      t.device.device_type = static_cast<DLDeviceType>(device);
      producer.refused(Code::kUnsupported, "device type");
    }
  }
  SECTION("more dimensions than kMaxRank, or fewer than none") {
    for (int32_t rank : {kMaxRank + 1, 255, std::numeric_limits<int32_t>::max(), -1,
                         std::numeric_limits<int32_t>::min()}) {
      t.ndim = rank;
      producer.refused(Code::kInvalidArgument, "is not within 0 and 8");
    }
  }
  SECTION("no shape") {
    t.shape = nullptr;
    producer.refused(Code::kInvalidArgument, "null shape");
    t.ndim = 1;
    producer.refused(Code::kInvalidArgument, "null shape");
  }
  SECTION("no data") {
    t.data = nullptr;
    producer.refused(Code::kInvalidArgument, "null data");
  }
  SECTION("negative extents") {
    producer.shape = {8, -8};
    producer.refused(Code::kInvalidArgument, "negative");
  }
  SECTION("negative, broadcast and overlapping strides") {
    producer.strides = {-8, 1};
    producer.refused(Code::kInvalidArgument, "not positive");
    producer.strides = {0, 1};
    producer.refused(Code::kInvalidArgument, "not positive");
    producer.strides = {7, 1};
    producer.refused(Code::kInvalidArgument, "overlap");
  }
  SECTION("sizes beyond what can be counted") {
    producer.shape = {kMost, kMost};
    producer.refused(Code::kInvalidArgument, "2^63");
    producer.shape = {8, 8};
    producer.strides = {kMost / 2, 1};
    producer.refused(Code::kInvalidArgument, "2^63");
  }
  SECTION("a byte offset past the end of the address space") {
    t.byte_offset = std::numeric_limits<uint64_t>::max() - 100;
    producer.refused(Code::kInvalidArgument, "address space");
    t.byte_offset = 0 - reinterpret_cast<uintptr_t>(t.data) - 16;  // room for four of 64 floats
    producer.refused(Code::kInvalidArgument, "address space");
  }
  SECTION("types that DLPack does not define") {
    for (DLDataType dtype : {DLDataType{18, 8, 1}, DLDataType{255, 8, 1}, DLDataType{2, 80, 1},
                             DLDataType{2, 0, 1}, DLDataType{0, 7, 1}, DLDataType{2, 32, 0},
                             DLDataType{2, 32, 1025}, DLDataType{6, 1, 1}}) {
      t.dtype = dtype;
      producer.refused(Code::kInvalidArgument, "dtype");
    }
  }
  SECTION("elements that share bytes") {
    t.dtype = {17, 4, 1};
    producer.refused(Code::kUnsupported, "share bytes");
    t.dtype = {15, 6, 2};
    producer.refused(Code::kUnsupported, "share bytes");
  }
  SECTION("elements across their alignment") {
    t.byte_offset = 2;
    producer.refused(Code::kUnsupported, "multiple of 4");
    t.dtype = {5, 128, 1};
    t.byte_offset = 4;
    producer.refused(Code::kUnsupported, "multiple of 8");
  }
}

TEST_CASE("a null handle is refused", "[dlpack]") {
  CHECK(tensor_from_dlpack(DlpackTensor()).code() == Code::kInvalidArgument);
  CHECK(buffer_from_dlpack(LegacyDlpackTensor()).code() == Code::kInvalidArgument);
  CHECK(to_dlpack(Tensor()).code() == Code::kInvalidArgument);
  CHECK(to_legacy_dlpack(Buffer()).code() == Code::kInvalidArgument);
}

TEST_CASE("another major version is refused before anything else is looked at", "[dlpack]") {
  Producer<Versioned> producer;
  producer.managed.dl_tensor.shape =
      reinterpret_cast<int64_t*>(8);  // reading it would end the test
  for (uint32_t major : {0u, 2u, 0xFFFFFFFFu}) {
    producer.managed.version = {major, 0};
    producer.refused(Code::kUnsupported, "DLPack");
  }
}

TEST_CASE("a later minor version and flags that are not known are no obstacle", "[dlpack]") {
  Producer<Versioned> producer;
  producer.managed.version = {1, 99};
  producer.managed.flags = 0xFFFF0000u | DLPACK_FLAG_BITMASK_IS_COPIED;
  CHECK(buffer_from_dlpack(producer.lend()).ok());
  CHECK(producer.deleted == 1);
}

TEST_CASE("read-only memory is no Buffer", "[dlpack]") {
  Producer<Versioned> producer;
  producer.managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  DlpackTensor handle = producer.lend();
  CHECK(buffer_from_dlpack(std::move(handle)).code() == Code::kAccessDenied);
  CHECK(producer.deleted == 0);
  CHECK(tensor_from_dlpack(std::move(handle)).ok());
  CHECK(handle == nullptr);
  CHECK(producer.deleted == 1);
}

TEST_CASE("a Tensor goes out read-only and a Buffer writable, and neither comes back as more",
          "[dlpack]") {
  auto memory = arena();
  Tensor tensor = std::move(memory->allocate(64)).value().freeze();
  DlpackTensor shared = std::move(to_dlpack(tensor)).value();
  CHECK((shared->version.major == 1 && shared->flags == DLPACK_FLAG_BITMASK_READ_ONLY));
  CHECK_FALSE(tensor.try_thaw());  // the export holds it too
  CHECK(buffer_from_dlpack(std::move(shared)).code() == Code::kAccessDenied);
  // The legacy struct does not say so, but we know our own.
  LegacyDlpackTensor legacy = std::move(to_legacy_dlpack(tensor)).value();
  CHECK(buffer_from_dlpack(std::move(legacy)).code() == Code::kAccessDenied);
  shared.reset();
  legacy.reset();
  std::optional<Buffer> buffer = tensor.try_thaw();
  REQUIRE(buffer);
  DlpackTensor lent = std::move(to_dlpack(std::move(*buffer))).value();
  CHECK(lent->flags == 0);
  Tensor back = std::move(tensor_from_dlpack(std::move(lent))).value();
  CHECK(back.try_thaw());
}

TEST_CASE("elements of four and six bits are padded to bytes, and say so", "[dlpack]") {
  auto memory = arena();
  DataType nibble{TypeCode::kFloat4_e2m1fn, 4, 1};
  Buffer buffer = std::move(memory->allocate(std::array<int64_t, 1>{10}, nibble)).value();
  CHECK(buffer.size_bytes() == 10);
  DlpackTensor out = std::move(to_dlpack(std::move(buffer))).value();
  CHECK(out->flags == DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
  Producer<Versioned> producer;
  producer.managed.flags = DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
  producer.tensor().dtype = {15, 6, 1};
  CHECK(tensor_from_dlpack(producer.lend()).ok());
  producer.tensor().dtype = {0, 4, 2};  // two lanes: padded how?
  producer.refused(Code::kUnsupported, "share bytes");
  producer.managed.flags = 0;
  CHECK(tensor_from_dlpack(producer.lend()).ok());
}

TEMPLATE_TEST_CASE("a producer without a deleter is no obstacle", "[dlpack]", Versioned, Legacy) {
  Producer<TestType> producer;
  producer.managed.deleter = nullptr;
  CHECK(tensor_from_dlpack(producer.lend()).ok());
  producer.shape = {-1};
  CHECK_FALSE(tensor_from_dlpack(producer.lend()).ok());
}

TEMPLATE_TEST_CASE("an export that its consumer bent is foreign memory or refused", "[dlpack]",
                   Versioned, Legacy) {
  auto memory = arena();
  Producer<TestType> elsewhere;
  auto out = export_as<TestType>(
      std::move(memory->allocate(std::array<int64_t, 2>{4, 4}, float32)).value());
  REQUIRE(out.ok());
  DLTensor& t = (*out)->dl_tensor;
  SECTION("a narrower view is still arena memory") {
    t.shape[0] = 2;
    t.byte_offset = 16;
    const std::byte* place = static_cast<std::byte*>(t.data) + 16;
    auto back = tensor_from_dlpack(std::move(*out));
    REQUIRE(back.ok());
    CHECK(back->data() == place);
    CHECK(back->size_bytes() == 32);
    CHECK(back->storage()->kind() == StorageKind::kArena);
  }
  SECTION("more rows than the memory has") {
    t.shape[0] = 1 << 20;
    auto back = tensor_from_dlpack(std::move(*out));
    REQUIRE(back.ok());
    CHECK(back->storage()->kind() == StorageKind::kForeign);
  }
  SECTION("memory before ours") {
    t.byte_offset = uint64_t(-256);  // wraps: refused
    CHECK(tensor_from_dlpack(std::move(*out)).code() == Code::kInvalidArgument);
    t.byte_offset = 0;
    t.data = static_cast<std::byte*>(t.data) - 256;
    auto back = tensor_from_dlpack(std::move(*out));
    REQUIRE(back.ok());
    CHECK(back->storage()->kind() == StorageKind::kForeign);
  }
  SECTION("other memory") {
    t.data = elsewhere.bytes.data();
    auto back = tensor_from_dlpack(std::move(*out));
    REQUIRE(back.ok());
    CHECK(back->data() == elsewhere.bytes.data());
    CHECK(back->storage()->kind() == StorageKind::kForeign);
  }
  out = Status(Code::kInternal, Scope::kOperation, "");
  CHECK(memory->statistics().outstanding == 0);
}

TEMPLATE_TEST_CASE("exports and imports end on any thread", "[dlpack][threads]", Versioned,
                   Legacy) {
  auto memory = arena();
  Producer<TestType> producer;
  for (int round = 0; round < 50; ++round) {
    Buffer buffer = std::move(memory->allocate(std::array<int64_t, 1>{256}, int32)).value();
    for (int32_t& value : buffer.as<int32_t>()) value = round;
    Tensor tensor = std::move(buffer).freeze();
    Tensor foreign = std::move(tensor_from_dlpack(producer.lend())).value();
    std::vector<std::thread> consumers;
    std::atomic<int> right = 0;
    for (int i = 0; i < 4; ++i) {
      consumers.emplace_back(
          [&right, round, out = std::move(*export_as<TestType>(tensor)), foreign]() mutable {
            right += static_cast<int32_t*>(out->dl_tensor.data)[255] == round ? 1 : 0;
            out.reset();
            foreign = Tensor();
          });
    }
    tensor = foreign = Tensor();
    for (std::thread& consumer : consumers) consumer.join();
    consumers.clear();
    CHECK(right == 4);
    CHECK(producer.deleted == round + 1);
    CHECK(memory->statistics().outstanding == 0);
  }
}

}  // namespace
}  // namespace sluice
