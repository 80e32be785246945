// What leaves when a link that was full has room again.
#include <sluice/proto/send_queue.h>

#include <memory>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/proto/incoming.h>
#include <sluice/proto/peer_view.h>
#include <sluice/proto/turn_budget.h>
#include <sluice/runtime/mailbox.h>

#include "tests/proto/parts.h"
#include "tests/proto/recording_transfer.h"

namespace sluice::proto {
namespace {

constexpr size_t kWaiting = kTurnMessages + 2000;

struct Queue {
  Queue() { parts.link.room = 0; }
  ~Queue() {
    parts.operations.for_each([&](Operation& op) {
      unlink(&op);
      parts.operations.release(&op);
    });
    views->abandon();
  }
  // An answer to a WANT of the peer.
  void supply(uint64_t want) {
    Operation* op = parts.operations.take(OperationKind::kSupply, {}).value();
    op->peer_id = want;
    op->total = tensor.size_bytes();
    op->tensors.emplace_back(tensor);
    sends.start_or_queue(op);
  }
  void send() { REQUIRE(sends.post_send(1, std::span(&tensor, 1), {.sink = &parts}).ok()); }

  std::shared_ptr<Arena> arena = Arena::create({}).value();
  test::Parts parts{{.operation_limit = 2 * kWaiting}, {}, arena};
  ViewPool* views = ViewPool::create(&parts.control, std::make_shared<Mailbox>(-1));
  test::RecordingTransfer transfer{
      {parts.connection, parts.operations, parts.control, incoming, *views}};
  Incoming incoming{parts.connection, parts.operations, parts.control, transfer};
  Credits credits{wire::Hello{}, wire::Hello{.credit_messages = 10, .credit_bytes = 1 << 20}};
  SendQueue sends{parts.connection, parts.operations, parts.control, credits, transfer};
  Tensor tensor = arena->allocate(64).value().freeze();
};

}  // namespace

TEST_CASE("when a full link has room, a turn starts a part of what waits and the next goes on",
          "[send_queue][hostile]") {
  Queue queue;
  for (uint64_t i = 0; i < kWaiting; ++i) queue.supply(i);
  REQUIRE(queue.parts.link.sent.empty());
  queue.parts.link.room = ~uint64_t{0};
  queue.sends.run();
  CHECK(queue.parts.link.sent.size() <= kTurnMessages);
  CHECK(!queue.parts.link.sent.empty());
  REQUIRE(queue.sends.may_start());
  while (queue.sends.may_start()) queue.sends.run();
  CHECK(!queue.sends.waiting());
  REQUIRE(queue.parts.link.sent.size() == kWaiting);
  for (uint64_t i = 0; i < kWaiting; ++i) {
    wire::Offer offer;
    REQUIRE(wire::decode(ConstBytes(queue.parts.link.sent[i]), offer).ok());
    CHECK(offer.about.supply().want == i);
  }
}

TEST_CASE("sends that wait for credit let answers pass, and then nothing can start",
          "[send_queue]") {
  Queue queue;
  for (size_t i = 0; i < 100; ++i) queue.send();
  for (uint64_t i = 0; i < kWaiting; ++i) queue.supply(i);
  queue.parts.link.room = ~uint64_t{0};
  int turns = 0;
  while (queue.sends.may_start() && ++turns < 1000) queue.sends.run();
  CHECK(queue.parts.link.sent.size() >= kWaiting);
  CHECK(queue.sends.waits_for_credit());
  CHECK(!queue.sends.may_start());
}

}  // namespace sluice::proto
