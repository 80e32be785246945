// Layouts by number: what stands for what, and what a peer may say of it.
#include <sluice/proto/layout_numbers.h>

#include <catch2/catch.hpp>

#include <array>
#include <vector>

#include <sluice/proto/incoming.h>
#include <sluice/proto/requests.h>
#include <sluice/proto/send_queue.h>

#include "tests/proto/parts.h"
#include "tests/proto/recording_transfer.h"

namespace sluice::proto {
namespace {

using test::Parts;
using test::RecordingTransfer;

TensorDescriptor layout_of(int64_t rows, int64_t columns) {
  const std::array<int64_t, 2> shape = {rows, columns};
  return TensorDescriptor::compact(shape, float32).value();
}

// The half of a session that asks for tensors.
struct Asker : Parts {
  Asker() : Parts({}, {}, Arena::create({}).value()) { operations.set_keeper(transfer); }
  ~Asker() {
    operations.for_each([&](Operation& op) { operations.release(&op); });
    views->abandon();
  }
  OperationId want() {
    WantOptions options;
    options.key = "w";
    Result<OperationId> posted = requests.post_want(options, {.sink = this, .deadline = kNever});
    REQUIRE(posted.ok());
    return *posted;
  }
  // Of one run, with the number of a layout.
  Status offer(OperationId asked, uint8_t number, uint64_t total,
               const TensorDescriptor* layout = nullptr) {
    wire::Offer offer;
    offer.id = 900;
    offer.flags = wire::Offer::kNumbered;
    offer.about = wire::SupplyOffer{.want = asked};
    offer.total = total;
    offer.layout_number = number;
    offer.has_layout = layout != nullptr;
    if (layout != nullptr) offer.layout = *layout;
    offer.segments[0] = {.extent = 1, .offset = 0, .length = total};
    offer.segment_count = 1;
    BytesPayload none{{}};
    return requests.on_answer(offer, none);
  }
  TensorDescriptor layout_at(OperationId asked) {
    Operation* op = operations.find(asked);
    REQUIRE(op != nullptr);
    return op->completion.tensor.descriptor();
  }

  Credits credits{{}, {}};
  ViewPool* views = ViewPool::create(&control, nullptr);
  RecordingTransfer transfer{{connection, operations, control, incoming, *views}};
  Incoming incoming{connection, operations, control, transfer};
  SendQueue sends{connection, operations, control, credits, transfer};
  Requests requests{connection, operations, control, sends, incoming, transfer};
};

}  // namespace

TEST_CASE("a number stands for the layout that got it last, and for no other", "[layouts]") {
  LayoutNumbers numbers;
  const TensorDescriptor a = layout_of(4, 8), same_bytes = layout_of(8, 4);
  CHECK(numbers.find(1) == nullptr);
  CHECK_FALSE(numbers.has(1, a));
  numbers.keep(1, a);
  CHECK(numbers.has(1, a));
  CHECK_FALSE(numbers.has(1, same_bytes));
  CHECK_FALSE(numbers.has(2, a));
  numbers.keep(1, same_bytes);
  CHECK(numbers.has(1, same_bytes));
  CHECK_FALSE(numbers.has(1, a));
  for (int number : {0, 9, 255}) CHECK(numbers.find(static_cast<uint8_t>(number)) == nullptr);
  // Every layout has a number, also one without dimensions.
  for (int64_t rows = 0; rows < 100; ++rows) {
    const uint8_t number = LayoutNumbers::number_of(layout_of(rows, 3));
    CHECK(number >= 1);
    CHECK(number <= wire::kLayoutNumbers);
  }
  CHECK(LayoutNumbers::number_of(TensorDescriptor::compact({}, float32).value()) >= 1);
}

TEST_CASE("an offer by number has the layout of the offer that gave the number", "[layouts]") {
  Asker asker;
  const TensorDescriptor a = layout_of(4, 8), b = layout_of(2, 2);
  OperationId first = asker.want();
  REQUIRE(asker.offer(first, 3, a.span_bytes(), &a).ok());
  CHECK(asker.layout_at(first) == a);
  OperationId second = asker.want();
  REQUIRE(asker.offer(second, 3, a.span_bytes()).ok());
  CHECK(asker.layout_at(second) == a);
  // Given again, though nobody waits for that offer any more.
  REQUIRE(asker.offer(second, 3, b.span_bytes(), &b).ok());
  OperationId third = asker.want();
  REQUIRE(asker.offer(third, 3, b.span_bytes()).ok());
  CHECK(asker.layout_at(third) == b);
}

TEST_CASE("a number that stands for nothing, or for other bytes, ends the connection",
          "[layouts][hostile]") {
  Asker asker;
  const TensorDescriptor a = layout_of(4, 8);
  OperationId asked = asker.want();
  Status unknown = asker.offer(asked, 3, a.span_bytes());
  CHECK(unknown == Code::kCorrupt);
  CHECK(unknown.detail() == "OFFER of 128 bytes with layout number 3, which stands for none");
  REQUIRE(asker.offer(asked, 3, a.span_bytes(), &a).ok());
  Status other = asker.offer(asker.want(), 3, a.span_bytes() - 4);
  CHECK(other == Code::kCorrupt);
  CHECK(other.detail() == "OFFER of 124 bytes with layout number 3, which is float32[4,8]");
  CHECK(asker.offer(asker.want(), 4, a.span_bytes()) == Code::kCorrupt);
}

}  // namespace sluice::proto
