// The registrar alone, on a fake device: how memory is registered, what is said when it is
// refused, and device memory by dma-buf. No connection.
#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

#include <sluice/allocator/arena.h>
#include <sluice/allocator/device_storage.h>
#include <sluice/base/log.h>
#include <sluice/runtime/context_core.h>
#include <sluice/select/open.h>
#include <sluice/verbs/device.h>
#include <sluice/verbs/registrar.h>

#include "tests/support/pretend_device.h"
#include "tests/verbs/fake_provider.h"

namespace sluice::verbs {
namespace {

constexpr uint64_t kBytes = 1 << 20;
// Where device memory is said to be: nobody touches it.
constexpr uint64_t kDeviceAddress = uint64_t{0x7} << 44;

// A device with a protection domain; nothing is left of them at the end.
class Bench {
 public:
  explicit Bench(FakeOptions options = {}) : fake(std::move(options)) {
    set_log_sink([](LogLevel, std::string_view, void*) {}, nullptr);
    int count = 0;
    ibv_device** list = fake.device_list(&count);
    context = fake.open_device(list[0]);
    fake.free_device_list(list);
    pd = fake.alloc_pd(context);
    auto made = Arena::create(
        {.limit_bytes = 8 << 20, .first_extent_bytes = 2 << 20, .receive_reserve_bytes = 0});
    REQUIRE(made.ok());
    arena = std::move(made).value();
    dma_buf = ::memfd_create("dma-buf", MFD_CLOEXEC);
    REQUIRE(::ftruncate(dma_buf, kBytes) == 0);
  }
  ~Bench() {
    ::close(dma_buf);
    CHECK(fake.census().mrs == 0);
    CHECK(fake.census().pinned_bytes == 0);
    CHECK(fake.dealloc_pd(pd) == (removed ? EIO : 0));
    CHECK(fake.close_device(context) == (removed ? EIO : 0));
    CHECK(fake.complaints() == "");
    set_log_sink(nullptr, nullptr);
  }
  std::shared_ptr<Registrar> attach(const RegistrarOptions& options = {}) {
    auto registrar = Registrar::attach(fake, pd, arena, options);
    INFO(registrar.status().to_string());
    REQUIRE(registrar.ok());
    return std::move(registrar).value();
  }

  FakeVerbs fake;
  ibv_context* context;
  ibv_pd* pd;
  std::shared_ptr<Arena> arena;
  int dma_buf;
  bool removed = false;
};

bool says(const Status& status, const char* text) {
  return status.to_string().find(text) != std::string::npos;
}
const void* at(uint64_t address) { return reinterpret_cast<const void*>(address); }

FakeOptions device(const std::function<void(FakeDeviceOptions&)>& change) {
  FakeOptions options;
  change(options.devices[0]);
  return options;
}

TEST_CASE("device memory is registered by dma-buf, found by its addresses, and released",
          "[verbs][registrar]") {
  Bench bench;
  auto registrar = bench.attach();
  uint64_t extents = bench.fake.census().mrs;
  uint64_t pinned = bench.fake.census().pinned_bytes;
  REQUIRE(registrar->add_device_memory(bench.dma_buf, 4096, kBytes - 4096, kDeviceAddress).ok());
  CHECK(bench.fake.calls("reg_dmabuf_mr") == 1);
  CHECK(bench.fake.census().mrs == extents + 1);
  CHECK(bench.fake.census().pinned_bytes == pinned);
  Registered found = registrar->find(at(kDeviceAddress + 100), kBytes);
  REQUIRE(found.mr != nullptr);
  CHECK(found.length == kBytes - 4096 - 100);
  CHECK(reinterpret_cast<uint64_t>(found.mr->addr) == kDeviceAddress);
  CHECK(registrar->find(at(kDeviceAddress - 1), 1).mr == nullptr);
  CHECK(registrar->find(at(kDeviceAddress + kBytes - 4096), 1).mr == nullptr);
  // The arena's memory is still the arena's.
  auto buffer = bench.arena->allocate(5000);
  REQUIRE(buffer.ok());
  CHECK(registrar->find(buffer->data(), 5000).length == 5000);
  CHECK(registrar->removals() == 0);
  REQUIRE(registrar->remove_device_memory(kDeviceAddress).ok());
  CHECK(registrar->removals() == 1);
  CHECK(registrar->find(at(kDeviceAddress), 1).mr == nullptr);
  CHECK(bench.fake.census().mrs ==
        bench.arena->extents_over(0, bench.arena->reserved_address_bytes()).size());
  CHECK(registrar->remove_device_memory(kDeviceAddress).code() == Code::kInvalidArgument);
}

TEST_CASE("device memory that was not removed goes with the registrar", "[verbs][registrar]") {
  Bench bench;
  auto registrar = bench.attach();
  CHECK(registrar->add_device_memory(bench.dma_buf, 0, 4096, kDeviceAddress).ok());
  CHECK(registrar->add_device_memory(bench.dma_buf, 4096, 4096, kDeviceAddress + 4096).ok());
}

TEST_CASE("device memory is registered when it is used first, and until it ends",
          "[verbs][registrar]") {
  Bench bench;
  test::PretendDevice device(kBytes);
  auto registrar = bench.attach();
  const uint64_t extents = bench.fake.census().mrs;
  {
    Buffer memory = device.wrap(true);
    DeviceStorage& storage = *DeviceStorage::of(memory.storage());
    CHECK(registrar->reaches(storage));
    CHECK(registrar->reaches(storage));
    CHECK(bench.fake.calls("reg_dmabuf_mr") == 1);
    CHECK(registrar->find(device.address() + 10, 100).length == 100);
    // The same memory in other hands: its end would be the other's.
    {
      Buffer again = device.wrap(true);
      CHECK_FALSE(registrar->reaches(*DeviceStorage::of(again.storage())));
      CHECK_FALSE(registrar->reaches(*DeviceStorage::of(again.storage())));
      CHECK(bench.fake.calls("reg_dmabuf_mr") == 1);
    }
    CHECK(registrar->reaches(storage));
    CHECK(registrar->find(device.address(), 1).mr != nullptr);
    CHECK(bench.fake.census().mrs == extents + 1);
  }
  CHECK(bench.fake.census().mrs == extents);
  CHECK(registrar->removals() == 1);
  CHECK(registrar->find(device.address(), 1).mr == nullptr);
  // Without a descriptor there is nothing to register.
  Buffer unnamed = device.wrap(false);
  CHECK_FALSE(registrar->reaches(*DeviceStorage::of(unnamed.storage())));
}

TEST_CASE("device memory that outlives the registrar ends without it", "[verbs][registrar]") {
  Bench bench;
  test::PretendDevice device(kBytes), refused(kBytes);
  Buffer memory = device.wrap(true), other = refused.wrap(true);
  auto registrar = bench.attach();
  CHECK(registrar->reaches(*DeviceStorage::of(memory.storage())));
  bench.fake.with_faults([](FakeFaults& faults) { faults.fail("reg_dmabuf_mr", 1, EOPNOTSUPP); });
  CHECK_FALSE(registrar->reaches(*DeviceStorage::of(other.storage())));
  registrar.reset();
  memory = Buffer();
  other = Buffer();
  CHECK(device.ended() == 1);
  CHECK(refused.ended() == 1);
}

TEST_CASE("a device that is closed leaves nothing registered to a thread that ends device memory",
          "[verbs][registrar]") {
  FakeVerbs fake;
  test::PretendDevice accelerator(kBytes);
  Buffer memory = accelerator.wrap(true);
  auto context = open_context();
  REQUIRE(context.ok());
  auto opened = Device::open(ContextCore::of(**context), fake, FakeDeviceOptions().name);
  INFO(opened.status().to_string());
  REQUIRE(opened.ok());
  CHECK((*opened)->registrar().reaches(*DeviceStorage::of(memory.storage())));
  // As the other thread has it for that time.
  std::shared_ptr<Registrar> held = (*opened)->registrar().shared_from_this();
  opened->reset();
  CHECK(fake.complaints() == "");
  const uint64_t calls = fake.calls_in_all();
  held->device_memory_ended(*DeviceStorage::of(memory.storage()));
  held.reset();
  memory = Buffer();
  CHECK(fake.calls_in_all() == calls);
  CHECK(fake.complaints() == "");
}

TEST_CASE("device memory that a forked child drops stays registered for its parent",
          "[verbs][registrar]") {
  Bench bench;
  test::PretendDevice device(kBytes);
  auto registrar = bench.attach();
  Buffer memory = device.wrap(true);
  CHECK(registrar->reaches(*DeviceStorage::of(memory.storage())));
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    memory = Buffer();
    ::_exit(static_cast<int>(bench.fake.calls("dereg_mr")));
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("device memory that ended is not found, though the device does not let go of it",
          "[verbs][registrar]") {
  Bench bench;
  test::PretendDevice device(kBytes);
  auto registrar = bench.attach();
  Buffer memory = device.wrap(true);
  CHECK(registrar->reaches(*DeviceStorage::of(memory.storage())));
  bench.fake.with_faults([](FakeFaults& faults) { faults.fail("dereg_mr", 1, EBUSY); });
  memory = Buffer();
  CHECK(device.ended() == 1);
  // Others get its addresses, and its descriptor is closed.
  CHECK(registrar->find(device.address(), 1).mr == nullptr);
  CHECK(registrar->removals() == 1);
}

TEST_CASE("device memory ends after its RDMA device", "[verbs][registrar]") {
  Bench bench;
  test::PretendDevice device(kBytes);
  auto registrar = bench.attach();
  Buffer memory = device.wrap(true);
  CHECK(registrar->reaches(*DeviceStorage::of(memory.storage())));
  bench.removed = true;
  bench.fake.remove_device();
  memory = Buffer();
  CHECK(device.ended() == 1);
}

TEST_CASE("a part of device memory is registered by its dma-buf", "[verbs][registrar]") {
  Bench bench;
  auto registrar = bench.attach();
  REQUIRE(registrar->add_device_memory(bench.dma_buf, 4096, kBytes - 4096, kDeviceAddress).ok());
  auto* start = reinterpret_cast<std::byte*>(kDeviceAddress);
  auto part = registrar->pin(start + 100, 50, IBV_ACCESS_LOCAL_WRITE);
  INFO(part.status().to_string());
  REQUIRE(part.ok());
  CHECK((*part)->addr == start + 100);
  CHECK((*part)->length == 50);
  CHECK(bench.fake.calls("reg_dmabuf_mr") == 2);
  CHECK(bench.fake.dereg_mr(*part) == 0);
  // Over its end there is other memory, if any.
  auto beyond = registrar->pin(start, kBytes, IBV_ACCESS_LOCAL_WRITE);
  CHECK(beyond.code() == Code::kInvalidArgument);
  bench.fake.with_faults([](FakeFaults& faults) { faults.fail("reg_dmabuf_mr", 1, ENOMEM); });
  CHECK(registrar->pin(start, 50, IBV_ACCESS_LOCAL_WRITE).code() == Code::kNoMemory);
}

TEST_CASE("device memory that cannot be registered says what is missing", "[verbs][registrar]") {
  SECTION("a driver or kernel without it") {
    Bench bench(device([](FakeDeviceOptions& d) { d.dma_bufs = false; }));
    Status refused = bench.attach()->add_device_memory(bench.dma_buf, 0, 4096, kDeviceAddress);
    INFO(refused.to_string());
    CHECK(refused.code() == Code::kUnsupported);
    CHECK(says(refused, "Linux 5.12"));
    CHECK(says(refused, "RDMA driver that imports dma-bufs"));
  }
  SECTION("a library without it, and what else goes wrong") {
    Bench bench;
    auto registrar = bench.attach();
    for (auto [error, code, text] : std::vector<std::tuple<int, Code, const char*>>{
             {ENOSYS, Code::kUnsupported, "rdma-core"},
             {ENOMEM, Code::kNoMemory, "no room"},
             {EIO, Code::kInternal, "cannot be registered"}}) {
      bench.fake.with_faults(
          [e = error](FakeFaults& faults) { faults.fail("reg_dmabuf_mr", 1, e); });
      Status refused = registrar->add_device_memory(bench.dma_buf, 0, 4096, kDeviceAddress);
      INFO(refused.to_string());
      CHECK(refused.code() == code);
      CHECK(says(refused, text));
    }
    CHECK(registrar->add_device_memory(bench.dma_buf, 0, 4096, kDeviceAddress).ok());
  }
  SECTION("arguments") {
    Bench bench;
    auto registrar = bench.attach();
    Status no_descriptor = registrar->add_device_memory(-1, 0, 4096, kDeviceAddress);
    CHECK(no_descriptor.code() == Code::kInvalidArgument);
    CHECK(says(no_descriptor, "no dma-buf"));
    CHECK(registrar->add_device_memory(bench.dma_buf, kBytes, 4096, kDeviceAddress).code() ==
          Code::kInvalidArgument);
    CHECK(registrar->add_device_memory(bench.dma_buf, 0, 0, kDeviceAddress).code() ==
          Code::kInvalidArgument);
    Status askew = registrar->add_device_memory(bench.dma_buf, 100, 4096, kDeviceAddress);
    CHECK(askew.code() == Code::kInvalidArgument);
    CHECK(says(askew, "as far into a page"));
    CHECK(registrar->add_device_memory(bench.dma_buf, 0, 4096, UINT64_MAX - 100).code() ==
          Code::kInvalidArgument);
    CHECK(registrar->add_device_memory(bench.dma_buf, 0, 8192, kDeviceAddress).ok());
    CHECK(registrar->add_device_memory(bench.dma_buf, 0, 8192, kDeviceAddress + 4096).code() ==
          Code::kInvalidArgument);
    CHECK(registrar->add_device_memory(bench.dma_buf, 0, 8192, kDeviceAddress - 4096).code() ==
          Code::kInvalidArgument);
    auto buffer = bench.arena->allocate(5000);
    REQUIRE(buffer.ok());
    auto taken = reinterpret_cast<uint64_t>(buffer->data());
    CHECK(registrar->add_device_memory(bench.dma_buf, 0, 4096, taken).code() ==
          Code::kInvalidArgument);
  }
}

TEST_CASE("device memory stays registered while the device does not let go of it",
          "[verbs][registrar]") {
  Bench bench;
  auto registrar = bench.attach();
  REQUIRE(registrar->add_device_memory(bench.dma_buf, 0, 4096, kDeviceAddress).ok());
  for (auto [error, code] :
       {std::pair(EBUSY, Code::kWrongState), std::pair(EIO, Code::kInternal)}) {
    bench.fake.with_faults([e = error](FakeFaults& faults) { faults.fail("dereg_mr", 1, e); });
    CHECK(registrar->remove_device_memory(kDeviceAddress).code() == code);
    CHECK(registrar->find(at(kDeviceAddress), 4096).length == 4096);
  }
  CHECK(registrar->remove_device_memory(kDeviceAddress).ok());
}

TEST_CASE("memory is pinned, or paged on demand where that is refused for want of memory to lock",
          "[verbs][registrar]") {
  std::vector<std::byte> own(8192);
  for (auto [memlock, refusal] : {std::pair(UINT64_MAX, 0), std::pair(uint64_t{64} << 10, ENOMEM),
                                  std::pair(uint64_t{0}, EPERM)}) {
    INFO("memlock " << memlock);
    FakeOptions options = device([](FakeDeviceOptions& d) { d.on_demand_paging = true; });
    options.memlock_bytes = memlock;
    Bench bench(options);
    auto registrar = bench.attach({.on_demand = true});
    auto buffer = bench.arena->allocate(100'000);
    REQUIRE(buffer.ok());
    CHECK(registrar->find(buffer->data(), 100'000).length == 100'000);
    CHECK((registrar->on_demand_registrations() > 0) == (refusal != 0));
    CHECK((bench.fake.census().pinned_bytes == 0) == (refusal != 0));
    auto range = registrar->pin(own.data(), own.size(), IBV_ACCESS_LOCAL_WRITE);
    REQUIRE(range.ok());
    CHECK(bench.fake.dereg_mr(*range) == 0);
  }
}

TEST_CASE("that memory is paged on demand is said once", "[verbs][registrar]") {
  FakeOptions options = device([](FakeDeviceOptions& d) { d.on_demand_paging = true; });
  options.memlock_bytes = 0;
  Bench bench(options);
  std::vector<std::string> lines;
  set_log_sink([](LogLevel, std::string_view line,
                  void* user) { static_cast<decltype(lines)*>(user)->emplace_back(line); },
               &lines);
  auto registrar = bench.attach({.on_demand = true});
  auto first = bench.arena->allocate(100'000);
  REQUIRE(lines.size() == 1);
  const uint64_t registrations = registrar->on_demand_registrations();
  auto second = bench.arena->allocate(3 << 20);  // in an extent of its own
  CHECK((first.ok() && second.ok()));
  CHECK(registrar->on_demand_registrations() > registrations);
  set_log_sink(nullptr, nullptr);
  CHECK(lines.size() == 1);
  CHECK(lines[0].find("ulimit -l") != std::string::npos);
}

TEST_CASE("memory that can be neither locked nor paged is refused with the remedy",
          "[verbs][registrar]") {
  for (bool offered : {true, false}) {
    for (uint64_t memlock : {uint64_t{0}, uint64_t{64} << 10}) {
      FakeOptions options;  // on-demand registrations are refused, whatever was offered
      options.memlock_bytes = memlock;
      Bench bench(options);
      auto registrar = bench.attach({.on_demand = offered});
      auto refused = bench.arena->allocate(100'000);
      INFO(refused.status().to_string());
      CHECK(refused.code() == Code::kNoMemory);
      CHECK(says(refused.status(), "cannot register"));
      CHECK(registrar->on_demand_registrations() == 0);
    }
  }
  // What is refused for another reason is not tried again.
  Bench bench(device([](FakeDeviceOptions& d) { d.on_demand_paging = true; }));
  auto registrar = bench.attach({.on_demand = true});
  uint64_t before = bench.fake.calls("reg_mr");
  bench.fake.with_faults([](FakeFaults& faults) { faults.fail("reg_mr", 1, EINVAL); });
  CHECK_FALSE(bench.arena->allocate(100'000).ok());
  CHECK(bench.fake.calls("reg_mr") == before + 1);
}

// Everything an arena and two devices do together; what did not work, once more. Returns how often
// something did not.
size_t live_through(Bench& bench) {
  size_t refusals = 0;
  // Whoever registers less where more was refused meets both refusals in one attempt, the others in
  // two.
  auto again = [&](auto attempt) {
    auto result = attempt();
    for (int i = 0; i < 2 && !result.ok(); ++i) {
      ++refusals;
      INFO(result.status().to_string());
      CHECK(result.code() == Code::kNoMemory);
      CHECK(says(result.status(), "cannot register"));
      bool remedy =
          says(result.status(), "ulimit -l") || says(result.status(), "SLUICE_ARENA_LIMIT");
      CHECK(remedy);
      result = attempt();
    }
    return result;
  };
  std::vector<std::shared_ptr<Registrar>> registrars;
  std::vector<Buffer> buffers;
  auto known = [&] {
    size_t extents = bench.arena->extents_over(0, bench.arena->reserved_address_bytes()).size();
    CHECK(bench.fake.census().mrs == extents * registrars.size());
    for (const auto& registrar : registrars) {
      for (const Buffer& buffer : buffers) {
        // Across extents: the first piece.
        Registered found = registrar->find(buffer.data(), buffer.size_bytes());
        CHECK(found.mr != nullptr);
        CHECK(found.length > 0);
      }
    }
  };
  auto attach = [&] {
    auto attached = again([&] { return Registrar::attach(bench.fake, bench.pd, bench.arena, {}); });
    REQUIRE(attached.ok());
    registrars.push_back(std::move(*attached));
    known();
  };
  auto allocate = [&](size_t bytes) {
    auto buffer = again([&] { return bench.arena->allocate(bytes); });
    REQUIRE(buffer.ok());
    buffers.push_back(std::move(*buffer));
    known();
  };
  allocate(1000);
  allocate(size_t{2} << 20);
  attach();
  allocate(size_t{3} << 20);
  attach();
  buffers.clear();
  CHECK(bench.arena->trim() > 0);
  known();
  allocate(size_t{5} << 20);
  registrars.erase(registrars.begin());
  known();
  attach();
  return refusals;
}

TEST_CASE(
    "the n-th registration fails, for every n: it is said, nothing is left, and the next attempt "
    "works",
    "[verbs][registrar]") {
  uint64_t calls = 0;
  {
    Bench bench;
    CHECK(live_through(bench) == 0);
    calls = bench.fake.calls("reg_mr");
  }
  REQUIRE(calls >= 6);
  for (uint64_t n = 1; n <= calls; ++n) {
    INFO("registration " << n << " of " << calls);
    Bench bench;
    bench.fake.with_faults([&](FakeFaults& faults) {
      faults.fail("reg_mr", n, ENOMEM, 2);
    });  // the smaller extent that is tried then, too
    CHECK(live_through(bench) > 0);
    CHECK(bench.fake.with_faults([](FakeFaults& faults) { return faults.plans_left(); }) == 0);
  }
}

}  // namespace
}  // namespace sluice::verbs
