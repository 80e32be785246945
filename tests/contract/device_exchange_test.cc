// Tensors in device memory, published and fetched.
#include "tests/contract/pair.h"

#include <sluice/exchange/exchange.h>

#include "tests/support/pretend_device.h"

namespace sluice::test {
namespace {

constexpr size_t kBytes = 300'000;

// As in device_memory_test.cc.
uint64_t bounced(bool dma_buf, uint64_t bytes) {
  return fake_device_under_test() && dma_buf ? 0 : bytes;
}

TEST_CASE("a tensor in device memory is fetched, as host memory or into device memory",
          "[contract][exchange][device]") {
  NothingLeftBehind audit;
  for (bool dma_buf : {false, true}) {
    INFO("with a dma-buf: " << dma_buf);
    PretendDevice from(kBytes), to(kBytes);
    fill(from.bytes(), 3);
    {
      Pair pair;
      Exchange near(*pair.client_context), far(*pair.server_context);
      REQUIRE(near.add(pair.client).ok());
      REQUIRE(far.add(pair.server).ok());
      auto published = far.publish({"w", 1}, from.wrap(dma_buf).freeze(), {.readers = 2});
      REQUIRE(published.ok());
      Fetch fetch = near.fetch({"w", 1}, soon());
      REQUIRE(pair.until([&] { return fetch.ready(); }));
      auto got = fetch.take();
      INFO(got.status().to_string());
      REQUIRE(got.ok());
      CHECK_FALSE(got->value.in_device_memory());
      CHECK(holds(got->value.bytes(), 3));
      got->value = Tensor();
      FetchInto into = near.fetch_into({"w", 1}, to.wrap(dma_buf), soon());
      REQUIRE(pair.until([&] { return into.ready(); }));
      Placed placed = into.take();
      INFO(placed.status().to_string());
      REQUIRE(placed.ok());
      CHECK(placed.value().receipt.copied_bytes >= bounced(dma_buf, kBytes));
      Buffer back = placed.take_buffer();
      CHECK(back.data() == to.address());
      CHECK(holds(to.bytes(), 3));
      CHECK(to.from_host_bytes() == bounced(dma_buf, kBytes));
      CHECK(from.to_host_bytes() == bounced(dma_buf, kBytes));  // once for both readers
      REQUIRE(pair.until([&] { return published->ready(); }));
      CHECK(published->take().data() == from.address());
    }
    CHECK(from.ended() == 1);
    CHECK(to.ended() == 1);
  }
}

TEST_CASE("a tensor of this program's own device is handed over as it is, or copied as asked",
          "[contract][exchange][device]") {
  NothingLeftBehind audit;
  Pair pair;
  PretendDevice from(kBytes), to(kBytes);
  fill(from.bytes(), 3);
  Exchange here(*pair.client_context);
  auto published = here.publish({"w", 1}, from.wrap(false).freeze(), {.readers = 3});
  REQUIRE(published.ok());
  Fetch fetch = here.fetch({"w", 1}, soon());
  REQUIRE(pair.until([&] { return fetch.ready(); }));
  auto got = fetch.take();
  REQUIRE(got.ok());
  CHECK(got->value.data() == from.address());
  FetchInto device = here.fetch_into({"w", 1}, to.wrap(false), soon());
  FetchInto host = here.fetch_into({"w", 1}, room(*pair.client_context, kBytes), soon());
  REQUIRE(pair.until([&] { return device.ready() && host.ready(); }));
  Placed in_device = device.take(), in_host = host.take();
  INFO(in_device.status().to_string() << in_host.status().to_string());
  REQUIRE(in_device.ok());
  REQUIRE(in_host.ok());
  // From device to device by host memory.
  CHECK(from.to_host_bytes() == 2 * kBytes);
  CHECK(in_device.value().receipt.copied_bytes == 2 * kBytes);
  CHECK(in_host.value().receipt.copied_bytes == kBytes);
  CHECK(holds(to.bytes(), 3));
  CHECK(holds(in_host.value().value.bytes(), 3));
}

TEST_CASE("device memory is not copied for a reader whose connection has broken",
          "[contract][exchange][device]") {
  NothingLeftBehind audit;
  for (bool dma_buf : {false, true}) {
    INFO("with a dma-buf: " << dma_buf);
    Pair pair;
    PretendDevice from(kBytes);
    Exchange near(*pair.client_context), far(*pair.server_context);
    REQUIRE(near.add(pair.client).ok());
    REQUIRE(far.add(pair.server).ok());
    Fetch fetch = near.fetch({"w", 1}, soon());
    pair.settle();
    pair.server = Endpoint();
    auto published = far.publish({"w", 1}, from.wrap(dma_buf).freeze());
    REQUIRE(published.ok());
    CHECK(from.to_host_bytes() == 0);
    REQUIRE(pair.until([&] { return fetch.ready(); }));
    CHECK_FALSE(fetch.take().ok());
  }
}

}  // namespace
}  // namespace sluice::test
