// Tensors in device memory, published and fetched.
#include "tests/contract/pair.h"

#include <sluice/exchange/exchange.h>

#include "tests/support/pretend_device.h"

namespace sluice::test {
namespace {

constexpr size_t kBytes = 300'000;

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

TEST_CASE("readers of several paths at once get one tensor of device memory, also if it is retired",
          "[contract][exchange][device]") {
  NothingLeftBehind audit;
  for (bool dma_buf : {false, true}) {
    for (bool retire : {false, true}) {
      INFO("with a dma-buf: " << dma_buf << ", retired: " << retire);
      constexpr size_t kLarge = 5'000'000;
      PretendDevice from(kLarge), to(kLarge);
      fill(from.bytes(), 3);
      {
        Pair pair;
        auto other = open();
        auto listening = pair.server_context->listen("tcp://127.0.0.1:0");
        REQUIRE(listening.ok());
        auto near_tcp = connect_to(*other, *pair.server_context, listening->address());
        REQUIRE(near_tcp.ok());
        auto far_tcp = listening->accept(soon());
        REQUIRE(far_tcp.ok());
        auto until = [&](auto&& done) {
          return pair.until([&] {
            other->progress();
            return done();
          });
        };
        Exchange near(*pair.client_context), far(*pair.server_context), third(*other);
        REQUIRE(near.add(pair.client).ok());
        REQUIRE(far.add(pair.server).ok());
        REQUIRE(far.add(*far_tcp).ok());
        REQUIRE(third.add(*near_tcp).ok());
        auto published = far.publish({"w", 1}, from.wrap(dma_buf).freeze(), {.readers = 5});
        REQUIRE(published.ok());
        // Of the latest step one that has not heard which it is would wait for the next.
        Fetch a = near.fetch({"w", retire ? 1 : kLatest}, soon());
        FetchInto b = near.fetch_into({"w", 1}, to.wrap(dma_buf), soon());
        Fetch c = third.fetch({"w", 1}, soon());
        FetchInto d = third.fetch_into({"w", 1}, room(*other, kLarge), soon());
        auto subscription = far.subscribe("w", {.first_step = 1});
        for (int i = 0; i < 6; ++i) {
          other->progress();
          pair.client_context->progress();
        }
        if (retire) published->retire();
        CHECK(until([&] {
          return a.ready() && b.ready() && c.ready() && d.ready() && subscription.ready();
        }));
        auto got_a = a.take();
        INFO(got_a.status().to_string());
        if (!retire) REQUIRE(got_a.ok());
        if (got_a.ok()) CHECK(holds(got_a->value.bytes(), 3));
        Placed got_b = b.take();
        INFO(got_b.status().to_string());
        if (!retire) REQUIRE(got_b.ok());
        if (got_b.ok()) CHECK(holds(to.bytes(), 3));
        CHECK(got_b.take_buffer().data() == to.address());
        auto got_c = c.take();
        if (!retire) REQUIRE(got_c.ok());
        if (got_c.ok()) CHECK(holds(got_c->value.bytes(), 3));
        Placed got_d = d.take();
        if (!retire) REQUIRE(got_d.ok());
        if (got_d.ok()) CHECK(holds(got_d.value().value.bytes(), 3));
        auto mine = subscription.take();
        REQUIRE(mine.ok());
        CHECK(mine->value.data() == from.address());
        mine->value = Tensor();
        if (got_a.ok()) got_a->value = Tensor();
        if (got_c.ok()) got_c->value = Tensor();
        CHECK(until([&] { return published->ready(); }));
        Tensor back = published->take();
        CHECK(back.data() == from.address());
        CHECK(back.try_thaw().has_value());
        CHECK(from.to_host_bytes() <= kLarge);  // once for all
        CHECK(published->readers_lost() == 0);
      }
      CHECK(from.ended() == 1);
      CHECK(to.ended() == 1);
    }
  }
}

}  // namespace
}  // namespace sluice::test
