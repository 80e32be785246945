#include <sluice/proto/incoming.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sluice/allocator/device_storage.h>
#include <sluice/base/fault_point.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

// Of an allocation, for bytes that are there already: about 2 ms.
constexpr size_t kMostSteps = 4;

}  // namespace

Status Incoming::read_inline(Operation* op, PayloadReader& payload, uint64_t total) {
  uint64_t left = total;
  Status placed;
  for (Buffer& buffer : op->completion.buffers) {
    uint64_t take = std::min<uint64_t>(left, buffer.size_bytes());
    if (buffer.in_device_memory()) [[unlikely]] {
      if (Status ended = read_to_device(op, payload, buffer, take); !ended.ok()) placed = ended;
    } else if (take > 0) {
      payload.read(buffer.bytes().first(take));
    }
    left -= take;
    if (left == 0) break;
  }
  op->moved = total;
  count_copies(op, connection_.counters, total, connection_.traits.inline_in);
  connection_.counters.bytes_received += total;
  return placed;
}

// One copy more, out of what the control message was in.
Status Incoming::read_to_device(Operation* op, PayloadReader& payload, const Buffer& buffer,
                                uint64_t bytes) {
  if (bytes == 0) return Status();
  std::vector<std::byte> host(bytes);
  payload.read(host);
  op->completion.receipt.copied_bytes += bytes;
  connection_.counters.copied_bytes += bytes;
  return copy_from_host(buffer, host);
}

Status Incoming::fetch(Operation* op, uint64_t offer_id, std::span<const wire::Segment> segments,
                       uint64_t total) {
  unlink(op);
  op->peer_id = offer_id;
  operations_.index_by_peer_id(op);
  op->total = total;
  op->moved = 0;
  return transfer_.fetch(op, segments);
}

Status Incoming::accept(Operation* op, const wire::Offer& offer, PayloadReader& payload) {
  if ((offer.flags & wire::Offer::kInline) == 0) {
    return fetch(op, offer.id, std::span(offer.segments.data(), offer.segment_count), offer.total);
  }
  finish(op, read_inline(op, payload, offer.total));
  return Status();
}

Status Incoming::make_destination(Operation* op, const wire::Offer& offer) {
  const TensorDescriptor& layout = offer.layout;
  const uint64_t bytes = std::max<uint64_t>(layout.span_bytes(), 1);
  // Until all of it has come it is the peer's doing that it is not free.
  Status charged = connection_.account->charge(PeerResource::kIncomingBytes, bytes);
  if (!charged.ok())
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin, std::string(charged.detail()));
  op->incoming = bytes;
  constexpr AllocateOptions kOptions{.for_receive = true};
  std::optional<Result<Buffer>> present = connection_.arena->allocate_present(bytes, kOptions);
  // What came in the message has to lie somewhere now; it is small.
  const bool is_inline = (offer.flags & wire::Offer::kInline) != 0;
  if (!present && (is_inline || connection_.population == nullptr))
    present = connection_.arena->allocate(bytes, kOptions);
  if (present) {
    SLUICE_TRY(Buffer buffer, std::move(*present));
    give(op, std::move(buffer), layout);
    return Status();
  }
  auto memory = connection_.arena->begin_allocate(bytes, kOptions);
  memory->step();  // addresses, or why not
  if (memory->ready()) {
    SLUICE_TRY(Buffer buffer, memory->take());
    give(op, std::move(buffer), layout);
    return Status();
  }
  op->room = std::make_unique<Room>();
  op->room->memory = std::move(memory);
  op->room->turns.emplace(*connection_.population, *op->room->memory,
                          static_cast<PopulationWaiter*>(this));
  op->room->layout = layout;
  return Status();
}

void Incoming::give(Operation* op, Buffer buffer, const TensorDescriptor& layout) {
  // Of the size that was asked for: it has this shape.
  static_cast<void>(buffer.reshape(TensorDescriptor::bytes(layout.span_bytes())));
  op->completion.tensor = Tensor(buffer.storage(), layout);
  op->completion.buffers.emplace_back(std::move(buffer));
}

void Incoming::await_room(Operation* op, const wire::Offer& offer) {
  op->state = OperationState::kPlacing;
  op->moved = 0;
  operations_.index_by_peer_id(op);
  op->room->segment_count = offer.segment_count;
  std::copy_n(offer.segments.begin(), offer.segment_count, op->room->segments.begin());
  waiting_.push_back(op);
}

void Incoming::allocation_ready() noexcept {
  rooms_ready_ = true;
  connection_.activate();
}

bool Incoming::settle(Operation* op) {
  unlink(op);
  const std::unique_ptr<Room> room = std::move(op->room);
  Result<Buffer> buffer = room->memory->take();
  if (!buffer.ok()) {
    control_.send_done(op->peer_id, buffer.code(), 0);
    conclude(op, buffer.status());
    return false;
  }
  give(op, std::move(buffer).value(), room->layout);
  if (room->segment_count > 0) {
    Status begun =
        fetch(op, op->peer_id, std::span(room->segments.data(), room->segment_count), op->total);
    if (!begun.ok()) connection_.fail(begun);
    return begun.ok();
  }
  if (op->moved < op->total) return true;
  finish(op);
  return false;
}

// What one ends may end others.
size_t Incoming::progress() {
  rooms_ready_ = false;
  size_t settled = 0;
  for (Operation* op = waiting_.first; op != nullptr && !connection_.over();) {
    if (!op->room->memory->ready()) {
      op = op->next;
      continue;
    }
    settle(op);
    ++settled;
    op = waiting_.first;
  }
  return settled;
}

Placement Incoming::find_place(Operation* op, uint64_t offset, uint64_t length) {
  Placement placement;
  PendingAllocation& memory = *op->room->memory;
  for (size_t steps = 0; !memory.ready() && memory.present().size() <= offset; ++steps) {
    if (steps == kMostSteps || !connection_.population->step(memory)) {
      placement.wait = true;
      return placement;
    }
  }
  std::span<std::byte> there = memory.present();
  if (memory.ready()) {
    if (!settle(op)) return placement;
    there = op->completion.buffers[0].bytes();
  }
  placement.runs[placement.count++] =
      there.subspan(offset, std::min<uint64_t>(length, there.size() - offset));
  return placement;
}

void Incoming::finish(Operation* op, Status status) {
  fault_point("session.placed");
  if (op->engaged) transfer_.release_peer_memory(op);
  if (op->peer_id != 0) control_.send_done(op->peer_id, status.code(), op->moved);
  if (op->kind == OperationKind::kWant && op->completion.tensor) {
    // A fresh tensor: its memory was only lent to buffers while it was filled.
    op->completion.buffers.clear();
  }
  conclude(op, std::move(status));
}

}  // namespace sluice::proto
