// Which of several operations sends next over a stream of bytes, and bytes that arrive in any order
// where the link has several streams.
#include <sluice/proto/stream_transfer.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/proto/incoming.h>
#include <sluice/proto/peer_view.h>
#include <sluice/runtime/mailbox.h>

#include "tests/proto/parts.h"

namespace sluice::proto {
namespace {

constexpr size_t kChunk = 64;

// Takes DATA, and records whose it was.
class RecordingStream final : public StreamLink {
 public:
  RecordingStream() {
    traits_.data_bytes = kChunk;
    traits_.bulk_out.kernel = 1;
  }
  void set_client(LinkClient*, StreamClient* client) override { transfer = client; }
  const LinkTraits& traits() const override { return traits_; }
  bool send(ConstBytes, std::span<const ConstBytes>) override { return true; }
  bool push(ConstBytes header, std::span<const ConstBytes>, uint64_t) override {
    wire::Data data;
    REQUIRE(wire::decode(header, data).ok());
    pushed += static_cast<char>(data.id);
    if (pushed.size() == 3 && after_three) after_three();
    return true;
  }
  bool lend(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override {
    ++lent;
    last_lent = cookie;
    return push(header, payload, cookie);
  }
  uint64_t uncopied_out(uint64_t bytes) override { return std::min(uncopied, bytes); }
  void settle(uint64_t) override {}
  bool may_reorder() const override { return reorders; }
  void flush() override {}
  void quarantine(StorageRef) override {}
  void close() override {}
  std::string local_name() const override { return "here"; }
  std::string peer_name() const override { return "there"; }

  std::string pushed;  // the letters of their wants
  std::function<void()> after_three;
  StreamClient* transfer = nullptr;
  bool reorders = false;
  uint64_t lent = 0, last_lent = 0;  // pushes, the operation of the last
  uint64_t uncopied = 0;             // of what pushed() tells

 private:
  LinkTraits traits_;
};

// The part of a session that moves bulk.
struct Mover {
  Mover() { operations.set_keeper(transfer); }
  ~Mover() {
    operations.for_each([&](Operation& op) {
      unlink(&op);
      operations.release(&op);
    });
    views->abandon();
  }
  // The peer pulls a message of so many chunks.
  void pull(char letter, size_t chunks) {
    Operation* op = operations.take(OperationKind::kSend, {}).value();
    Buffer bytes = arena->allocate(chunks * kChunk).value();
    op->total = chunks * kChunk;
    op->tensors.emplace_back(std::move(bytes).freeze());
    op->state = OperationState::kOffered;
    const wire::Want want{.id = static_cast<uint64_t>(letter),
                          .about = wire::PullWant{.offer = op->id, .length = op->total}};
    REQUIRE(transfer.on_pull(want).ok());
  }

  // A receive whose bytes arrive from now on. It is over when no operation has its id.
  OperationId receive(uint64_t bytes) {
    Operation* op = operations.take(OperationKind::kReceive, {}).value();
    op->completion.buffers.emplace_back(arena->allocate(bytes).value());
    op->total = bytes;
    op->state = OperationState::kPlacing;
    return op->id;
  }
  Status arrive(OperationId id, uint64_t offset, uint64_t length) {
    return link.transfer->placed(id, offset, length, Instant());
  }
  bool under_way(OperationId id) {
    Operation* op = operations.find(id);
    return op != nullptr && op->state == OperationState::kPlacing;
  }

  std::shared_ptr<Arena> arena = Arena::create({}).value();
  test::Parts parts{{}, {}, arena};
  RecordingStream link;
  test::NoMessages messages;
  Connection connection{.link = link,
                        .host = parts,
                        .session = parts.session,
                        .end = parts,
                        .traits = link.traits(),
                        .arena = arena,
                        .account = parts.connection.account,
                        .options = {}};
  ControlQueue control{connection};
  Operations operations{connection, 1};
  ViewPool* views = ViewPool::create(&control, std::make_shared<Mailbox>(-1));
  StreamTransfer transfer{link, messages, {connection, operations, control, incoming, *views}};
  Incoming incoming{connection, operations, control, transfer};
};

}  // namespace

TEST_CASE("the receipt counts the kernel's copies of what the link says that it copied",
          "[proto][lending]") {
  Mover sender;
  sender.pull('a', 3);
  sender.transfer.progress();
  CHECK(sender.link.lent == 3);
  const OperationId id = sender.link.last_lent;
  auto counted = [&] { return sender.connection.counters.kernel_copied_bytes; };
  auto in_receipt = [&] {
    return sender.operations.find(id)->completion.receipt.kernel_copied_bytes;
  };
  CHECK(counted() == 3 * kChunk);
  sender.link.uncopied = kChunk;  // of two chunks one
  sender.link.transfer->pushed(id, 2 * kChunk, Instant());
  CHECK(counted() == 2 * kChunk);
  CHECK(in_receipt() == 2 * kChunk);
  sender.link.uncopied = 0;
  sender.link.transfer->pushed(id, kChunk, Instant());
  CHECK(counted() == 2 * kChunk);
}

TEST_CASE("what a grant opens is not lent, since it may be revoked", "[proto][lending]") {
  Mover sender;
  sender.pull('a', 2);
  sender.operations.for_each([](Operation& op) { op.grant = 7; });
  sender.transfer.progress();
  CHECK(sender.link.pushed == "aa");
  CHECK(sender.link.lent == 0);
}

TEST_CASE("memory outlives the link as long as it has bytes of it under way", "[proto][lending]") {
  Mover sender;
  sender.pull('a', 2);
  sender.transfer.progress();
  Operation* op = sender.operations.find(sender.link.last_lent);
  CHECK(sender.transfer.outlives_link(*op));
  sender.link.transfer->pushed(op->id, 2 * kChunk, Instant());
  op = sender.operations.find(sender.link.last_lent);
  CHECK((op == nullptr || !sender.transfer.outlives_link(*op)));
}

TEST_CASE("messages of one length that are pulled at once leave one after the other", "[proto]") {
  Mover sender;
  sender.pull('a', 6);
  sender.pull('b', 6);
  sender.pull('c', 6);
  sender.transfer.progress();
  CHECK(sender.link.pushed == "aaaaaabbbbbbcccccc");
}

TEST_CASE("short messages pass a long one, which keeps a quarter of the line", "[proto]") {
  Mover sender;
  sender.pull('L', 100);
  sender.link.after_three = [&] {
    sender.pull('a', 2);
    sender.pull('b', 1);
    sender.pull('c', 9);
  };
  sender.transfer.progress();
  CHECK(sender.link.pushed.substr(0, 20) == "LLLbLaacLcccLcccLccL");
}

TEST_CASE("of very many messages the oldest are not held up by the search", "[proto]") {
  Mover sender;
  for (int i = 0; i < 40; ++i) sender.pull('a', 2);
  sender.pull('z', 1);
  sender.transfer.progress();
  REQUIRE(sender.link.pushed.size() == 81);
  CHECK(sender.link.pushed.find('z') > 40);
}

TEST_CASE("bytes of several streams arrive in any order, and all of them are waited for",
          "[proto][streams]") {
  Mover receiver;
  receiver.link.reorders = true;
  for (int round = 0; round < 3; ++round) {  // the slot is used again
    const OperationId id = receiver.receive(5 * kChunk);
    for (uint64_t chunk : {0, 3, 1, 4}) {
      REQUIRE(receiver.arrive(id, chunk * kChunk, kChunk).ok());
      CHECK(receiver.under_way(id));
    }
    REQUIRE(receiver.arrive(id, 2 * kChunk, kChunk - 1).ok());
    CHECK(receiver.under_way(id));
    REQUIRE(receiver.arrive(id, 3 * kChunk - 1, 1).ok());
    CHECK_FALSE(receiver.under_way(id));
  }
}

TEST_CASE("bytes that come twice, or out of order by one stream, end the connection",
          "[proto][streams]") {
  Mover receiver;
  const OperationId id = receiver.receive(5 * kChunk);
  CHECK(receiver.arrive(id, kChunk, kChunk) == Code::kCorrupt);
  receiver.link.reorders = true;
  REQUIRE(receiver.arrive(id, kChunk, kChunk).ok());
  CHECK(receiver.arrive(id, 2 * kChunk - 1, 2) == Code::kCorrupt);
  CHECK(receiver.arrive(id, 4 * kChunk, kChunk + 1) == Code::kCorrupt);
  // In the place where the next would be, had they come in order.
  REQUIRE(receiver.arrive(id, 0, kChunk).ok());
  CHECK(receiver.arrive(id, kChunk, 1) == Code::kCorrupt);
  CHECK(receiver.under_way(id));
}

TEST_CASE("a peer that leaves thousands of gaps, in one operation or in many, is not taken along",
          "[proto][streams]") {
  Mover receiver;
  receiver.link.reorders = true;
  constexpr uint64_t kMostRuns = 4096;
  // What an operation has left is forgotten with it.
  for (int round = 0; round < 3; ++round) {
    const OperationId id = receiver.receive(2 * kMostRuns);
    for (uint64_t at = 1; at < kMostRuns; at += 2) REQUIRE(receiver.arrive(id, at, 1).ok());
    receiver.operations.complete(receiver.operations.find(id), Status());
  }
  const OperationId first = receiver.receive(4 * kMostRuns), second = receiver.receive(100);
  for (uint64_t i = 0; i + 1 < kMostRuns; ++i) REQUIRE(receiver.arrive(first, 2 * i + 1, 1).ok());
  REQUIRE(receiver.arrive(second, 10, 1).ok());
  REQUIRE(receiver.arrive(second, 11, 1).ok());  // no gap more
  CHECK(receiver.arrive(second, 20, 1) == Code::kCorrupt);
}

}  // namespace sluice::proto
