#include <sluice/proto/device_transfer.h>

#include <algorithm>
#include <array>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/proto/incoming.h>

#include "transport/proto/errors.h"
#include "transport/proto/pieces.h"

namespace sluice::proto {
namespace {

// Bytes of one operation that a device works on at once: enough for any link (100 us at
// 80 GB/s), and little enough that a slow device gives it back within the fence time.
constexpr uint64_t kMostInFlight = 8u << 20;

bool is_one_sided(OperationKind kind) {
  return kind == OperationKind::kRead || kind == OperationKind::kWrite ||
         kind == OperationKind::kAtomic;
}

Counter windows_refused("session.windows_refused");
Counter late_arrivals("session.late_arrivals");

}  // namespace

// Windows.

// Opens the destination of a fetch, before it is taken from its owner.
Status DeviceTransfer::open_destination(Operation* op, Buffer& destination, wire::Want& message) {
  DeviceAccess& ours = access(op);
  uint64_t size = destination.size_bytes();
  for (uint64_t done = 0; done < size;) {
    wire::Segment& window = message.segments[message.segment_count];
    bool whole =
        message.segment_count + 1 == wire::kMaxSegments;  // the last that the message can name
    Result<WindowId> opened = link_.open_window(destination.data() + done, size - done,
                                                Right::kWrite, op->id, whole, window);
    if (!opened.ok()) {
      windows_refused.add();
      close_windows(op);
      return opened.status();
    }
    ours.opened_window(*opened);
    ++message.segment_count;
    done += window.length;
  }
  op->total = size;
  op->completion.receipt.bytes = size;
  return Status();
}

// Opens what an offer names. It stays open while the offer waits for room.
Started DeviceTransfer::describe(Operation* op, wire::Offer& offer) {
  DeviceAccess& ours = access(op);
  bool open = !ours.opened.empty();
  if (!open) ours.windows.clear();
  for (size_t i = 0; i < op->tensors.size() && !open; ++i) {
    Tensor& tensor = op->tensors[i];
    for (uint64_t done = 0; done < tensor.size_bytes();) {
      wire::Segment window;
      auto* data = const_cast<std::byte*>(tensor.data()) + done;
      // Tensors that lie across extents take more than one, as long as each of the others
      // still gets its own.
      bool whole = ours.windows.size() + (op->tensors.size() - i) >= wire::kMaxSegments;
      Result<WindowId> opened =
          link_.open_window(data, tensor.size_bytes() - done, Right::kRead, op->id, whole, window);
      if (!opened.ok()) {
        windows_refused.add();
        close_windows(op);
        ours.windows.clear();
        if (opened.code() == Code::kTryAgain) {
          control_.hold_offers();
          return Started::kBlocked;
        }
        operations_.complete_later(op, opened.status());
        return Started::kFailed;
      }
      ours.opened_window(*opened);
      ours.windows.emplace_back(window);
      done += window.length;
    }
  }
  offer.segment_count = static_cast<uint32_t>(ours.windows.size());
  std::copy(ours.windows.begin(), ours.windows.end(), offer.segments.begin());
  return Started::kSent;
}

void DeviceTransfer::close_windows(Operation* op) {
  if (!op->engaged) return;
  DeviceAccess& ours = accesses_.of(*op);
  for (WindowId window : ours.opened) link_.close_window(window);
  ours.opened.clear();
}

void DeviceTransfer::window_closed(uint64_t cookie, Instant) {
  RunningCall call(connection_);
  control_.release_offers();
  Operation* op = operations_.find(cookie);
  if (op == nullptr || windows_open(*op) == 0) return;
  --accesses_.of(*op).windows_open;
  if (op->state == OperationState::kFencing) end_fence(op);
}

bool DeviceTransfer::may_be_reached(const Operation& op) {
  return op.in_flight > 0 || windows_open(op) > 0;
}

// The link has stopped: nothing reaches its memory.
void DeviceTransfer::link_stopped(Operation* op) {
  if (op->state == OperationState::kFencing) {
    --fencing_;
    return;
  }
  op->in_flight = 0;
  if (op->engaged) accesses_.of(*op).windows_open = 0;
}

void DeviceTransfer::forget(Operation* op) {
  accesses_.of(*op).clear();
  op->engaged = false;
}

// Requests for keys.

// Where the asker opened its destination for this tensor, it is written there. Otherwise it is
// offered, and the asker says what is wrong.
bool DeviceTransfer::start_supply(Operation* op, uint64_t token) {
  InlineVector<wire::Segment, 1> windows;
  if (!want_windows_.take(token, op->tensors[0].descriptor(), op->total, windows)) return false;
  DeviceAccess& theirs = access(op);
  theirs.windows = std::move(windows);
  theirs.notify = true;
  start_moving(op, OperationState::kPushing);
  return true;
}

// The peer gives up a request: it wants to hear when none of our writes to it is under way.
void DeviceTransfer::on_want_given_up(uint64_t token) {
  drop_want_windows(token);
  Operation* writing = operations_.find_by_peer_id(token, [](const Operation& op) {
    return op.kind == OperationKind::kSupply && op.state == OperationState::kPushing;
  });
  Status why(Code::kCancelled, Scope::kOperation, kOrigin,
             "the peer gave up its request; let it ask again if it still wants the tensor");
  if (writing == nullptr || !fence_early(writing, why, false))
    control_.send_done(token, Code::kCancelled, 0);
}

// One-sided access.

void DeviceTransfer::start_one_sided(Operation* op, const RemoteKey& key, uint64_t offset,
                                     OperationState state) {
  if (op->total == 0) return operations_.complete_later(op, Status());
  const wire::Segment peer{
      .extent = key.device_key, .offset = key.address + offset, .length = op->total};
  op->state = state;
  if (post_whole(op, peer)) return;
  access(op).windows.emplace_back(peer);
  start_moving(op, state);
}

void DeviceTransfer::start_atomic(Operation* op, const RemoteKey& key, uint64_t offset,
                                  const Atomic& request) {
  access(op).atomic = {.compare = request.kind == Atomic::Kind::kCompareSwap,
                       .operand = request.operand,
                       .expected = request.expected};
  start_one_sided(op, key, offset, OperationState::kPulling);
}

Status DeviceTransfer::check_remote(Right right) const {
  return corrupt(right == Right::kWrite ? "OFFER of a write that devices do on this path"
                                        : "WANT of a read that devices do on this path");
}

Status DeviceTransfer::on_pull(const wire::Want&) {
  return corrupt("WANT for an offer that devices read on this path");
}

Status DeviceTransfer::open_grant(Grant& grant, RemoteKey& key) {
  wire::Segment window;
  SLUICE_TRY(grant.window,
             link_.open_window(grant.data, grant.length, grant.rights, 0, true, window));
  key.address = window.offset;
  key.device_key = window.extent;
  if (grant.deadline != kNever) connection_.arm_timeout(grant.deadline);
  return Status();
}

// Moving.

Status DeviceTransfer::fetch(Operation* op, std::span<const wire::Segment> segments) {
  DeviceAccess& theirs = access(op);
  for (const wire::Segment& window : segments) theirs.windows.emplace_back(window);
  start_moving(op, OperationState::kPulling);
  return Status();
}

// From now on the operation's bytes are moved, from or to its windows.
void DeviceTransfer::start_moving(Operation* op, OperationState state) {
  DeviceAccess& theirs = access(op);
  unlink(op);
  op->state = state;
  op->moved = 0;
  theirs.start();
  (state == OperationState::kPulling ? pulling_ : pushing_).push_back(op);
  fault_point(state == OperationState::kPulling ? "session.pull" : "session.supply");
  connection_.activate();
}

// Posts a one-sided operation now: the next turn may come late. Only if no other waits, it is one
// chunk, and nothing is under way at the device; otherwise it goes with the turn's list. It needs
// no list, no window and no turn, then. False: it was not posted; if it cannot be, the turn says
// why.
bool DeviceTransfer::post_whole(Operation* op, const wire::Segment& peer) {
  if (moving() || op->total > traits_.chunk_bytes || control_.blocked() || connection_.link_dead)
    return false;
  const bool left = (op->kind == OperationKind::kWrite &&
                     link_.write_at_once(op->tensors[0].data(), peer, op->id)) ||
                    (op->kind == OperationKind::kRead &&
                     link_.read_at_once(peer, op->completion.buffers[0].data(), op->id));
  if (!left && !leave_in_steps(op, peer)) return false;
  fault_point(op->state == OperationState::kPulling ? "session.pull" : "session.supply");
  fault_point("session.posted");
  op->engaged = true;
  op->moved = op->in_flight = op->total;
  return true;
}

// By the calls of an operation in parts, where the link has no shorter way for it.
bool DeviceTransfer::leave_in_steps(Operation* op, const wire::Segment& peer) {
  if (!link_.nothing_under_way()) return false;
  const Result<bool> posted = hand_whole_to_link(op, peer);
  if (!posted.ok() || !*posted) return false;
  link_.flush();
  return true;
}

Result<bool> DeviceTransfer::hand_whole_to_link(Operation* op, const wire::Segment& peer) {
  if (op->kind == OperationKind::kAtomic) {
    return link_.atomic(peer, accesses_.of(*op).atomic, op->completion.buffers[0].data(), op->id);
  }
  if (op->state == OperationState::kPulling) {
    const MutableBytes into = op->completion.buffers[0].bytes();
    return link_.read(peer, std::span(&into, 1), op->id);
  }
  const ConstBytes from = op->tensors[0].bytes();
  return link_.write(std::span(&from, 1), peer, op->id, nullptr);
}

// A chunk of each operation in turn, until the link is full.
size_t DeviceTransfer::post_some(OperationList& list) {
  size_t posted_chunks = 0;
  while (!list.empty() && !control_.blocked() && !connection_.link_dead) {
    Operation* op = list.first;
    Result<bool> posted = post_chunk(op);
    if (posted.ok() && !*posted) {
      control_.set_blocked();
      break;
    }
    ++posted_chunks;
    if (!posted.ok()) {
      give_up_moving(op, posted.status());
      continue;
    }
    note_posted(list, op);
  }
  return posted_chunks;
}

void DeviceTransfer::note_posted(OperationList& list, Operation* op) {
  list.remove(op);
  // Out of the list until transfer_done() makes room.
  if (op->moved < op->total && op->in_flight < kMostInFlight) list.push_back(op);
}

Result<bool> DeviceTransfer::post_chunk(Operation* op) {
  DeviceAccess& theirs = accesses_.of(*op);
  DeviceAccess::Chunk chunk = theirs.next_chunk(traits_.spread);
  Result<bool> posted = hand_to_link(op, theirs, chunk);
  if (!posted.ok() || !*posted) return posted;
  fault_point("session.posted");
  theirs.note_moved(chunk);
  op->moved += chunk.peer.length;
  op->in_flight += chunk.peer.length;
  return true;
}

// The chunk's length afterwards is what was posted.
Result<bool> DeviceTransfer::hand_to_link(Operation* op, const DeviceAccess& theirs,
                                          DeviceAccess::Chunk& chunk) {
  wire::Segment& peer = chunk.peer;
  if (op->kind == OperationKind::kAtomic) {
    peer.length = 8;
    return link_.atomic(peer, theirs.atomic, op->completion.buffers[0].data(), op->id);
  }
  const uint64_t want = std::min({op->total - op->moved, chunk.left, traits_.chunk_bytes});
  size_t count = 0;
  if (op->state == OperationState::kPulling) {
    std::array<MutableBytes, kMaxPlaces> pieces;
    peer.length = take_pieces(op->completion.buffers, chunk.at, want, pieces, count);
    return link_.read(peer, std::span(pieces.data(), count), op->id);
  }
  std::array<ConstBytes, kMaxPlaces> pieces;
  peer.length = take_pieces(op->tensors, chunk.at, want, pieces, count);
  const bool last = theirs.notify && op->moved + peer.length == op->total;
  const uint32_t notice = OperationTable::notice_of(op->peer_id);
  return link_.write(std::span(pieces.data(), count), peer, op->id, last ? &notice : nullptr);
}

// Nothing of it is under way any more, or can be called back, or the fence waits for it.
void DeviceTransfer::give_up_moving(Operation* op, const Status& why) {
  if (op->in_flight > 0 && link_.cancel_moves(op->id)) op->in_flight = 0;
  bool asked = op->kind == OperationKind::kSupply ||
               (op->state == OperationState::kPulling && op->peer_id != 0);
  if (asked) control_.send_done(op->peer_id, why.code(), 0);
  if (!connection_.link_dead) incoming_.conclude(op, why);  // else that ended everything
}

void DeviceTransfer::transfer_done(uint64_t cookie, uint64_t length, const Status& status,
                                   Instant now) {
  RunningCall call(connection_);
  connection_.last_heard = now;
  Operation* op = operations_.find(cookie);
  if (op == nullptr || op->in_flight < length) return;
  if (!status.ok()) [[unlikely]]
    return transfer_failed(op, length, status);
  op->in_flight -= length;
  bool incoming = op->kind != OperationKind::kWrite && op->kind != OperationKind::kSupply;
  incoming ? count_received(op, length) : count_sent(op, length);
  (incoming ? counters_.bytes_received : counters_.bytes_sent) += length;
  if (op->state == OperationState::kFencing) return end_fence(op);
  if (op->moved < op->total && op->list == nullptr) {
    (op->state == OperationState::kPulling ? pulling_ : pushing_).push_back(op);
    connection_.activate();
  }
  if (op->moved < op->total || op->in_flight > 0) return;
  // One-sided: no peer is told, and no window of ours was open.
  if (is_one_sided(op->kind)) {
    if (incoming) fault_point("session.placed");
    return operations_.complete(op, Status());
  }
  if (incoming) return incoming_.finish(op);
  incoming_.conclude(op, Status());
}

void DeviceTransfer::transfer_failed(Operation* op, uint64_t length, const Status& status) {
  if (status.scope() == Scope::kOperation) {
    op->in_flight -= length;
    if (op->state == OperationState::kFencing) return end_fence(op);
    // The windows of a message or a fetch are the peer's to close: it gave the operation up.
    Status why = is_one_sided(op->kind) ? status
                                        : Status(Code::kCancelled, Scope::kOperation, kOrigin,
                                                 "the peer gave it up in the middle");
    return give_up_moving(op, why);
  }
  // The link has stopped: nothing reaches its memory.
  if (op->state == OperationState::kFencing) --fencing_;
  op->in_flight = 0;
  if (op->engaged) forget(op);
  operations_.complete(op, status);
}

Status DeviceTransfer::arrived(uint32_t notice, Instant now) {
  RunningCall call(connection_);
  connection_.last_heard = now;
  if (connection_.link_dead || connection_.finished) return Status();
  Operation* op = operations_.table().find_notice(notice);
  bool waiting = op != nullptr && op->kind == OperationKind::kWant && windows_open(*op) > 0;
  if (!waiting) {
    late_arrivals.add();
    return Status();
  }
  if (op->state == OperationState::kFencing) {
    accesses_.of(*op).answer_due = false;
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
  incoming_.conclude(op, Status());
  return Status();
}

// Counting.

// Bytes that went by read() or write().
void DeviceTransfer::count_moved(Operation* op, uint64_t bytes, const CopyCost& cost) {
  count_copies(op, counters_, bytes, cost);
  op->completion.receipt.path = link_.bulk_path();
}

// Where bytes were received in their place, the receipt says so.
void DeviceTransfer::count_received(Operation* op, uint64_t bytes) {
  uint64_t uncopied = traits_.bulk_in.user > 0 ? std::min(link_.uncopied_in(bytes), bytes) : 0;
  count_moved(op, bytes, traits_.bulk_in);
  op->completion.receipt.copied_bytes -= uncopied;
  counters_.copied_bytes -= uncopied;
}

// Of ours: where the kernel sent our own pages, the receipt says so.
void DeviceTransfer::count_sent(Operation* op, uint64_t bytes) {
  uint64_t uncopied = traits_.bulk_out.kernel > 0 ? std::min(link_.uncopied_out(bytes), bytes) : 0;
  count_moved(op, bytes, traits_.bulk_out);
  op->completion.receipt.kernel_copied_bytes -= uncopied;
  counters_.kernel_copied_bytes -= uncopied;
}

}  // namespace sluice::proto
