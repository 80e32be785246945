// What a queue pair posts: messages, transfers, windows.
#include <arpa/inet.h>
#include <errno.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/verbs/queue_pair.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/queue_pair";
// Requests that transfers leave to messages, and messages to what closes windows.
constexpr uint64_t kKeptFromTransfers = 64;
constexpr uint64_t kKeptFromWindows = 48;
constexpr uint64_t kKeptFromMessages = 16;
constexpr Duration kWindowTime = std::chrono::seconds(1);
// SENDPAGE_THRESH of soft-iWARP: a page, 4 KiB or more.
constexpr size_t kZeroCopySend = 4096;
// MAX_HDR_INLINE of soft-iWARP, and its smallest page: so few bytes, if they cross a page of
// the memory they are sent from, leave its siw_try_1seg() wrong (Linux 6.1.192).
constexpr uint64_t kSmallSegment = 32;
constexpr uint64_t kPage = 4096;
// For a WRITE of nothing: no key is looked at, but not every device sends 0.
constexpr uint32_t kNoKey = 1;

Counter messages_posted("verbs.messages_posted");
Counter transfers_posted("verbs.transfers_posted");
Counter probes_posted("verbs.probes_posted");
Counter windows_bound("verbs.windows_bound");
Counter foreign_registrations("verbs.foreign_registrations");

Status no_room() {
  return Status(Code::kTryAgain, Scope::kOperation, kOrigin, "the device's queue is full");
}

}  // namespace

struct QueuePair::Pieces {
  static constexpr size_t kMost = 3 * kMaxPlaces;
  std::array<ibv_sge, kMost> sge;
  size_t count = 0;
  std::array<ibv_mr*, kMost> temporary{};  // of each piece, or null
};

// Requires: 1 to kReceivesPosted of them.
Status QueuePair::post_receives(std::span<const uint32_t> slots) {
  std::array<ibv_sge, kReceivesPosted> pieces;
  std::array<ibv_recv_wr, kReceivesPosted> requests;
  for (size_t i = 0; i < slots.size(); ++i) {
    pieces[i] = {.addr = reinterpret_cast<uint64_t>(slots_ + slots[i] * kSlotBytes),
                 .length = kSlotBytes,
                 .lkey = slots_mr_->lkey};
    requests[i] = {.wr_id = uint64_t{1} << 63 | slots[i],
                   .next = i + 1 < slots.size() ? &requests[i + 1] : nullptr,
                   .sg_list = &pieces[i],
                   .num_sge = 1};
  }
  ibv_recv_wr* bad = nullptr;
  const int error = api_.post_recv(qp_, requests.data(), &bad);
  // Of a list that is refused, those before `bad` are posted; none if it names none of ours.
  size_t posted = slots.size();
  while (error != 0 && posted > 0 && &requests[posted - 1] != bad) --posted;
  if (error != 0 && posted > 0) --posted;
  for (size_t i = 0; i < posted; ++i) {
    posted_[slots[i]] = true;
    ++receives_out_;
    ++slots_posted_;
  }
  if (error == 0) return Status();
  return Status(Code::kInternal, Scope::kEndpoint, kOrigin, "the device refuses a receive", error);
}

bool QueuePair::writable() const {
  return !stopped() && !failed() && free_requests() > kKeptFromTransfers + kMaxPlaces &&
         credits() > 1 && send_head_ - send_tail_ < kSlots;
}

bool QueuePair::send(ConstBytes header, std::span<const ConstBytes> payload) {
  // The last credit is for giving credits.
  return send_frame(FrameKind::kMessage, header, payload, 1);
}

bool QueuePair::send_frame(FrameKind kind, ConstBytes header, std::span<const ConstBytes> payload,
                           int32_t credits_kept) {
  if (stopped() || failed()) return true;  // it goes nowhere; the failure is told by poll()
  if (credits() <= credits_kept || send_head_ - send_tail_ >= kSlots ||
      free_requests() <= kKeptFromMessages)
    return false;
  std::byte* slot = slots_ + (kSlots + send_head_ % kSlots) * kSlotBytes;
  const uint32_t prefix[2] = {slots_posted_, static_cast<uint32_t>(kind)};
  std::memcpy(slot, prefix, kFramePrefix);
  size_t length = kFramePrefix;
  if (!header.empty()) std::memcpy(slot + length, header.data(), header.size());
  length += header.size();
  for (ConstBytes piece : payload) {
    if (!piece.empty()) std::memcpy(slot + length, piece.data(), piece.size());
    length += piece.size();
  }
  ibv_send_wr* request = begin_request(1);
  if (request == nullptr) return true;
  request->sg_list[0] = {.addr = reinterpret_cast<uint64_t>(slot),
                         .length = static_cast<uint32_t>(length),
                         .lkey = slots_mr_->lkey};
  request->opcode = IBV_WR_SEND;
  request->send_flags = length <= max_inline_ ? IBV_SEND_INLINE : 0;
  // Slots must come back before they run out.
  if (send_head_ - send_tail_ >= kSlots / 2) request->send_flags |= IBV_SEND_SIGNALED;
  // Soft-iWARP gives TCP the pages themselves of what asks for no completion, from one
  // page on (drivers/infiniband/sw/siw/siw_qp_tx.c): they would change under its retransmissions.
  if (device_.limits().iwarp && length >= kZeroCopySend) request->send_flags |= IBV_SEND_SIGNALED;
  record(head_) = {.kind = Kind::kMessage};
  end_request(*request);
  // What waits goes with it; it does not wait for more.
  if (!flush().ok()) return true;
  messages_posted.add();
  ++send_head_;
  ++credits_used_;
  credits_told_ = prefix[0];
  return true;
}

bool QueuePair::probe() {
  if (stopped() || failed() || device_.limits().iwarp) return false;
  if (free_requests() <= kKeptFromMessages) return true;  // those that are under way ask as well
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.rkey = kNoKey;
  if (post(request, {.kind = Kind::kProbe}).ok()) probes_posted.add();
  return true;
}

void QueuePair::end_sending() {
  bool iwarp = device_.limits().iwarp;  // there, what is retired may still lie in TCP
  if (stopped() || failed() || (drained() && !iwarp)) return;
  unsignaled_ = kSignalEvery;
  send_frame(FrameKind::kMessage, {}, {}, 0);
  if (iwarp && free_requests() > 0) post_proof(0, 0);
  (void)flush();
}

// iWARP: a READ that is over when the peer's device has come to it: then all writes before it are
// in place and all messages before it were received, since it works in order (RFC 5040, 5.5). Not
// of nothing: soft-iWARP answers that with the length of what it sent last (design.md). Requires: a
// free request.
void QueuePair::post_proof(uint64_t cookie, uint64_t length) {
  ibv_sge sge{.addr = reinterpret_cast<uint64_t>(slots_) + kSlotsBytes + kProofBytes,
              .length = kProofBytes,
              .lkey = slots_mr_->lkey};
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_READ;
  request.sg_list = &sge;
  request.num_sge = 1;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = peer_proof_.address;
  request.wr.rdma.rkey = peer_proof_.key;
  (void)post(request, {.kind = Kind::kMove, .apart = true, .cookie = cookie, .length = length});
}

// Adds [data, data + length) in pieces of one registration each.
Status QueuePair::gather(Pieces& pieces, std::byte* data, uint64_t length, bool write) {
  unsigned access = 0;
  if (write) access = IBV_ACCESS_LOCAL_WRITE;
  while (length > 0) {
    Registered found = device_.registrar().find(data, length);
    if (pieces.count == pieces.sge.size()) {
      return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                    "the memory lies in too many registered pieces");
    }
    if (found.mr == nullptr) {
      SLUICE_TRY(found.mr, device_.registrar().pin(data, length, static_cast<int>(access)));
      foreign_registrations.add();
      found.length = length;
      pieces.temporary[pieces.count] = found.mr;
    }
    pieces.sge[pieces.count++] = {.addr = reinterpret_cast<uint64_t>(data),
                                  .length = static_cast<uint32_t>(found.length),
                                  .lkey = found.mr->lkey};
    data += found.length;
    length -= found.length;
  }
  return Status();
}

bool QueuePair::move_at_once(ibv_wr_opcode opcode, const std::byte* data, const wire::Segment& peer,
                             uint64_t cookie) {
  ibv_sge piece;
  if (!drained() || !works() || device_.limits().iwarp || !in_one_region(data, peer.length, piece))
    return false;
  move_piece(opcode, piece, peer, cookie, nullptr);
  (void)flush();
  return true;
}

// As move(), of what one request takes. Requires: no iWARP.
void QueuePair::move_piece(ibv_wr_opcode opcode, const ibv_sge& piece, const wire::Segment& peer,
                           uint64_t cookie, const uint32_t* notice) {
  ibv_send_wr* request = begin_request(1);
  if (request == nullptr) return;  // that ends the connection, and with it the operation
  request->sg_list[0] = piece;
  request->opcode = opcode;
  request->send_flags = IBV_SEND_SIGNALED;
  request->wr.rdma.remote_addr = peer.offset;
  request->wr.rdma.rkey = static_cast<uint32_t>(peer.extent);
  if (notice != nullptr) {
    request->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request->imm_data = htonl(*notice);
    ++credits_used_;
  }
  record(head_) = {.kind = Kind::kMove, .cookie = cookie, .length = piece.length};
  end_request(*request);
  transfers_posted.add();
}

// One request for as many pieces as the device takes; foreign pieces one by one, because
// a record remembers one registration.
Result<bool> QueuePair::move(Pieces& pieces, ibv_send_wr& request, const wire::Segment& peer,
                             uint64_t cookie, const uint32_t* notice) {
  uint64_t address = peer.offset;
  uint64_t done = 0;
  const bool iwarp = device_.limits().iwarp, reading = request.opcode == IBV_WR_RDMA_READ;
  const size_t most = reading ? max_read_pieces_ : max_pieces_;
  for (size_t first = 0; first < pieces.count;) {
    size_t count = 0;
    uint64_t length = 0;
    while (first + count < pieces.count && count < most) {
      if (count > 0 &&
          (pieces.temporary[first + count] != nullptr || pieces.temporary[first] != nullptr))
        break;
      length += pieces.sge[first + count++].length;
    }
    done += length;
    bool last = done == peer.length;
    request.sg_list = &pieces.sge[first];
    request.num_sge = static_cast<int>(count);
    request.wr.rdma.remote_addr = address;
    request.wr.rdma.rkey = peer.extent;
    request.send_flags = 0;
    if (iwarp ? reading : last) request.send_flags = IBV_SEND_SIGNALED;
    if (iwarp && !reading && length <= kSmallSegment && length <= max_inline_)
      request.send_flags = IBV_SEND_INLINE;
    if (!reading) request.opcode = IBV_WR_RDMA_WRITE;
    if (last && notice != nullptr && !iwarp) {
      request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      request.imm_data = htonl(*notice);
      ++credits_used_;
    }
    Record record{.kind = iwarp && !reading ? Kind::kUnproven : Kind::kMove,
                  .apart = iwarp && reading,
                  .cookie = cookie,
                  .length = length,
                  .temporary = pieces.temporary[first]};
    if (!post(request, record).ok()) {
      // The failure ends the connection, and with it the operation; the rest was not used.
      for (size_t i = first + count; i < pieces.count; ++i) {
        if (pieces.temporary[i] != nullptr) (void)api_.dereg_mr(pieces.temporary[i]);
      }
      return true;
    }
    transfers_posted.add();
    address += length;
    first += count;
  }
  if (iwarp && !reading) {
    post_proof(cookie, peer.length);
    // Received only after the bytes are in place: RFC 5040, 5.5.
    ConstBytes bytes = std::as_bytes(std::span(notice, notice != nullptr ? 1 : 0));
    if (notice != nullptr) send_frame(FrameKind::kNotice, bytes, {}, 1);
  }
  return true;
}

// For soft-iWARP as the sender of what is read. Errors: kInvalidArgument.
Status QueuePair::cut_at_peer_pages(Pieces& pieces, uint64_t address) {
  for (size_t i = 0; i < pieces.count; address += pieces.sge[i++].length) {
    ibv_sge& piece = pieces.sge[i];
    uint64_t left = kPage - address % kPage;
    if (piece.length > kSmallSegment || piece.length <= left) continue;
    if (pieces.count == Pieces::kMost) {
      return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                    "the memory lies in too many registered pieces");
    }
    std::copy_backward(&piece, &pieces.sge[pieces.count], &pieces.sge[pieces.count] + 1);
    std::copy_backward(&pieces.temporary[i], &pieces.temporary[pieces.count],
                       &pieces.temporary[pieces.count] + 1);
    ++pieces.count;
    pieces.temporary[i] = nullptr;  // goes with the second part
    pieces.sge[i + 1].addr += left;
    pieces.sge[i + 1].length -= static_cast<uint32_t>(left);
    piece.length = static_cast<uint32_t>(left);
  }
  return Status();
}

bool QueuePair::room_for_transfer(bool notice) const {
  if (free_requests() <= kKeptFromTransfers + kMaxPlaces) return false;
  if (!notice) return true;
  return credits() > 1 && (!device_.limits().iwarp || send_head_ - send_tail_ < kSlots);
}

Result<bool> QueuePair::read(const wire::Segment& peer, std::span<const MutableBytes> into,
                             uint64_t cookie) {
  if (stopped() || failed()) return true;
  if (!room_for_transfer(false)) return false;
  ibv_sge whole;
  if (into.size() == 1 && !device_.limits().iwarp &&
      in_one_region(into[0].data(), into[0].size(), whole)) {
    move_piece(IBV_WR_RDMA_READ, whole, peer, cookie, nullptr);
    return true;
  }
  Pieces pieces;
  Status gathered;
  for (MutableBytes piece : into) {
    if (gathered.ok()) gathered = gather(pieces, piece.data(), piece.size(), true);
  }
  if (gathered.ok() && device_.limits().iwarp) gathered = cut_at_peer_pages(pieces, peer.offset);
  if (!gathered.ok()) {
    for (ibv_mr* mr : pieces.temporary) {
      if (mr != nullptr) (void)api_.dereg_mr(mr);
    }
    return gathered;
  }
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_READ;
  return move(pieces, request, peer, cookie, nullptr);
}

Result<bool> QueuePair::write(std::span<const ConstBytes> from, const wire::Segment& peer,
                              uint64_t cookie, const uint32_t* notice) {
  if (stopped() || failed()) return true;
  if (!room_for_transfer(notice != nullptr)) return false;
  ibv_sge whole;
  if (from.size() == 1 && !device_.limits().iwarp &&
      in_one_region(from[0].data(), from[0].size(), whole)) {
    move_piece(IBV_WR_RDMA_WRITE, whole, peer, cookie, notice);
    return true;
  }
  Pieces pieces;
  for (ConstBytes piece : from) {
    Status gathered = gather(pieces, const_cast<std::byte*>(piece.data()), piece.size(), false);
    if (gathered.ok()) continue;
    for (ibv_mr* mr : pieces.temporary) {
      if (mr != nullptr) (void)api_.dereg_mr(mr);
    }
    return gathered;
  }
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  return move(pieces, request, peer, cookie, notice);
}

bool QueuePair::notify(uint32_t notice, uint64_t cookie, uint64_t length) {
  if (stopped() || failed()) return true;
  if (!room_for_transfer(true)) return false;
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  request.imm_data = htonl(notice);
  request.wr.rdma.rkey = kNoKey;
  ++credits_used_;
  (void)post(request, {.kind = Kind::kMove, .cookie = cookie, .length = length});
  return true;
}

Result<bool> QueuePair::atomic(const wire::Segment& peer, const AtomicRequest& wanted,
                               std::byte* result, uint64_t cookie) {
  if (stopped() || failed()) return true;
  if (free_requests() <= kKeptFromTransfers) return false;
  Pieces pieces;
  SLUICE_RETURN_IF_ERROR(gather(pieces, result, 8, true));
  ibv_send_wr request{};
  request.opcode = wanted.compare ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
  request.sg_list = pieces.sge.data();
  request.num_sge = 1;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.atomic.remote_addr = peer.offset;
  request.wr.atomic.rkey = peer.extent;
  request.wr.atomic.compare_add = wanted.compare ? wanted.expected : wanted.operand;
  request.wr.atomic.swap = wanted.compare ? wanted.operand : 0;
  Record record{
      .kind = Kind::kMove, .cookie = cookie, .length = 8, .temporary = pieces.temporary[0]};
  (void)post(request, record);
  return true;
}

Result<WindowId> QueuePair::open_window(std::byte* data, uint64_t length, Right rights,
                                        uint64_t cookie, bool whole, wire::Segment& out) {
  if (stopped() || failed())
    return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the connection has ended");
  if (windows_.full()) return no_room();
  Registered found = device_.registrar().find(data, length);
  bool covered = found.mr != nullptr && (!whole || found.length == length);
  if (!device_.limits().windows || !covered) {
    if (found.mr != nullptr && !whole) length = std::min(length, found.length);
    return windows_.open_narrow(data, length, rights, cookie, out);
  }
  if (free_requests() <= kKeptFromWindows) return no_room();
  WindowId id;
  // If the device has no more of them, memory registered for this alone does as well.
  if (!windows_.take(id)) return windows_.open_narrow(data, found.length, rights, cookie, out);
  WindowTable::Window& window = windows_.at(id);
  ibv_send_wr request{};
  request.opcode = IBV_WR_BIND_MW;
  request.bind_mw.mw = window.mw;
  request.bind_mw.rkey = window.key;
  request.bind_mw.bind_info = {.mr = found.mr,
                               .addr = reinterpret_cast<uint64_t>(data),
                               .length = found.length,
                               .mw_access_flags = static_cast<unsigned>(access_flags(rights))};
  // Without `whole` the key leaves behind this request, on this connection. A grant's key
  // may travel any way: it is valid before anybody has it.
  const bool at_once = whole || use_ == Use::kMoves;
  if (at_once) request.send_flags = IBV_SEND_SIGNALED;
  uint64_t sequence = head_;
  SLUICE_RETURN_IF_ERROR(post(request, {.kind = Kind::kBind, .window = id}));
  if (at_once) {
    const Status bound = wait_for(sequence);
    // The device may open it yet, after the caller was told that it is not: it ends with the
    // connection.
    if (bound == Code::kTimedOut) fail(bound);
    if (!bound.ok()) return bound;
  }
  window.cookie = cookie;
  window.open = true;
  windows_bound.add();
  out = {.extent = window.key, .offset = reinterpret_cast<uint64_t>(data), .length = found.length};
  return id;
}

void QueuePair::close_window(WindowId id) {
  if (stopped() || failed()) return;
  const WindowTable::Window* window = windows_.find_open(id);
  if (window == nullptr) return;
  if (window->narrow == nullptr) {
    if (free_requests() == 0) return to_invalidate_.push_back(id);
    return invalidate(id);
  }
  const uint64_t cookie = window->cookie;
  if (Status closed = windows_.close_narrow(id); !closed.ok()) return fail(std::move(closed));
  closed_at_once_.push_back(cookie);
}

// Requires: a free request.
void QueuePair::invalidate(WindowId id) {
  WindowTable::Window& window = windows_.at(id);
  window.open = false;
  ibv_send_wr request{};
  request.opcode = IBV_WR_LOCAL_INV;
  request.invalidate_rkey = window.key;
  request.send_flags = IBV_SEND_SIGNALED;
  (void)post(request, {.kind = Kind::kInvalidate, .window = id, .cookie = window.cookie});
}

// Waits for the request that closes it.
Status QueuePair::revoke_window(WindowId id) {
  if (stopped() || windows_.find_open(id) == nullptr) return Status();
  if (windows_.is_narrow(id)) return windows_.close_narrow(id);
  if (failed() || free_requests() == 0) {
    return Status(Code::kTryAgain, Scope::kEndpoint, kOrigin,
                  "the device's queue has no room to close a window; connect again");
  }
  uint64_t sequence = head_;
  invalidate(id);
  if (failed()) return failure_.why;
  return wait_for(sequence);
}

// Until that request has completed. What else completes meanwhile is kept for poll().
Status QueuePair::wait_for(uint64_t sequence) {
  SLUICE_RETURN_IF_ERROR(flush());
  Instant deadline = after(now(), kWindowTime);
  while (true) {
    ibv_wc completion{};
    int count = api_.poll_cq(cq_, 1, &completion);
    if (count > 0) {
      deferred_.push_back(completion);
      bool sent = (completion.wr_id >> 63) == 0;
      // poll() finds out what it is.
      if (completion.status != IBV_WC_SUCCESS || !names_posted(completion))
        return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                      "the connection broke; connect again");
      if (sent && completion.wr_id >= sequence && completion.wr_id < head_) return Status();
    } else if (count < 0 || now() >= deadline) {
      return Status(Code::kTimedOut, Scope::kEndpoint, kOrigin,
                    "the device did not change a window within a second; connect again");
    }
  }
}

}  // namespace sluice::verbs
