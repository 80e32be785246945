// Buffers and tensors over memory of the program; no arena needed.
#include <sluice/allocator/buffer.h>

#include <catch2/catch.hpp>

#include <sluice/base/log.h>

#include <array>
#include <string>

namespace sluice {
namespace {

struct Owner {
  std::array<std::byte, 64> bytes{};
  int done = 0;
  static void on_done(void* user) { ++static_cast<Owner*>(user)->done; }
};

// As a transport hands out a peer's tensor.
class PeerStorage final : public Storage {
 public:
  PeerStorage(std::byte* data, size_t size) {
    reset(data, size, StorageKind::kPeer,
          [](Storage* s) noexcept { ++static_cast<PeerStorage*>(s)->released; });
  }
  int released = 0;
};

TEST_CASE("wrapped memory is given back exactly once, when the last holder ends") {
  Owner owner;
  {
    Buffer buffer =
        std::move(Buffer::wrap(owner.bytes.data(), 64, &Owner::on_done, &owner)).value();
    CHECK(buffer.data() == owner.bytes.data());
    CHECK(buffer.storage()->kind() == StorageKind::kForeign);
    Buffer moved = std::move(buffer);
    CHECK_FALSE(buffer);
    Tensor tensor = std::move(moved).freeze();
    CHECK_FALSE(moved);
    Tensor copy = tensor;
    tensor = Tensor();
    CHECK(owner.done == 0);
    CHECK(copy.size_bytes() == 64);
  }
  CHECK(owner.done == 1);
}

TEST_CASE("null memory is refused unless it is empty") {
  Owner owner;
  CHECK(Buffer::wrap(nullptr, 1, &Owner::on_done, &owner).code() == Code::kInvalidArgument);
  CHECK(Tensor::wrap(nullptr, TensorDescriptor::bytes(1), &Owner::on_done, &owner).code() ==
        Code::kInvalidArgument);
  CHECK(owner.done == 0);
  CHECK(Buffer::wrap(nullptr, 0, nullptr, nullptr).ok());
}

TEST_CASE("the last holder gets its writable buffer back") {
  Owner owner;
  Tensor tensor =
      std::move(Buffer::wrap(owner.bytes.data(), 64, &Owner::on_done, &owner)).value().freeze();
  {
    Tensor other = tensor;
    CHECK_FALSE(tensor.try_thaw());
    CHECK(tensor);
  }
  std::optional<Buffer> buffer = tensor.try_thaw();
  REQUIRE(buffer);
  CHECK_FALSE(tensor);
  CHECK(buffer->data() == owner.bytes.data());
  CHECK(owner.done == 0);
  Tensor empty;
  CHECK_FALSE(empty.try_thaw());
}

TEST_CASE("read-only and peers' memory is never thawed") {
  Owner owner;
  Tensor tensor = std::move(Tensor::wrap(owner.bytes.data(), TensorDescriptor::bytes(64),
                                         &Owner::on_done, &owner))
                      .value();
  CHECK_FALSE(tensor.try_thaw());
  CHECK(tensor);
  PeerStorage storage(owner.bytes.data(), 64);
  {
    Tensor peer(StorageRef::adopt(&storage), TensorDescriptor::bytes(64));
    CHECK(peer.owned_by_peer());
    CHECK_FALSE(peer.try_thaw());
    CHECK(peer);
  }
  CHECK(storage.released == 1);
}

TEST_CASE("foreign memory of another maker is read-only unless it says otherwise") {
  class Other final : public Storage {
   public:
    explicit Other(std::byte* data) {
      reset(data, 8, StorageKind::kForeign, [](Storage*) noexcept {});
    }
  };
  Owner owner;
  Other other(owner.bytes.data());
  Tensor tensor(StorageRef::adopt(&other), TensorDescriptor::bytes(8));
  CHECK_FALSE(tensor.try_thaw());
}

TEST_CASE("a slice shares the bytes and stays inside") {
  Owner owner;
  for (int i = 0; i < 64; ++i) owner.bytes[i] = std::byte(i);
  Tensor tensor = std::move(Tensor::wrap(owner.bytes.data(), TensorDescriptor::bytes(64),
                                         &Owner::on_done, &owner))
                      .value();
  Tensor slice = std::move(tensor.slice_bytes(10, 20)).value();
  CHECK(slice.size_bytes() == 20);
  CHECK(slice.data() == tensor.data() + 10);
  Tensor part = std::move(slice.slice_bytes(5, 15)).value();
  CHECK(part.bytes()[0] == std::byte{15});
  CHECK(slice.slice_bytes(20, 0).ok());
  CHECK(slice.slice_bytes(5, 16).code() == Code::kInvalidArgument);
  CHECK(slice.slice_bytes(21, 0).code() == Code::kInvalidArgument);
  CHECK(slice.slice_bytes(1, UINT64_MAX).code() == Code::kInvalidArgument);
  CHECK(Tensor().slice_bytes(0, 1).code() == Code::kInvalidArgument);
  tensor = slice = Tensor();
  CHECK(owner.done == 0);
  part = Tensor();
  CHECK(owner.done == 1);
}

TEST_CASE("elements are read as their own type only, and bytes as anything") {
  std::array<float, 4> memory = {1, 2, 3, 4};
  auto shape = TensorDescriptor::compact(std::array<int64_t, 1>{4}, float32);
  REQUIRE(shape.ok());
  auto tensor = Tensor::wrap(memory.data(), *shape, nullptr, nullptr);
  REQUIRE(tensor.ok());
  CHECK(tensor->as<float>().size() == 4);
  CHECK(tensor->as<uint32_t>()[0] == 0x3F800000);
  CHECK(tensor->as<std::byte>().size() == 16);
  static std::string line;
  set_log_sink([](LogLevel, std::string_view text, void*) { line = text; }, nullptr);
  CHECK(tensor->as<double>().empty());
  set_log_sink(nullptr, nullptr);
  CHECK(line.find("T of 8 bytes (floating point) on elements of float32") != std::string::npos);
  CHECK(tensor->as<int32_t>().empty());
  CHECK(tensor->as<uint64_t>().empty());
  auto bytes = Buffer::wrap(memory.data(), sizeof(memory), nullptr, nullptr);
  REQUIRE(bytes.ok());
  CHECK(bytes->as<double>().size() == 2);
  CHECK(bytes->as<float>()[3] == 4);
}

TEST_CASE("another shape must fit the memory") {
  Owner owner;
  Buffer buffer = std::move(Buffer::wrap(owner.bytes.data(), 64, nullptr, nullptr)).value();
  std::array<int64_t, 2> shape = {4, 4};
  REQUIRE(buffer.reshape(*TensorDescriptor::compact(shape, float32)).ok());
  CHECK(buffer.as<float>().size() == 16);
  shape[1] = 5;
  CHECK(buffer.reshape(*TensorDescriptor::compact(shape, float32)).code() ==
        Code::kInvalidArgument);
  CHECK(buffer.size_bytes() == 64);
  std::array<int64_t, 1> vector = {8}, stride = {1};
  CHECK(buffer.reshape(*TensorDescriptor::strided(vector, stride, float32, 32)).ok());
  CHECK(buffer.data() == owner.bytes.data() + 32);
  CHECK(buffer.reshape(*TensorDescriptor::strided(vector, stride, float32, 33)).code() ==
        Code::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
