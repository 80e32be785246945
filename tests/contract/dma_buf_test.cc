// Device memory of a real exporter, by its dma-buf alone: the library maps it to copy. Soft-RoCE
// does not import dma-bufs, so over it, too, their bytes pass host memory.
#include "tests/contract/pair.h"

#include <sys/mman.h>

#include <cstdio>

#include <sluice/allocator/device_memory.h>
#include <sluice/exchange/exchange.h>

#include "tests/support/real_dma_buf.h"

namespace sluice::test {
namespace {

constexpr size_t kBytes = 3 << 20;

// One of this kernel, and its bytes by a mapping of the test's own.
struct Device {
  explicit Device(uint64_t seed) : dma_buf(kBytes) {
    INFO(dma_buf.why());
    REQUIRE(dma_buf.fd() >= 0);
    void* own = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, dma_buf.fd(), 0);
    REQUIRE(own != MAP_FAILED);
    bytes = {static_cast<std::byte*>(own), kBytes};
    fill(bytes, seed);
  }
  ~Device() { ::munmap(bytes.data(), kBytes); }
  Buffer wrap(uint64_t offset, uint64_t length) const {
    auto wrapped =
        wrap_device_memory({.dma_buf = dma_buf.fd(), .offset = offset, .length = length});
    INFO(wrapped.status().to_string());
    REQUIRE(wrapped.ok());
    return std::move(*wrapped);
  }

  RealDmaBuf dma_buf;
  std::span<std::byte> bytes;
};

TEST_CASE("messages go from a dma-buf into a dma-buf", "[dma-buf]") {
  NothingLeftBehind audit;
  Device from(1), to(2);
  std::printf("dma-bufs of %s\n", from.dma_buf.driver().c_str());
  // Also parts that begin within a page.
  for (auto [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, kBytes}, {0, 64}, {4096, 4096}, {4097, 100'000}, {kBytes - 1, 1}}) {
    INFO(length << " bytes at " << offset);
    Pair pair;
    fill(to.bytes, 2);
    Box& box = pair.box();
    REQUIRE(pair.server.receive({.tag = 1}, to.wrap(offset, length), box.options(7)).ok());
    REQUIRE(pair.client.send(1, from.wrap(offset, length).freeze(), box.options(8)).ok());
    REQUIRE(pair.until([&] { return box.all.size() == 2; }));
    for (Completion& completion : box.all) {
      INFO(completion.status.to_string());
      CHECK(completion.status.ok());
      CHECK(completion.receipt.bytes == length);
      CHECK(completion.receipt.copied_bytes >= length);
    }
    CHECK(std::equal(to.bytes.begin() + static_cast<long>(offset),
                     to.bytes.begin() + static_cast<long>(offset + length),
                     from.bytes.begin() + static_cast<long>(offset)));
    box.all.clear();
  }
}

TEST_CASE("a tensor in a dma-buf is published, and fetched into one", "[dma-buf]") {
  NothingLeftBehind audit;
  Device from(1), to(2);
  Pair pair;
  Exchange near(*pair.client_context), far(*pair.server_context);
  REQUIRE(near.add(pair.client).ok());
  REQUIRE(far.add(pair.server).ok());
  auto published = far.publish({"w", 1}, from.wrap(0, kBytes).freeze(), {.readers = 1});
  REQUIRE(published.ok());
  FetchInto fetch = near.fetch_into({"w", 1}, to.wrap(0, kBytes), soon());
  REQUIRE(pair.until([&] { return fetch.ready(); }));
  Placed placed = fetch.take();
  INFO(placed.status().to_string());
  REQUIRE(placed.ok());
  CHECK(std::equal(to.bytes.begin(), to.bytes.end(), from.bytes.begin()));
}

TEST_CASE("a range outside of a dma-buf is refused", "[dma-buf]") {
  NothingLeftBehind audit;
  RealDmaBuf dma_buf(kBytes);
  INFO(dma_buf.why());
  REQUIRE(dma_buf.fd() >= 0);
  for (auto [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, kBytes + 4096}, {kBytes, 4096}, {4096, kBytes}}) {
    auto refused =
        wrap_device_memory({.dma_buf = dma_buf.fd(), .offset = offset, .length = length});
    INFO(refused.status().to_string());
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(refused.status().to_string().find("the dma-buf has no") != std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::test
