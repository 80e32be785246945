// Device memory as a source and as a destination. Over the fake RDMA device it is read and written
// in place if it has a dma-buf; everywhere else its bytes pass host memory.
#include "tests/contract/pair.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "tests/support/pretend_device.h"

namespace sluice::test {
namespace {

const std::vector<size_t> kSizes = {1, 64, 4096, 100'000, (1 << 20) + 1};

TEST_CASE("a message leaves device memory and arrives in device memory", "[contract][device]") {
  NothingLeftBehind audit;
  for (bool dma_buf : {false, true}) {
    for (size_t size : kSizes) {
      for (Level level : {Level::kSourceReusable, Level::kPlaced}) {
        INFO(size << " bytes, with a dma-buf: " << dma_buf);
        PretendDevice from(size), to(size);
        {
          Pair pair;
          fill(from.bytes(), size);
          Box& box = pair.box();
          auto receive = pair.server.receive({.tag = 1}, to.wrap(dma_buf), box.options(7));
          REQUIRE(receive.ok());
          auto send =
              pair.client.send(1, from.wrap(dma_buf).freeze(), box.options(8, soon(), level));
          REQUIRE(send.ok());
          REQUIRE(pair.until([&] { return box.all.size() == 2; }));
          for (Completion& completion : box.all) {
            INFO(completion.status.to_string());
            CHECK(completion.status.ok());
            CHECK(completion.receipt.bytes == size);
            CHECK(completion.receipt.copied_bytes >= bounced(dma_buf, size));
            if (bounced(dma_buf, size) == 0)
              CHECK(completion.receipt.copied_bytes + completion.receipt.kernel_copied_bytes == 0);
          }
          const Completion& got = box.all[0].user_data == 7 ? box.all[0] : box.all[1];
          CHECK(got.user_data == 7);
          REQUIRE(got.buffers.size() == 1);
          CHECK(got.buffers[0].data() == to.address());
          CHECK(holds(to.bytes(), size));
          CHECK(from.to_host_bytes() == bounced(dma_buf, size));
          CHECK(to.from_host_bytes() == bounced(dma_buf, size));
        }
        CHECK(from.ended() == 1);
        CHECK(to.ended() == 1);
      }
    }
  }
}

TEST_CASE("a small message from host memory arrives in device memory, late or early",
          "[contract][device]") {
  NothingLeftBehind audit;
  for (bool early : {false, true}) {
    for (bool dma_buf : {false, true}) {
      INFO("receive posted first: " << early << ", with a dma-buf: " << dma_buf);
      Pair pair;
      Box& box = pair.box();
      PretendDevice to(4096);
      std::optional<Buffer> into = to.wrap(dma_buf);
      auto receive = [&] {
        REQUIRE(pair.server.receive({.tag = 1}, std::move(*into), box.options(7)).ok());
        into.reset();
      };
      if (early) receive();
      REQUIRE(pair.client.send(1, tensor(*pair.client_context, 100, 5)).ok());
      pair.settle();
      if (!early) receive();
      REQUIRE(pair.until([&] { return box.all.size() == 1; }));
      INFO(box.all[0].status.to_string());
      CHECK(box.all[0].status.ok());
      CHECK(box.all[0].receipt.bytes == 100);
      CHECK(holds(to.bytes().first(100), 5));
      CHECK(to.from_host_bytes() == 100);
      box.all.clear();  // its buffer
    }
  }
}

TEST_CASE("segments in host and in device memory are one message", "[contract][device]") {
  NothingLeftBehind audit;
  for (bool dma_buf : {false, true}) {
    for (size_t piece : {size_t{100}, size_t{70'000}}) {
      INFO(piece << " bytes each, with a dma-buf: " << dma_buf);
      Pair pair;
      Box& box = pair.box();
      PretendDevice from(piece), to(2 * piece);
      fill(from.bytes(), 2);
      std::vector<Tensor> segments = {tensor(*pair.client_context, piece, 1),
                                      from.wrap(dma_buf).freeze(),
                                      tensor(*pair.client_context, piece, 3)};
      std::vector<Buffer> places;
      places.push_back(to.wrap(dma_buf));
      places.push_back(room(*pair.server_context, piece));
      REQUIRE(pair.server.receive({.tag = 1}, std::span(places), box.options(7)).ok());
      REQUIRE(pair.client.send(1, std::span<const Tensor>(segments), box.options(8)).ok());
      REQUIRE(pair.until([&] { return box.all.size() == 2; }));
      for (Completion& completion : box.all) {
        INFO(completion.status.to_string());
        CHECK(completion.status.ok());
        if (completion.user_data != 7) continue;
        REQUIRE(completion.buffers.size() == 2);
        CHECK(completion.buffers[0].data() == to.address());
        CHECK(holds(completion.buffers[1].bytes(), 3));
      }
      CHECK(holds(to.bytes().first(piece), 1));
      CHECK(holds(to.bytes().subspan(piece), 2));
      box.all.clear();
    }
  }
}

TEST_CASE("one-sided operations read into device memory and write out of it",
          "[contract][device]") {
  NothingLeftBehind audit;
  for (bool dma_buf : {false, true}) {
    for (size_t size : kSizes) {
      INFO(size << " bytes, with a dma-buf: " << dma_buf);
      Pair pair;
      PretendDevice device(size);
      Buffer memory = filled(*pair.server_context, size, 3);
      auto key = pair.server.grant(memory, {.rights = Right::kReadWrite});
      REQUIRE(key.ok());
      auto got = pair.client.read_and_wait(*key, 0, device.wrap(dma_buf), soon());
      INFO(got.status().to_string());
      REQUIRE(got.ok());
      CHECK(got->buffer.data() == device.address());
      CHECK(holds(device.bytes(), 3));
      CHECK(device.from_host_bytes() == bounced(dma_buf, size));
      fill(device.bytes(), 4);
      auto written = pair.client.write_and_wait(*key, 0, std::move(got->buffer).freeze(), soon());
      INFO(written.status().to_string());
      REQUIRE(written.ok());
      CHECK(written->copied_bytes >= bounced(dma_buf, size));
      CHECK(device.to_host_bytes() == bounced(dma_buf, size));
      CHECK(holds(memory.bytes(), 4));
    }
  }
}

TEST_CASE("device memory is granted where a device reaches it, and refused elsewhere",
          "[contract][device]") {
  NothingLeftBehind audit;
  Pair pair;
  PretendDevice device(100'000);
  fill(device.bytes(), 3);
  Buffer memory = device.wrap(true);
  auto key = pair.server.grant(memory, {.rights = Right::kReadWrite});
  if (!fake_device_under_test()) {
    CHECK(key.code() == Code::kUnsupported);
    CHECK(std::string(key.status().detail()).find("grant host memory") != std::string::npos);
    return;
  }
  INFO(key.status().to_string());
  REQUIRE(key.ok());
  auto got = pair.client.read_and_wait(*key, 0, room(*pair.client_context, 100'000), soon());
  REQUIRE(got.ok());
  CHECK(holds(got->buffer.bytes(), 3));
  REQUIRE(pair.client.write_and_wait(*key, 10, tensor(*pair.client_context, 50, 5), soon()).ok());
  CHECK(holds(device.bytes().subspan(10, 50), 5));
  CHECK(pair.server.revoke(*key).ok());
  CHECK(device.to_host_bytes() + device.from_host_bytes() == 0);
}

TEST_CASE("what is refused or cancelled gives device memory back", "[contract][device]") {
  NothingLeftBehind audit;
  for (bool dma_buf : {false, true}) {
    INFO("with a dma-buf: " << dma_buf);
    Pair pair;
    Box& box = pair.box();
    PretendDevice device(70'000);
    auto posted = pair.server.receive({.tag = 1}, device.wrap(dma_buf), box.options(7));
    REQUIRE(posted.ok());
    REQUIRE(pair.server.cancel(*posted).ok());
    REQUIRE(pair.until([&] { return box.all.size() == 1; }));
    CHECK(box.all[0].status.code() == Code::kCancelled);
    CHECK(box.all[0].user_data == 7);
    REQUIRE(box.all[0].buffers.size() == 1);
    Buffer back = std::move(box.all[0].buffers[0]);
    CHECK(back.data() == device.address());
    // Too small for what comes.
    REQUIRE(pair.server.receive({.tag = 2}, std::move(back), box.options(7)).ok());
    REQUIRE(pair.client.send(2, tensor(*pair.client_context, 70'001, 5)).ok());
    REQUIRE(pair.until([&] { return box.all.size() == 2; }));
    CHECK(box.all[1].status.code() == Code::kInvalidArgument);
    back = std::move(box.all[1].buffers[0]);
    CHECK(back.data() == device.address());
    // The connection ends.
    REQUIRE(pair.server.receive({.tag = 3}, std::move(back), box.options(7)).ok());
    pair.client.abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "enough"));
    REQUIRE(pair.until([&] { return box.all.size() == 3; }));
    CHECK_FALSE(box.all[2].status.ok());
    REQUIRE(box.all[2].buffers.size() == 1);
    back = std::move(box.all[2].buffers[0]);
    CHECK(back.data() == device.address());
    // After it.
    auto late = pair.server.receive({.tag = 4}, std::move(back), box.options(7));
    CHECK(late.code() == Code::kWrongState);
    CHECK(back.data() == device.address());
  }
}

// Without an audit: over shared memory a loan that the peer never gave back stays
// (closing_test.cc).
TEST_CASE("a context that goes lets go of device memory", "[contract][device]") {
  for (bool dma_buf : {false, true}) {
    PretendDevice from(3 << 20), to(3 << 20);
    {
      Pair pair;
      Box& box = pair.box();
      REQUIRE(pair.server.receive({.tag = 1}, to.wrap(dma_buf), box.options(7)).ok());
      REQUIRE(pair.client.send(2, from.wrap(dma_buf).freeze(), box.options(8)).ok());
      pair.drop_contexts();
      box.all.clear();
    }
    CHECK(from.ended() == 1);
    CHECK(to.ended() == 1);
  }
}

TEST_CASE("a device that does not copy ends the operation with what it says",
          "[contract][device]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  PretendDevice from(100), to(100);
  REQUIRE(pair.server.receive({.tag = 1}, to.wrap(false), box.options(7)).ok());
  to.break_engine();
  REQUIRE(pair.client.send(1, tensor(*pair.client_context, 100, 5)).ok());
  REQUIRE(pair.until([&] { return box.all.size() == 1; }));
  CHECK(box.all[0].status.code() == Code::kInternal);
  CHECK(box.all[0].buffers[0].data() == to.address());
  from.break_engine();
  auto sent = pair.client.send(1, from.wrap(false).freeze());
  CHECK(sent.code() == Code::kInternal);
  CHECK(std::string(sent.status().detail()).find("the engine is broken") != std::string::npos);
  box.all.clear();
}

TEST_CASE("a message of no bytes leaves device memory and arrives there", "[contract][device]") {
  NothingLeftBehind audit;
  for (bool dma_buf : {false, true}) {
    for (Level level : {Level::kSourceReusable, Level::kPlaced}) {
      INFO("with a dma-buf: " << dma_buf);
      Pair pair;
      Box& box = pair.box();
      PretendDevice from(100), to(100);
      auto nothing = from.wrap(dma_buf).freeze().slice_bytes(50, 0);
      REQUIRE(nothing.ok());
      REQUIRE(pair.server.receive({.tag = 1}, to.wrap(dma_buf), box.options(7)).ok());
      REQUIRE(pair.client.send(1, *nothing, box.options(8, soon(), level)).ok());
      REQUIRE(pair.until([&] { return box.all.size() == 2; }));
      for (Completion& completion : box.all) {
        INFO(completion.status.to_string());
        CHECK(completion.status.ok());
        CHECK(completion.receipt.bytes == 0);
      }
      CHECK(pair.client.state() == EndpointState::kConnected);
      box.all.clear();
    }
  }
}

TEST_CASE("what came before the close is still received into device memory", "[contract][device]") {
  NothingLeftBehind audit;
  for (bool dma_buf : {false, true}) {
    INFO("with a dma-buf: " << dma_buf);
    Pair pair;
    Box& box = pair.box();
    PretendDevice to(100);
    REQUIRE(pair.client.send(1, tensor(*pair.client_context, 100, 5)).ok());
    pair.settle();
    pair.client.start_close();
    REQUIRE(pair.until([&] { return pair.server.state() == EndpointState::kClosed; }));
    auto late = pair.server.receive({.tag = 1}, to.wrap(dma_buf), box.options(7));
    INFO(late.status().to_string());
    REQUIRE(late.ok());
    REQUIRE(pair.until([&] { return box.all.size() == 1; }));
    INFO(box.all[0].status.to_string());
    CHECK(box.all[0].status.ok());
    CHECK(holds(to.bytes(), 5));
    box.all.clear();
  }
}

// As above, without an audit.
TEST_CASE("a context that goes lets go of device memory though the endpoints stay",
          "[contract][device]") {
  for (bool dma_buf : {false, true}) {
    INFO("with a dma-buf: " << dma_buf);
    PretendDevice from(3 << 20), to(3 << 20);
    Pair pair;
    Box& box = pair.box();
    REQUIRE(pair.server.receive({.tag = 1}, to.wrap(dma_buf), box.options(7)).ok());
    REQUIRE(pair.client.send(2, from.wrap(dma_buf).freeze(), box.options(8)).ok());
    pair.drop_contexts();
    box.all.clear();
    CHECK(from.ended() == 1);
    CHECK(to.ended() == 1);
  }
}

// Ends something in the middle of its completion.
class Ending final : public CompletionSink {
 public:
  explicit Ending(std::function<void()> end) : end_(std::move(end)) {}
  void on_completion(Completion&& completion) noexcept override {
    ++told;
    CHECK(completion.buffers.size() == (completion.kind == OperationKind::kReceive ? 1 : 0));
    if (auto end = std::exchange(end_, nullptr)) end();
  }
  int told = 0;

 private:
  std::function<void()> end_;
};

TEST_CASE("who hears of device memory may end the endpoint", "[contract][device]") {
  for (bool dma_buf : {false, true}) {
    for (size_t size : {size_t{64}, size_t{100'000}}) {
      for (int what : {0, 1, 2}) {
        INFO("with a dma-buf: " << dma_buf << ", " << size << " bytes, ends " << what);
        PretendDevice one(size), two(size), from(size);
        {
          Pair pair;
          Ending ending([&] {
            if (what == 0) pair.server = Endpoint();
            if (what == 1)
              pair.server.abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "enough"));
            if (what == 2) pair.server.start_close();
          });
          PostOptions options{.sink = &ending, .deadline = soon()};
          REQUIRE(pair.server.receive({.tag = 1}, one.wrap(dma_buf), options).ok());
          REQUIRE(pair.server.receive({.tag = 2}, two.wrap(dma_buf), options).ok());
          REQUIRE(pair.server.send(9, from.wrap(dma_buf).freeze(), options).ok());
          fill(from.bytes(), 4);
          REQUIRE(pair.client.send(1, from.wrap(false).freeze()).ok());
          pair.until([&] { return ending.told > 0; });
          pair.until([&] { return ending.told == 3; }, in(std::chrono::milliseconds(300)));
          CHECK(ending.told > 0);
          pair.drop_contexts();
        }
        CHECK(one.ended() == 1);
        CHECK(two.ended() == 1);
        CHECK(from.ended() == 2);
      }
    }
  }
}

TEST_CASE("parts of device memory, with gaps and from offsets on", "[contract][device]") {
  NothingLeftBehind audit;
  for (bool dma_buf : {false, true}) {
    INFO("with a dma-buf: " << dma_buf);
    Pair pair;
    Box& box = pair.box();
    PretendDevice from(200'000), to(200'000), small(300);
    fill(from.bytes(), 5);
    std::fill(to.bytes().begin(), to.bytes().end(), std::byte{0xEE});
    auto part = from.wrap(dma_buf).freeze().slice_bytes(777, 100'001);
    REQUIRE(part.ok());
    Buffer into = to.wrap(dma_buf);
    const int64_t shape[] = {150'000};
    const int64_t strides[] = {1};
    auto layout = TensorDescriptor::strided(shape, strides, uint8, 333);
    REQUIRE(layout.ok());
    REQUIRE(into.reshape(*layout).ok());
    std::vector<Buffer> places;
    places.push_back(room(*pair.server_context, 100));
    places.push_back(small.wrap(dma_buf));
    places.push_back(std::move(into));
    REQUIRE(pair.server.receive({.tag = 1}, std::span(places), box.options(7)).ok());
    REQUIRE(pair.client.send(1, *part, box.options(8)).ok());
    REQUIRE(pair.until([&] { return box.all.size() == 2; }));
    Completion& got = box.all[0].user_data == 7 ? box.all[0] : box.all[1];
    INFO(got.status.to_string());
    REQUIRE(got.status.ok());
    CHECK(got.receipt.bytes == 100'001);
    REQUIRE(got.buffers.size() == 3);
    auto expected = from.bytes().subspan(777, 100'001);
    CHECK(
        std::equal(got.buffers[0].bytes().begin(), got.buffers[0].bytes().end(), expected.begin()));
    CHECK(std::equal(small.bytes().begin(), small.bytes().end(), expected.begin() + 100));
    CHECK(std::equal(expected.begin() + 400, expected.end(), to.bytes().begin() + 333));
    CHECK(to.bytes()[332] == std::byte{0xEE});
    CHECK(to.bytes()[333 + 100'001 - 400] == std::byte{0xEE});
    CHECK(got.buffers[2].descriptor().same_layout(*layout));
    CHECK(got.buffers[2].data() == to.address() + 333);
    box.all.clear();
  }
}

}  // namespace
}  // namespace sluice::test
