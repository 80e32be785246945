// Tagged messages: what arrives, in which order, and who holds the memory meanwhile.
#include "tests/contract/pair.h"

namespace sluice::test {
namespace {

const std::vector<size_t> kSizes = {0,    1,     7,     64,      4095,          4096,
                                    4097, 16384, 16385, 100'000, (1 << 20) + 1, (8 << 20) + 3};

Completion transfer(Pair& pair, size_t size, uint64_t seed, Level level) {
  Box& box = pair.box();
  auto receive =
      pair.server.receive({.tag = seed}, room(*pair.server_context, size), box.options());
  REQUIRE(receive.ok());
  auto send = pair.client.send(seed, tensor(*pair.client_context, size, seed),
                               box.options(0, soon(), level));
  REQUIRE(send.ok());
  REQUIRE(pair.until([&] { return box.all.size() == 2; }));
  for (Completion& completion : box.all) {
    INFO(completion.status.to_string());
    CHECK(completion.status.ok());
    CHECK(completion.receipt.bytes == size);
  }
  Completion got = std::move(box.all[0].kind == OperationKind::kReceive ? box.all[0] : box.all[1]);
  REQUIRE(got.buffers.size() == 1);
  CHECK(holds(got.buffers[0].bytes().first(size), seed));
  CHECK(got.tag == seed);
  return got;
}

TEST_CASE("messages of 0 bytes to 8 MiB arrive whole at every level", "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  for (size_t size : kSizes) {
    INFO(size << " bytes");
    for (Level level : {Level::kSourceReusable, Level::kPlaced, Level::kConsumed})
      transfer(pair, size, size + 1, level);
  }
}

TEST_CASE("a message of 64 MiB arrives whole", "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  Completion got = transfer(pair, size_t{64} << 20, 5, Level::kPlaced);
  uint64_t copied = got.receipt.copied_bytes + got.receipt.kernel_copied_bytes;
  if (fake_device_under_test()) CHECK(copied == 0);
  if (copying_device_under_test()) CHECK(got.receipt.copied_bytes == 0);
  if (path_is_slp())
    CHECK(got.receipt.copied_bytes <=
          64u << 20);  // from frames to their place; not those that were received there
  if (!fake_device_under_test()) CHECK(copied >= 64u << 20);
}

TEST_CASE("segments of a message fill the receiver's buffers in order", "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  for (size_t piece : {size_t{100}, size_t{5000}, size_t{300'000}}) {
    std::vector<Tensor> segments;
    for (uint64_t i = 0; i < 16; ++i) segments.push_back(tensor(*pair.client_context, piece, i));
    // Cut elsewhere than the sender did.
    std::vector<Buffer> buffers;
    size_t total = piece * 16, cut = piece * 3 + 1;
    for (size_t left = total; left > 0; left -= std::min(left, cut))
      buffers.push_back(room(*pair.server_context, std::min(left, cut)));
    Box& box = pair.box();
    REQUIRE(pair.server.receive({.tag = 1}, std::span(buffers), box.options()).ok());
    REQUIRE(pair.client.send(1, std::span(segments), box.options()).ok());
    REQUIRE(pair.until([&] { return box.all.size() == 2; }));
    std::vector<std::byte> together;
    for (Completion& completion : box.all) {
      INFO(completion.status.to_string());
      REQUIRE(completion.status.ok());
      for (Buffer& buffer : completion.buffers)
        together.insert(together.end(), buffer.bytes().begin(), buffer.bytes().end());
    }
    REQUIRE(together.size() == total);
    for (uint64_t i = 0; i < 16; ++i)
      CHECK(holds(std::span(together).subspan(i * piece, piece), i));
  }
}

TEST_CASE("a message has 1 to 16 segments; others are refused and stay with the caller",
          "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  std::vector<Tensor> none, many;
  for (uint64_t i = 0; i < 17; ++i) many.push_back(tensor(*pair.client_context, 8, i));
  CHECK(pair.client.send(1, std::span(none), box.options()).code() == Code::kInvalidArgument);
  CHECK(pair.client.send(1, std::span(many), box.options()).code() == Code::kInvalidArgument);
  for (const Tensor& each : many) CHECK(each);
  std::vector<Buffer> buffers(17);
  CHECK(pair.client.receive({.tag = 1}, std::span(buffers).first(0), box.options()).code() ==
        Code::kInvalidArgument);
  CHECK(pair.client.receive({.tag = 1}, std::span(buffers), box.options()).code() ==
        Code::kInvalidArgument);
  CHECK(pair.client.counters().posted == 0);
}

TEST_CASE("messages of one tag arrive in the order they were sent, small and large mixed",
          "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  Box &sent = pair.box(), &got = pair.box();
  const std::vector<size_t> sizes = {8, 40'000, 16, 0, 200'000, 4096, 1, 20'000};
  for (uint64_t i = 0; i < 40; ++i) {
    REQUIRE(
        pair.client
            .send(9, tensor(*pair.client_context, sizes[i % sizes.size()] + i, i), sent.options())
            .ok());
  }
  for (uint64_t i = 0; i < 40; ++i) {
    REQUIRE(
        pair.server.receive({.tag = 9}, room(*pair.server_context, 300'000), got.options(i)).ok());
  }
  REQUIRE(pair.until([&] { return got.all.size() == 40 && sent.all.size() == 40; }));
  for (Completion& completion : got.all) {
    uint64_t i = completion.user_data;
    REQUIRE(completion.status.ok());
    CHECK(completion.receipt.bytes == sizes[i % sizes.size()] + i);
    CHECK(holds(completion.buffers[0].bytes().first(completion.receipt.bytes), i));
  }
}

TEST_CASE("an exact tag takes its own message only, whatever came first", "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  for (Tag tag : {3, 1, 2})
    REQUIRE(pair.client.send(tag, tensor(*pair.client_context, 64, tag), box.options()).ok());
  pair.settle();
  for (Tag tag : {1, 2, 3}) {
    auto got = pair.server.receive_and_wait({.tag = tag}, room(*pair.server_context, 64), soon());
    REQUIRE(got.ok());
    CHECK(got->tag == tag);
    CHECK(holds(got->buffer.bytes(), tag));
  }
}

TEST_CASE("a masked tag takes the first that matches and says which it was",
          "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  REQUIRE(pair.client.send(0x15, tensor(*pair.client_context, 8, 1)).ok());
  REQUIRE(pair.client.send(0x23, tensor(*pair.client_context, 8, 2)).ok());
  REQUIRE(pair.client.send(0x27, tensor(*pair.client_context, 8, 3)).ok());
  pair.settle();
  auto first = pair.server.receive_and_wait({.tag = 0x20, .mask = 0xf0},
                                            room(*pair.server_context, 8), soon());
  REQUIRE(first.ok());
  CHECK(first->tag == 0x23);
  auto any =
      pair.server.receive_and_wait({.tag = 0, .mask = 0}, room(*pair.server_context, 8), soon());
  REQUIRE(any.ok());
  CHECK(any->tag == 0x15);
  // Posted before the message: the same rule.
  auto posted = pair.server.receive({.tag = 0x40, .mask = 0xf0}, room(*pair.server_context, 8),
                                    box.options());
  auto last = pair.server.receive({.tag = 0x27}, room(*pair.server_context, 8), box.options());
  REQUIRE(pair.client.send(0x4f, tensor(*pair.client_context, 8, 4)).ok());
  CHECK(pair.wait(box, *posted).tag == 0x4f);
  CHECK(pair.wait(box, *last).tag == 0x27);
}

TEST_CASE("messages that came before their receive wait for it, of every size",
          "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  for (size_t size : kSizes)
    REQUIRE(pair.client.send(size, tensor(*pair.client_context, size, size), box.options()).ok());
  pair.settle();
  for (auto size = kSizes.rbegin(); size != kSizes.rend(); ++size) {
    auto got =
        pair.server.receive_and_wait({.tag = *size}, room(*pair.server_context, *size), soon());
    REQUIRE(got.ok());
    CHECK(holds(got->buffer.bytes().first(*size), *size));
  }
  REQUIRE(pair.until([&] { return box.all.size() == kSizes.size(); }));
  for (Completion& completion : box.all) CHECK(completion.status.ok());
}

TEST_CASE("a small message that came before its receive is copied once more, and says so",
          "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  uint64_t awaited = transfer(pair, 100, 7, Level::kPlaced).receipt.copied_bytes;
  Box& sent = pair.box();
  Box& box = pair.box();
  uint64_t before = pair.server.counters().messages_received;
  REQUIRE(pair.client.send(1, tensor(*pair.client_context, 100, 8), sent.options()).ok());
  REQUIRE(pair.until([&] { return pair.server.counters().messages_received > before; }));
  pair.settle();
  auto posted = pair.server.receive({.tag = 1}, room(*pair.server_context, 100), box.options());
  REQUIRE(posted.ok());
  Completion& got = pair.wait(box, *posted);
  REQUIRE(got.status.ok());
  CHECK(got.receipt.copied_bytes == awaited + 100);
}

TEST_CASE("a receive that is too short ends without touching its buffer or the message",
          "[contract][messages]") {
  NothingLeftBehind audit;
  for (size_t size : {size_t{100}, size_t{100'000}}) {
    for (bool message_first : {true, false}) {
      INFO(size << " bytes, message first: " << message_first);
      Pair pair;
      Box &sent = pair.box(), &got = pair.box();
      auto send = [&] {
        REQUIRE(pair.client.send(4, tensor(*pair.client_context, size, 4), sent.options()).ok());
      };
      if (message_first) {
        send();
        pair.settle();
      }
      auto small = pair.server.receive({.tag = 4}, filled(*pair.server_context, size - 1, 77),
                                       got.options());
      REQUIRE(small.ok());
      if (!message_first) send();
      Completion& refused = pair.wait(got, *small);
      CHECK(refused.status == Code::kInvalidArgument);
      REQUIRE(refused.buffers.size() == 1);
      CHECK(holds(refused.buffers[0].bytes(), 77));
      auto whole =
          pair.server.receive_and_wait({.tag = 4}, room(*pair.server_context, size), soon());
      REQUIRE(whole.ok());
      CHECK(holds(whole->buffer.bytes(), 4));
      REQUIRE(pair.until([&] { return sent.all.size() == 1; }));
      CHECK(sent.all[0].status.ok());
    }
  }
}

TEST_CASE("what the receiver gave no credit for is queued at the sender and nothing is lost",
          "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  constexpr uint64_t kMessages = 1500;  // the receiver's credit is 256 messages or 1 MiB
  for (size_t size : {size_t{16}, inline_limit(), inline_limit() + 1}) {
    INFO(size << " bytes");
    Box &sent = pair.box(), &got = pair.box();
    for (uint64_t i = 0; i < kMessages; ++i) {
      REQUIRE(pair.client.send(i, tensor(*pair.client_context, size, i), sent.options()).ok());
    }
    pair.settle();
    CHECK(sent.all.size() <= 256);
    for (uint64_t i = 0; i < kMessages; ++i) {
      REQUIRE(
          pair.server.receive({.tag = i}, room(*pair.server_context, size), got.options(i)).ok());
      if (i % 100 == 0) pair.settle();
    }
    REQUIRE(
        pair.until([&] { return sent.all.size() == kMessages && got.all.size() == kMessages; }));
    for (Completion& completion : got.all) {
      REQUIRE(completion.status.ok());
      REQUIRE(holds(completion.buffers[0].bytes(), completion.user_data));
    }
  }
}

TEST_CASE(
    "at the operation limit a post is refused with kTryAgain and the buffer stays with the caller",
    "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  std::vector<OperationId> ids;
  while (true) {
    auto posted = pair.server.receive({.tag = 1}, Buffer(), box.options());
    if (!posted.ok()) {
      CHECK(posted.code() == Code::kTryAgain);
      break;
    }
    ids.push_back(*posted);
    REQUIRE(ids.size() <= 4096);
  }
  CHECK(ids.size() == 4096);
  Buffer mine = filled(*pair.server_context, 64, 6);
  CHECK(pair.server.receive({.tag = 1}, std::move(mine), box.options()).code() == Code::kTryAgain);
  REQUIRE(mine);
  CHECK(holds(mine.bytes(), 6));
  RemoteKey key{.grant = 1, .length = 64, .device_key = 1};
  CHECK(pair.server.read(key, 0, std::move(mine), box.options()).code() == Code::kTryAgain);
  REQUIRE(mine);
  CHECK(holds(mine.bytes(), 6));
  REQUIRE(pair.server.cancel(ids[7]).ok());
  pair.wait(box, ids[7]);
  CHECK(pair.server.receive({.tag = 1}, std::move(mine), box.options()).ok());
  CHECK_FALSE(mine);
}

TEST_CASE("memory of the program's own, not from an arena, is sent and received as well",
          "[contract][messages]") {
  NothingLeftBehind audit;
  int released = 0;
  {
    Pair pair;
    for (size_t size : {size_t{500}, size_t{500'000}}) {
      std::vector<std::byte> source(size), destination(size);
      fill(source, size);
      auto count = [](void* counter) { ++*static_cast<int*>(counter); };
      auto foreign = Tensor::wrap(source.data(), TensorDescriptor::bytes(size), count, &released);
      auto into = Buffer::wrap(destination.data(), size, nullptr, nullptr);
      REQUIRE(foreign.ok());
      REQUIRE(into.ok());
      Box& box = pair.box();
      REQUIRE(pair.server.receive({.tag = 1}, std::move(*into), box.options()).ok());
      REQUIRE(pair.client.send(1, std::move(*foreign), box.options()).ok());
      REQUIRE(pair.until([&] { return box.all.size() == 2; }));
      for (Completion& completion : box.all) CHECK(completion.status.ok());
      CHECK(holds(destination, size));
      box.all.clear();
      pair.settle();
    }
    CHECK(released == 2);
  }
}

TEST_CASE("both directions at once do not hinder each other", "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  constexpr uint64_t kMessages = 30;
  for (uint64_t i = 0; i < kMessages; ++i) {
    size_t size = i % 3 == 0 ? 900'000 : 700;
    REQUIRE(pair.client.send(i, tensor(*pair.client_context, size, i), box.options()).ok());
    REQUIRE(pair.server.send(i, tensor(*pair.server_context, size, i + 100), box.options()).ok());
    REQUIRE(pair.client.receive({.tag = i}, room(*pair.client_context, size), box.options(i + 100))
                .ok());
    REQUIRE(pair.server.receive({.tag = i}, room(*pair.server_context, size), box.options(i)).ok());
  }
  REQUIRE(pair.until([&] { return box.all.size() == kMessages * 4; }));
  for (Completion& completion : box.all) {
    REQUIRE(completion.status.ok());
    if (completion.kind == OperationKind::kReceive)
      CHECK(holds(completion.buffers[0].bytes(), completion.user_data));
  }
  EndpointCounters counters = pair.client.counters();
  CHECK(counters.posted == 2 * kMessages);
  CHECK(counters.completed == 2 * kMessages);
}

}  // namespace
namespace {

// A program that posts the next of its buffers whenever one was too small.
class GrowingReceive final : public CompletionSink {
 public:
  explicit GrowingReceive(Pair& pair) : pair_(pair) {}
  void post(size_t size) {
    REQUIRE(pair_.server
                .receive({.tag = 1}, room(*pair_.server_context, size),
                         {.sink = this, .deadline = soon()})
                .ok());
  }
  void on_completion(Completion&& completion) noexcept override {
    last = std::move(completion);
    ++completed;
    if (last.status == Code::kInvalidArgument) post(completed == 1 ? 20 : 30'000);
  }
  Completion last;
  int completed = 0;

 private:
  Pair& pair_;
};

}  // namespace

TEST_CASE("more large messages are under way in both directions than a path has places for them",
          "[contract][messages]") {
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  constexpr uint64_t kMessages = 150;
  const size_t size = inline_limit() + 4096;
  for (uint64_t i = 0; i < kMessages; ++i) {
    REQUIRE(pair.client.receive({.tag = i}, room(*pair.client_context, size), box.options(i + 1000))
                .ok());
    REQUIRE(pair.server.receive({.tag = i}, room(*pair.server_context, size), box.options(i)).ok());
  }
  for (uint64_t i = 0; i < kMessages; ++i) {
    REQUIRE(pair.client.send(i, tensor(*pair.client_context, size, i), box.options()).ok());
    REQUIRE(pair.server.send(i, tensor(*pair.server_context, size, i + 1000), box.options()).ok());
  }
  REQUIRE(pair.until([&] { return box.all.size() == kMessages * 4; }));
  for (Completion& completion : box.all) {
    REQUIRE(completion.status.ok());
    if (completion.kind == OperationKind::kReceive)
      CHECK(holds(completion.buffers[0].bytes(), completion.user_data));
  }
}

TEST_CASE("a message takes the receive that is posted for it when others were too small",
          "[contract]") {
  Pair pair;
  GrowingReceive receive(pair);
  receive.post(10);
  Box& box = pair.box();
  auto first = pair.client.send(1, tensor(*pair.client_context, 25'000, 1), box.options());
  auto second = pair.client.send(1, tensor(*pair.client_context, 40, 2), box.options());
  REQUIRE(pair.until([&] { return receive.completed == 3; }));
  CHECK(receive.last.status.ok());
  CHECK(receive.last.receipt.bytes == 25'000);
  CHECK(holds(receive.last.buffers[0].bytes().first(25'000), 1));
  receive.last = {};
  receive.post(40);
  REQUIRE(pair.until([&] { return receive.completed == 4; }));
  CHECK(receive.last.receipt.bytes == 40);
  receive.last = {};
  CHECK(pair.wait(box, *first).status.ok());
  CHECK(pair.wait(box, *second).status.ok());
}

}  // namespace sluice::test
