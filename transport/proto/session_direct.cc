// Paths whose devices move the bytes: windows are opened for the peer's device, ours reads
// and writes the peer's, and no memory goes back to its owner while either may reach it.
#include <algorithm>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/proto/session.h>

#include "transport/proto/pieces.h"

namespace sluice::proto {
namespace {

constexpr const char* kOrigin = "proto/session";
// How long a peer may take to say that it has let go of the memory of an operation that was
// ended early, and after that how long our device may: a deadline is late by at most the
// sum. Then the connection ends, which fences everything.
constexpr Duration kFenceTime = std::chrono::seconds(1);
// Bytes of one operation that a device works on at once: enough for any link (100 us at
// 80 GB/s), and little enough that a slow device gives it back within the fence time.
constexpr uint64_t kMostInFlight = 8u << 20;

Counter windows_refused("session.windows_refused");
Counter late_arrivals("session.late_arrivals");
Counter fences_overdue("session.fences_overdue");
Counter grants_expired("session.grants_expired");

Status invalid(const std::string& why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, why);
}

}  // namespace

// Opens the destination of a fetch, before it is taken from its owner.
Status Session::open_destination(Operation* op, Buffer& destination, wire::Want& message) {
  uint64_t size = destination.size_bytes();
  for (uint64_t done = 0; done < size;) {
    wire::Segment& window = message.segments[message.segment_count];
    bool whole =
        message.segment_count + 1 == wire::kMaxSegments;  // the last that the message can name
    Result<WindowId> opened = link_->open_window(destination.data() + done, size - done,
                                                 Right::kWrite, op->id, whole, window);
    if (!opened.ok()) {
      windows_refused.add();
      close_windows(op);
      return opened.status();
    }
    op->opened.emplace_back(*opened);
    ++op->windows_open;
    ++message.segment_count;
    done += window.length;
  }
  op->total = size;
  op->completion.receipt.bytes = size;
  return Status();
}

// Opens what an offer names. They stay open while the offer waits for room.
Session::Started Session::open_sources(Operation* op, wire::Offer& offer) {
  bool open = !op->opened.empty();
  if (!open) op->windows.clear();
  for (size_t i = 0; i < op->tensors.size() && !open; ++i) {
    Tensor& tensor = op->tensors[i];
    for (uint64_t done = 0; done < tensor.size_bytes();) {
      wire::Segment window;
      auto* data = const_cast<std::byte*>(tensor.data()) + done;
      // Tensors that lie across extents take more than one, as long as each of the others
      // still gets its own.
      bool whole = op->windows.size() + (op->tensors.size() - i) >= wire::kMaxSegments;
      Result<WindowId> opened =
          link_->open_window(data, tensor.size_bytes() - done, Right::kRead, op->id, whole, window);
      if (!opened.ok()) {
        windows_refused.add();
        close_windows(op);
        op->windows.clear();
        if (opened.code() == Code::kTryAgain) {
          windows_short_ = true;
          return Started::kBlocked;
        }
        complete_later(op, opened.status());
        return Started::kFailed;
      }
      op->opened.emplace_back(*opened);
      ++op->windows_open;
      op->windows.emplace_back(window);
      done += window.length;
    }
  }
  offer.segment_count = static_cast<uint32_t>(op->windows.size());
  std::copy(op->windows.begin(), op->windows.end(), offer.segments.begin());
  return Started::kSent;
}

void Session::close_windows(Operation* op) {
  for (WindowId window : op->opened) link_->close_window(window);
  op->opened.clear();
}

void Session::keep_want_windows(const wire::Want& want) {
  WantWindows& kept = want_windows_[want.id];
  kept.layout = want.layout;
  kept.windows.clear();
  for (uint32_t i = 0; i < want.segment_count; ++i) kept.windows.emplace_back(want.segments[i]);
}

void Session::drop_want_windows(uint64_t token) { want_windows_.erase(token); }

// True if the asker opened its destination and the tensor is what it wants: the bytes can
// be written there. Otherwise they are offered, and the asker says what is wrong.
bool Session::take_want_windows(uint64_t token, Operation* op) {
  auto found = want_windows_.find(token);
  if (found == want_windows_.end()) return false;
  WantWindows& wanted = found->second;
  const TensorDescriptor& layout = op->tensors[0].descriptor();
  uint64_t length = 0;
  bool sane = true;
  for (const wire::Segment& window : wanted.windows)
    sane = sane && !__builtin_add_overflow(length, window.length, &length);
  bool fits =
      sane && length == op->total && layout.is_compact() && layout.same_layout(wanted.layout);
  if (fits) {
    op->windows = std::move(wanted.windows);
    op->notify = true;
  }
  want_windows_.erase(found);
  return fits;
}

// From now on the operation's bytes are moved, from or to its windows.
void Session::start_moving(Operation* op, OperationState state) {
  unlink(op);
  op->state = state;
  op->moved = 0;
  op->window_moved.clear();
  op->next_window = 0;
  for (size_t i = 0; i < op->windows.size(); ++i) op->window_moved.emplace_back(uint64_t{0});
  (state == OperationState::kPulling ? pulling_ : pushing_).push_back(op);
  fault_point(state == OperationState::kPulling ? "session.pull" : "session.supply");
  host_->activate(*this);
}

// What would end the connection if the peer's device had to refuse it.
Status Session::check_device_key(const RemoteKey& key, Right right) const {
  if (key.device_key == 0 && key.address == 0)
    return invalid("the key was not made by this path: it names no device memory");
  if (uint64_t end; __builtin_add_overflow(key.address, key.length, &end))
    return invalid("the key reaches beyond 2^64");
  if (!has_right(key.rights, right)) {
    return Status(Code::kAccessDenied, Scope::kOperation, kOrigin, "the key grants no such access");
  }
  return Status();
}

Result<OperationId> Session::start_one_sided(Operation* op, const RemoteKey& key, uint64_t offset,
                                             OperationState state) {
  OperationId id = op->id;
  if (op->total == 0) {
    complete_later(op, Status());
    return id;
  }
  op->windows.emplace_back(
      wire::Segment{.extent = key.device_key, .offset = key.address + offset, .length = op->total});
  start_moving(op, state);
  return id;
}

Result<OperationId> Session::post_atomic(const RemoteKey& key, uint64_t offset,
                                         const Atomic& request, Buffer& result,
                                         const PostOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_connected());
  if (!traits_.properties.capabilities.has(Capability::kAtomics)) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "path " + std::string(to_string(traits_.properties.path)) +
                      " has no atomics; RDMA devices that say so have");
  }
  SLUICE_RETURN_IF_ERROR(check_device_key(key, Right::kAtomic));
  if (!range_fits(offset, 8, key.length)) {
    return Status(Code::kAccessDenied, Scope::kOperation, kOrigin,
                  "an atomic at " + std::to_string(offset) + " is outside the granted " +
                      std::to_string(key.length) + " bytes");
  }
  if ((key.address + offset) % 8 != 0)
    return invalid("an atomic needs an address that is a multiple of 8");
  if (result.size_bytes() < 8) return invalid("the result of an atomic needs 8 bytes");
  SLUICE_TRY(Operation * op, take_operation(OperationKind::kAtomic, options));
  op->total = 8;
  op->completion.receipt.bytes = 8;
  op->atomic = {.compare = request.kind == Atomic::Kind::kCompareSwap,
                .operand = request.operand,
                .expected = request.expected};
  op->completion.buffers.emplace_back(std::move(result));
  return start_one_sided(op, key, offset, OperationState::kPulling);
}

// A chunk of each operation in turn, until the link is full.
size_t Session::move_some(OperationList& list) {
  size_t moved = 0;
  while (!list.empty() && !blocked_ && !link_dead_) {
    Operation* op = list.first;
    Result<bool> posted = post_chunk(op);
    if (posted.ok() && !*posted) {
      blocked_ = true;
      break;
    }
    ++moved;
    if (!posted.ok()) {
      give_up_moving(op, posted.status());
      continue;
    }
    list.remove(op);
    // Out of the list until moved() makes room.
    if (op->moved < op->total && op->in_flight < kMostInFlight) list.push_back(op);
  }
  return moved;
}

// The window of the next chunk, and how many bytes of the operation lie before it.
// Requires: bytes that are not moved yet.
Session::ChunkPlace Session::place_of_chunk(const Operation& op) const {
  ChunkPlace place{.window = traits_.spread ? op.next_window % op.windows.size() : 0};
  while (op.window_moved[place.window] >= op.windows[place.window].length)
    place.window = (place.window + 1) % op.windows.size();
  for (size_t i = 0; i < place.window; ++i) place.before += op.windows[i].length;
  return place;
}

Result<bool> Session::post_chunk(Operation* op) {
  const auto [i, before] = place_of_chunk(*op);
  const uint64_t skip = op->window_moved[i], at = before + skip;
  wire::Segment peer{
      .extent = op->windows[i].extent, .offset = op->windows[i].offset + skip, .length = 0};
  uint64_t want =
      std::min({op->total - op->moved, op->windows[i].length - skip, traits_.chunk_bytes});
  Result<bool> posted = false;
  if (op->kind == OperationKind::kAtomic) {
    peer.length = 8;
    posted = link_->atomic(peer, op->atomic, op->completion.buffers[0].data(), op->id);
  } else if (op->state == OperationState::kPulling) {
    std::array<MutableBytes, kMaxPlaces> pieces;
    size_t count = 0;
    peer.length = take_pieces(op->completion.buffers, at, want, pieces, count);
    posted = link_->read(peer, std::span(pieces.data(), count), op->id);
  } else {
    std::array<ConstBytes, kMaxPlaces> pieces;
    size_t count = 0;
    peer.length = take_pieces(op->tensors, at, want, pieces, count);
    bool last = op->notify && op->moved + peer.length == op->total;
    uint32_t notice = OperationTable::notice_of(op->peer_id);
    posted = link_->write(std::span(pieces.data(), count), peer, op->id, last ? &notice : nullptr);
  }
  if (!posted.ok() || !*posted) return posted;
  fault_point("session.posted");
  op->window_moved[i] += peer.length;
  op->next_window = i + 1;
  op->moved += peer.length;
  op->in_flight += peer.length;
  return true;
}

// Nothing of it is under way any more, or can be called back, or the fence waits for it.
void Session::give_up_moving(Operation* op, const Status& why) {
  if (op->in_flight > 0 && link_->cancel_moves(op->id)) op->in_flight = 0;
  bool asked = op->kind == OperationKind::kSupply ||
               (op->state == OperationState::kPulling && op->peer_id != 0);
  if (asked) send_done(op->peer_id, why.code(), 0);
  if (!link_dead_) conclude(op, why);  // else that ended everything
}

void Session::count_copies(Operation* op, uint64_t bytes, const CopyCost& cost) {
  op->completion.receipt.copied_bytes += bytes * cost.user;
  op->completion.receipt.kernel_copied_bytes += bytes * cost.kernel;
  counters_.copied_bytes += bytes * cost.user;
  counters_.kernel_copied_bytes += bytes * cost.kernel;
}

// The same for bytes that went by read() or write().
void Session::count_moved(Operation* op, uint64_t bytes, const CopyCost& cost) {
  count_copies(op, bytes, cost);
  op->completion.receipt.path = link_->bulk_path();
}

// Where bytes were received in their place, the receipt says so.
void Session::count_received(Operation* op, uint64_t bytes) {
  uint64_t uncopied = traits_.bulk_in.user > 0 ? std::min(link_->uncopied_in(bytes), bytes) : 0;
  count_moved(op, bytes, traits_.bulk_in);
  op->completion.receipt.copied_bytes -= uncopied;
  counters_.copied_bytes -= uncopied;
}

// Of ours: where the kernel sent our own pages, the receipt says so.
void Session::count_sent(Operation* op, uint64_t bytes) {
  uint64_t uncopied = traits_.bulk_out.kernel > 0 ? std::min(link_->uncopied_out(bytes), bytes) : 0;
  count_moved(op, bytes, traits_.bulk_out);
  op->completion.receipt.kernel_copied_bytes -= uncopied;
  counters_.kernel_copied_bytes -= uncopied;
}

void Session::moved(uint64_t cookie, uint64_t length, const Status& status, Instant now) {
  Busy busy(*this);
  last_heard_ = now;
  Operation* op = table_.find(cookie);
  if (op == nullptr || op->in_flight < length) return;
  if (!status.ok() && status.scope() == Scope::kOperation) {
    op->in_flight -= length;
    if (op->state == OperationState::kFencing) return end_fence(op);
    bool one_sided = op->kind == OperationKind::kRead || op->kind == OperationKind::kWrite;
    // The windows of a message or a fetch are the peer's to close: it gave the operation up.
    Status why = one_sided ? status
                           : Status(Code::kCancelled, Scope::kOperation, kOrigin,
                                    "the peer gave it up in the middle");
    return give_up_moving(op, why);
  }
  if (!status.ok()) {
    // The link has stopped: nothing reaches its memory.
    if (op->state == OperationState::kFencing) --fencing_;
    op->in_flight = op->windows_open = 0;
    op->opened.clear();
    return complete(op, status);
  }
  op->in_flight -= length;
  bool incoming = op->kind != OperationKind::kWrite && op->kind != OperationKind::kSupply;
  incoming ? count_received(op, length) : count_sent(op, length);
  (incoming ? counters_.bytes_received : counters_.bytes_sent) += length;
  if (op->state == OperationState::kFencing) return end_fence(op);
  if (op->moved < op->total && op->list == nullptr) {
    (op->state == OperationState::kPulling ? pulling_ : pushing_).push_back(op);
    host_->activate(*this);
  }
  if (op->moved < op->total || op->in_flight > 0) return;
  if (incoming) return finish_incoming(op, Status());
  conclude(op, Status());
}

Status Session::arrived(uint32_t notice, Instant now) {
  Busy busy(*this);
  last_heard_ = now;
  if (link_dead_ || finished_) return Status();
  Operation* op = table_.find_notice(notice);
  bool waiting = op != nullptr && op->kind == OperationKind::kWant && op->windows_open > 0;
  if (!waiting) {
    late_arrivals.add();
    return Status();
  }
  if (op->state == OperationState::kFencing) {
    op->answer_due = false;
    close_windows(op);
    return Status();
  }
  if (op->state != OperationState::kPosted) {
    return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                  "the peer says that it wrote what it had offered");
  }
  fault_point("session.placed");
  op->moved = op->total;
  count_received(op, op->total);
  counters_.bytes_received += op->total;
  conclude(op, Status());
  return Status();
}

void Session::window_closed(uint64_t cookie, Instant) {
  Busy busy(*this);
  if (std::exchange(windows_short_, false)) host_->activate(*this);
  Operation* op = table_.find(cookie);
  if (op == nullptr || op->windows_open == 0) return;
  --op->windows_open;
  if (op->state == OperationState::kFencing) end_fence(op);
}

// Completes an operation as soon as no device can reach its memory.
void Session::conclude(Operation* op, Status status) {
  bool reachable = traits_.direct && (op->windows_open > 0 || op->in_flight > 0);
  if (!reachable) return complete(op, std::move(status));
  close_windows(op);
  fence(op, std::move(status));
}

void Session::fence(Operation* op, Status status) {
  unlink(op);
  op->state = OperationState::kFencing;
  // What ended well keeps its own deadline: the device closes its window in its turn, after
  // what a wire that loses packets makes it repeat.
  Instant limit = after(host_->now(), kFenceTime);
  op->deadline = status.ok() ? std::max(op->deadline, limit) : limit;
  op->completion.status = std::move(status);
  arm_timeout(op->deadline);
  ++fencing_;
}

void Session::end_fence(Operation* op) {
  if (op->windows_open > 0 || op->in_flight > 0) return;
  --fencing_;
  if (op->reply_due) send_done(op->peer_id, Code::kCancelled, 0);
  complete(op, std::move(op->completion.status));
  // It may have been the last thing that the close waited for, and nothing else comes.
  if (ready_to_finish()) host_->activate(*this);
}

// Ends an operation before its time. False: no device has to do with it.
// What is moving and cannot be called back ends when that is over. What the peer may be
// reading or writing ends when the peer says so, if it can be asked.
bool Session::fence_early(Operation* op, const Status& why, bool peer_answers) {
  if (op->state == OperationState::kFencing) return true;  // how it ends is decided
  bool moving = op->state == OperationState::kPulling || op->state == OperationState::kPushing;
  bool told = op->windows_open > 0 && op->state != OperationState::kQueued;
  if (!moving && !told) {
    close_windows(op);  // of an offer that never left
    return false;
  }
  Status end = why;
  bool partly =
      op->state == OperationState::kPushing && op->kind == OperationKind::kWrite && op->moved > 0;
  if (partly && why.code() != Code::kOutcomeUnknown) {
    end = Status(Code::kOutcomeUnknown, why.scope(), kOrigin,
                 std::string(why.detail()) + "; a part of the write may be in place");
  }
  if (moving && op->in_flight > 0 && !link_dead_ && link_->cancel_moves(op->id)) op->in_flight = 0;
  op->reply_due = moving && op->peer_id != 0 && !link_dead_;
  if (!moving && peer_answers) {
    bool offer = op->kind != OperationKind::kWant;
    send_control(wire::Cancel{.id = op->id, .offer = offer});
    if (link_dead_) return true;  // that failed, and ended everything
    op->answer_due = true;
  } else {
    close_windows(op);
  }
  if (op->windows_open > 0 || op->in_flight > 0) {
    fence(op, std::move(end));
    return true;
  }
  if (op->reply_due) send_done(op->peer_id, Code::kCancelled, 0);
  if (op->state != OperationState::kReady) complete_later(op, std::move(end));
  return true;
}

// The peer has let go of the memory of an operation that is being ended.
void Session::answer_fence(Operation* op, const wire::Done& done) {
  if (!op->answer_due) return;
  op->answer_due = false;
  bool outgoing = op->kind == OperationKind::kSend || op->kind == OperationKind::kSupply;
  if (outgoing && done.code == Code::kOk)
    op->completion.status = Status();  // it was faster than our change of mind
  close_windows(op);
}

void Session::fence_overdue(Operation* op, Instant now) {
  fences_overdue.add();
  if (!op->answer_due) {
    const Status& end = op->completion.status;
    std::string ended = end.ok() ? "is over" : "ended early (" + std::string(end.detail()) + ")";
    fail_connection(Status(Code::kTimedOut, Scope::kEndpoint, kOrigin,
                           "the device did not let go of the memory of an operation that " + ended +
                               "; the connection was ended to make it"));
    return;
  }
  op->answer_due = false;
  if (op->kind == OperationKind::kSend) {
    op->completion.status = Status(Code::kOutcomeUnknown, op->completion.status.scope(), kOrigin,
                                   std::string(op->completion.status.detail()) +
                                       "; the peer was offered the data and has not answered");
  }
  op->deadline = after(now, kFenceTime);
  close_windows(op);
}

// The peer gives up a request: it wants to hear when none of our writes to it is under way.
void Session::cancel_supply(uint64_t token) {
  drop_want_windows(token);
  Operation* writing = cancellable_.find(token, [](const Operation& op) {
    return op.kind == OperationKind::kSupply && op.notify && op.state == OperationState::kPushing;
  });
  Status why(Code::kCancelled, Scope::kOperation, kOrigin, "the peer gave up its request");
  if (writing == nullptr || !fence_early(writing, why, false))
    send_done(token, Code::kCancelled, 0);
}

Instant Session::expire_grants(Instant now) {
  Instant next = kNever;
  std::vector<uint64_t> expired;
  grants_.for_each([&](uint64_t number, const Grant& grant) {
    if (grant.deadline > now) {
      next = std::min(next, grant.deadline);
    } else {
      expired.push_back(number);
    }
  });
  for (uint64_t number : expired) {
    grants_expired.add();
    (void)revoke(RemoteKey{.grant = number});
  }
  return next;
}

}  // namespace sluice::proto
