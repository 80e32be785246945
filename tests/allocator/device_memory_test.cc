// Device memory in Buffers: what is refused, what its addresses are, copies, and its end.
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <sluice/allocator/arena.h>
#include <sluice/allocator/device_storage.h>
#include <sluice/allocator/dlpack.h>

#include "tests/support/in_child.h"
#include "tests/support/pattern.h"
#include "tests/support/pretend_device.h"

namespace sluice {
namespace {

using test::fill;
using test::holds;
using test::PretendDevice;

// More than what goes from one device to another at once.
constexpr size_t kBytes = (2 << 20) + 17;

bool says(const Status& status, Code code, const char* text) {
  return status.code() == code && status.to_string().find(text) != std::string::npos;
}

TEST_CASE("what is no device memory is refused, and stays the caller's", "[device_memory]") {
  PretendDevice device(4096);
  auto refused = [&](auto&& change) {
    DeviceMemory memory = device.description(true);
    change(memory);
    return wrap_device_memory(memory).status();
  };
  CHECK(says(refused([](auto& m) { m.length = 0; }), Code::kInvalidArgument, "no bytes"));
  CHECK(says(refused([](auto& m) { m.offset = UINT64_MAX - 10; }), Code::kInvalidArgument,
             "beyond 2^63"));
  CHECK(says(refused([](auto& m) { m.offset = uint64_t{1} << 63; }), Code::kInvalidArgument,
             "beyond 2^63"));
  CHECK(says(refused([](auto& m) { m.dma_buf = -1, m.copy = nullptr; }), Code::kInvalidArgument,
             "give one of the two"));
  CHECK(says(refused([](auto& m) { m.dma_buf = -1, m.address = nullptr; }), Code::kInvalidArgument,
             "give one of the two"));
  CHECK(says(refused([](auto& m) { m.dma_buf = 1'000'000; }), Code::kInvalidArgument,
             "cannot be duplicated"));
  // Nothing but a dma-buf can be copied by its descriptor alone.
  CHECK(says(refused([](auto& m) { m.copy = nullptr; }), Code::kInvalidArgument, "is no dma-buf"));
  CHECK(says(refused([](auto& m) { m.copy = nullptr, m.address = nullptr; }),
             Code::kInvalidArgument, "is no dma-buf"));
  CHECK(device.ended() == 0);
}

TEST_CASE("nobody reads or writes addresses that were reserved for device memory",
          "[device_memory]") {
  PretendDevice device(4096);
  DeviceMemory memory = device.description(true);
  memory.address = nullptr;
  auto buffer = wrap_device_memory(memory);
  REQUIRE(buffer.ok());
  CHECK(buffer->in_device_memory());
  CHECK(buffer->size_bytes() == 4096);
  // The kernel says of an address what a load would have met.
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  CHECK(::write(ends[1], buffer->data(), 1) == -1);
  CHECK(errno == EFAULT);
  REQUIRE(::write(ends[1], "x", 1) == 1);
  CHECK(::read(ends[0], buffer->data(), 1) == -1);
  CHECK(errno == EFAULT);
  ::close(ends[0]);
  ::close(ends[1]);
  // They are not given to anybody else while it lives.
  void* const reserved = buffer->data();
  void* other =
      ::mmap(reserved, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  CHECK(other == MAP_FAILED);
  *buffer = Buffer();
  other =
      ::mmap(reserved, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  REQUIRE(other == reserved);
  ::munmap(other, 4096);
  CHECK(device.ended() == 1);
}

// Else no RDMA device registers it (ibv_reg_dmabuf_mr(3)).
TEST_CASE("reserved addresses lie in their pages as the memory lies in those of its dma-buf",
          "[device_memory]") {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  PretendDevice device(3 * page);
  DeviceMemory memory = device.description(true);
  memory.address = nullptr;
  memory.offset = page + 100;
  memory.length = page;
  auto buffer = wrap_device_memory(memory);
  REQUIRE(buffer.ok());
  CHECK(reinterpret_cast<uintptr_t>(buffer->data()) % page == 100);
  // Its last byte lies in the second of them. Both are free afterwards.
  std::byte* const first = buffer->data() - 100;
  for (bool lives : {true, false}) {
    if (!lives) *buffer = Buffer();
    for (std::byte* at : {first, first + page}) {
      void* other =
          ::mmap(at, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      CHECK((other == MAP_FAILED) == lives);
      if (other != MAP_FAILED) ::munmap(other, page);
    }
  }
}

TEST_CASE("a descriptor may be closed once it was wrapped", "[device_memory]") {
  PretendDevice device(4096);
  DeviceMemory memory = device.description(true);
  memory.dma_buf = ::dup(device.file());
  auto buffer = wrap_device_memory(memory);
  REQUIRE(buffer.ok());
  const int kept = DeviceStorage::of(buffer->storage())->dma_buf();
  CHECK(kept != memory.dma_buf);
  ::close(memory.dma_buf);
  CHECK(::lseek(kept, 0, SEEK_END) == 4096);
  *buffer = Buffer();
  CHECK(::lseek(kept, 0, SEEK_END) == -1);
}

TEST_CASE("bytes are copied between devices and the host, every way", "[device_memory]") {
  PretendDevice one(kBytes), other(kBytes);
  fill(one.bytes(), 3);
  Tensor source = one.wrap(false).freeze();
  Buffer target = other.wrap(false);
  REQUIRE(copy_device_bytes(target, source).ok());
  CHECK(holds(other.bytes(), 3));
  auto arena = Arena::create({.limit_bytes = 32 << 20});
  REQUIRE(arena.ok());
  auto host = copy_to_host(**arena, source);
  REQUIRE(host.ok());
  CHECK_FALSE(host->in_device_memory());
  CHECK(holds(host->bytes(), 3));
  auto back = (*arena)->allocate(kBytes);
  REQUIRE(back.ok());
  REQUIRE(copy_device_bytes(*back, source).ok());
  CHECK(holds(back->bytes(), 3));
  fill(back->bytes(), 4);
  REQUIRE(copy_device_bytes(target, std::move(*back).freeze()).ok());
  CHECK(holds(other.bytes(), 4));
  std::vector<std::byte> few(10);
  fill(few, 5);
  REQUIRE(copy_from_host(target, few).ok());
  CHECK(holds(other.bytes().first(10), 5));
  one.break_engine();
  CHECK(says(copy_device_bytes(target, source), Code::kInternal, "the engine is broken"));
}

TEST_CASE("a strided tensor keeps its layout on its way to the host", "[device_memory]") {
  PretendDevice device(4096);
  fill(device.bytes(), 3);
  const std::vector<int64_t> shape = {3, 5}, strides = {10, 2};
  auto layout = TensorDescriptor::strided(shape, strides, float32, 128);
  REQUIRE(layout.ok());
  Tensor whole = device.wrap(false).freeze();
  auto arena = Arena::create({.limit_bytes = 32 << 20});
  REQUIRE(arena.ok());
  auto host = copy_to_host(**arena, Tensor(whole.storage(), *layout));
  REQUIRE(host.ok());
  CHECK(host->descriptor().same_layout(*layout));
  CHECK(std::equal(host->bytes().begin(), host->bytes().end(), device.bytes().begin() + 128));
}

class Listening final : public DeviceMemoryUser {
 public:
  explicit Listening(const PretendDevice& device) : device_(device) {}
  void device_memory_ended(const DeviceStorage&) noexcept override {
    ++told;
    before_done = device_.ended() == 0;
  }
  int told = 0;
  bool before_done = false;

 private:
  const PretendDevice& device_;
};

TEST_CASE("whoever keeps something for device memory hears of its end, before its owner",
          "[device_memory]") {
  PretendDevice device(4096);
  auto here = std::make_shared<Listening>(device), gone = std::make_shared<Listening>(device);
  Buffer buffer = device.wrap(true);
  DeviceStorage::of(buffer.storage())->add_user(here);
  DeviceStorage::of(buffer.storage())->add_user(gone);
  gone.reset();
  Tensor frozen = std::move(buffer).freeze();
  Tensor shared = frozen;
  frozen = Tensor();
  CHECK(here->told == 0);
  CHECK(device.ended() == 0);
  std::optional<Buffer> thawed = shared.try_thaw();
  REQUIRE(thawed);
  CHECK(thawed->in_device_memory());
  thawed.reset();
  CHECK(here->told == 1);
  CHECK(here->before_done);
  CHECK(device.ended() == 1);
}

TEST_CASE("a forked child that lets go of device memory leaves the parent's alone",
          "[device_memory]") {
  static PretendDevice* device;
  static std::optional<Buffer> buffer;
  static std::shared_ptr<Listening> parent;
  PretendDevice made(4096);
  device = &made;
  buffer = made.wrap(true);
  parent = std::make_shared<Listening>(made);
  DeviceStorage::of(buffer->storage())->add_user(parent);
  CHECK(test::in_child([] {
          buffer.reset();
          return device->ended() + parent->told;
        }) == 0);
  buffer.reset();
  CHECK(made.ended() == 1);
  CHECK(parent->told == 1);
  parent.reset();
}

// How many blocks of it there are.
template <typename T>
struct Counting {
  using value_type = T;
  explicit Counting(int* blocks) : blocks(blocks) {}
  template <typename Other>
  Counting(const Counting<Other>& other) : blocks(other.blocks) {}
  T* allocate(size_t n) { return ++*blocks, std::allocator<T>().allocate(n); }
  void deallocate(T* at, size_t n) { --*blocks, std::allocator<T>().deallocate(at, n); }
  template <typename Other>
  bool operator==(const Counting<Other>& other) const {
    return blocks == other.blocks;
  }
  int* blocks;
};

TEST_CASE("device memory keeps nothing of those who are gone", "[device_memory]") {
  PretendDevice device(4096);
  Buffer buffer = device.wrap(true);
  int blocks = 0;
  for (int i = 0; i < 100; ++i) {
    auto user = std::allocate_shared<Listening>(Counting<Listening>(&blocks), device);
    DeviceStorage::of(buffer.storage())->add_user(user);
  }
  CHECK(blocks == 1);
}

TEST_CASE("device memory is not exported as memory of the processor", "[device_memory]") {
  PretendDevice device(4096);
  Tensor tensor = device.wrap(false).freeze();
  CHECK(to_dlpack(tensor).code() == Code::kUnsupported);
  CHECK(to_legacy_dlpack(tensor).code() == Code::kUnsupported);
}

}  // namespace
}  // namespace sluice
