// One reliable connection as the device sees it: queue pair, completion queue, message
// slots, windows, and the account of every work request. Knows frames and credits, not
// what the messages mean.
//
// A message is one SEND: 8 bytes {receive slots this side has posted so far, modulo 2^32;
// FrameKind u32}, then one control message with its payload, or nothing, or a notice. A SEND or
// a WRITE with immediate uses one slot of the peer. A side without a slot waits, so that the
// peer's device never finds its receive queue empty.
#ifndef SLUICE_VERBS_QUEUE_PAIR_H_
#define SLUICE_VERBS_QUEUE_PAIR_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sluice/proto/direct_client.h>
#include <sluice/spi/eager.h>
#include <sluice/verbs/device.h>
#include <sluice/verbs/window_table.h>

namespace sluice::verbs {

inline constexpr size_t kFramePrefix = 8;
enum class FrameKind : uint32_t {
  kMessage = 0,  // one, or none
  kNotice = 1,   // 4 bytes: that of a write before it, where devices have no immediate data
};
inline constexpr size_t kSlotBytes =
    kFramePrefix + wire::kMaxHeaderBytes + kEagerBytes + 56;  // whole cache lines
inline constexpr uint32_t kSlots = 64;  // messages under way in each direction
inline constexpr size_t kSlotsBytes = 2 * kSlots * kSlotBytes;
// iWARP: where the peer may read kProofBytes that mean nothing. Its answer to such a READ proves
// what came before (design.md, "RDMA over iWARP"). Key 0: there is none.
struct ProofPlace {
  uint64_t address = 0;
  uint32_t key = 0;
};
inline constexpr uint32_t kProofBytes = 8;
// Requests of one doorbell: two operations' chunks under way.
inline constexpr size_t kMostListed = 16;

class QueuePair {
 public:
  enum class Use : uint8_t {
    kAll,
    kMoves,  // no messages: it has no slots. Its windows are open when open_window() returns.
  };
  // Errors: kNoMemory (memlock, descriptors, device entries), kUnsupported (the device is too
  // small), kInternal.
  static Result<std::unique_ptr<QueuePair>> create(Device& device, uint8_t port, Use use);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  Device& device() { return device_; }
  uint32_t number() const { return qp_ != nullptr ? qp_->qp_num : 0; }
  bool concerned_by(const DeviceEvent& event) const {
    if (&event.device != &device_) return false;
    if (event.cq != nullptr) return event.cq == cq_;
    return event.queue_pair == 0 || event.queue_pair == number();
  }
  // The steps of a connection, with what the CM negotiated. Errors: kInternal, kUnreachable.
  Status initialise(rdma_cm_id* id);  // INIT; receive slots are posted
  // RTR, RTS; iWARP: the kernel does it. The peer's port carries packets of `peer_mtu` (ibv_mtu).
  Status ready(rdma_cm_id* id, uint8_t peer_mtu);
  uint8_t port_mtu() const;
  // iWARP: ours, and what the peer said of its own. Errors: kCorrupt, it has none.
  ProofPlace proof_place() const;
  Status prove_at(ProofPlace peer);

  // All posts: false or kTryAgain when there is no room; writable() turns true later.
  bool send(ConstBytes header, std::span<const ConstBytes> payload);
  Result<bool> read(const wire::Segment& peer, std::span<const MutableBytes> into, uint64_t cookie);
  Result<bool> write(std::span<const ConstBytes> from, const wire::Segment& peer, uint64_t cookie,
                     const uint32_t* notice);
  Result<bool> atomic(const wire::Segment& peer, const AtomicRequest& request, std::byte* result,
                      uint64_t cookie);
  Result<WindowId> open_window(std::byte* data, uint64_t length, Right rights, uint64_t cookie,
                               bool whole, wire::Segment& out);
  void close_window(WindowId window);
  Status revoke_window(WindowId window);
  // All at once, as the connection ends. Blocks: a system call for each.
  void revoke_windows();
  // What was posted and waits for others goes to the device. A message takes it along, and
  // poll() and arm() do it, too. A failure is in failure().
  Status flush() { return listed_ == 0 || ring_doorbell() ? Status() : failure_.why; }
  // A read or write of one piece, with its doorbell. False: nothing was done, since something is
  // under way, or the piece is not registered as one, or a proof is needed (iWARP). True may also
  // mean that the device refused it: failure() has why.
  bool move_at_once(ibv_wr_opcode opcode, const std::byte* data, const wire::Segment& peer,
                    uint64_t cookie);
  // Room for a message and a transfer.
  bool writable() const;
  bool room_for_transfer(bool notice) const;
  // A WRITE of nothing that brings the notice of writes before it; on_moved(cookie, length)
  // when it is over. False: no room. Requires: no iWARP.
  bool notify(uint32_t notice, uint64_t cookie, uint64_t length);
  // How many requests were posted so far, and how many of the first of them are over.
  uint64_t posted() const { return head_; }
  uint64_t retired() const { return tail_; }
  // Its key is good on every connection of the device, not on this alone.
  bool is_narrow(WindowId window) const { return windows_.is_narrow(window); }

  // poll() has something to do. Cheap: who spins asks for nothing else. Requires: neither stopped
  // nor failed.
  bool look() {
    // From inside a completion: the rest of the batch that it came with is still to be handled.
    if (has_chores() || batch_at_ < batch_size_) return true;
    take_batch(static_cast<int>(batch_.size()));
    return batch_size_ != 0;
  }
  // Handles up to `most` completions. A failure is in failure(); then only stop().
  size_t poll(proto::DirectClient& client, Instant now, int most);
  // Asks for an event at the next completion. False: there is work now.
  bool arm();
  bool port_active() const { return device_.port_active(port_); }
  // Asks the peer's device whether it is there, by a WRITE of nothing: it takes no receive slot,
  // and the peer's program hears nothing of it. Without an answer the queue fails, as for any
  // request. False: it cannot be asked. iWARP: never; a WRITE there says only that TCP has it.
  bool probe();
  // Nothing is on its way out. A message that asks for no completion counts as under way until a
  // later request is over; after end_sending() the last one asks.
  bool drained() const { return tail_ == head_; }
  void end_sending();
  uint64_t chunk_limit() const { return chunk_limit_; }
  bool stopped() const { return qp_ == nullptr; }
  bool failed() const { return !failure_.why.ok(); }
  bool works() const { return !stopped() && !failed(); }
  // The device refused to destroy it with requests out, or to deregister a region that was
  // registered for the peer: memory may be reached until the device is closed, which keeps that
  // memory.
  bool stuck() const { return stuck_ || windows_.stuck(); }

  struct Failure {
    Status why;
    bool moving = false;  // a transfer was refused: this one
    uint64_t cookie = 0, length = 0;
  };
  const Failure& failure() const { return failure_; }
  void fail(Status why);
  // With another that failed.
  void fail(const Failure& failure) {
    if (!failed()) failure_ = failure;
  }

  // On return no device reaches the memory of this connection, unless stuck(). Blocks: until the
  // queues have been flushed, 100 ms at most, and for the calls that destroy them.
  void stop();

 private:
  enum class Kind : uint8_t { kMessage, kMove, kUnproven, kBind, kInvalidate, kProbe };
  // A posted send request, by its sequence number.
  struct Record {
    Kind kind = Kind::kMessage;
    bool apart = false;  // over by its own completion only: no later one speaks for it
    bool over = false;
    WindowId window = 0;
    uint64_t cookie = 0, length = 0;
    ibv_mr* temporary = nullptr;  // registration of foreign memory, for this request
  };
  // A request in so many asks for a completion; one completion then retires them all.
  static constexpr uint32_t kSignalEvery = 16;
  // Receives are posted so many at once. Fewer than that are held back, so a peer that has used all
  // its credits but the last is still owed more of them than give_credits() waits for.
  static constexpr uint32_t kReceivesPosted = 8;
  static_assert(kSlots % kReceivesPosted == 0 && kSlots - kReceivesPosted >= kSlots / 2);
  // Scatter/gather list of one transfer, in pieces that one registration holds.
  struct Pieces;
  // Registered memory, as it was found last.
  struct Found {
    uint64_t start = 0, end = 0;
    uint32_t key = 0;
    uint64_t removals = 0;  // the registrar's, before it was looked for
  };

  QueuePair(Device& device, Use use)
      : device_(device),
        api_(device.api()),
        user_(device.add_user()),
        use_(use),
        slots_in_(use == Use::kAll ? kSlots : 0),
        windows_(device) {}
  Status create_queues();
  void moderate_events();
  void adjust_moderation();
  Status make_slots();
  Status post_receives(std::span<const uint32_t> slots);
  bool has_chores() const {
    return listed_ > 0 || slots_posted_ - credits_told_ >= kSlots / 2 || !deferred_.empty() ||
           !closed_at_once_.empty() || !to_invalidate_.empty();
  }
  void take_batch(int most) {
    batch_at_ = 0;
    batch_asked_ = std::min<int>(most, static_cast<int>(batch_.size()));
    batch_size_ = api_.poll_cq(cq_, batch_asked_, batch_.data());
  }
  bool is_posted(uint64_t sequence) const {
    return sequence >= tail_ && sequence < head_ - listed_;
  }
  // A receive or a request that is out at the device.
  bool names_posted(const ibv_wc& completion) const {
    const uint64_t slot = completion.wr_id ^ uint64_t { 1 } << 63;
    return is_posted(completion.wr_id) || (slot < kSlots && posted_[slot]);
  }
  Record& record(uint64_t sequence) { return records_[sequence & record_mask_]; }
  uint64_t free_requests() const { return depth_ - (head_ - tail_); }
  int32_t credits() const { return static_cast<int32_t>(credit_limit_ - credits_used_); }
  bool send_frame(FrameKind kind, ConstBytes header, std::span<const ConstBytes> payload,
                  int32_t credits_kept);
  void post_proof(uint64_t cookie, uint64_t length);
  Status post(const ibv_send_wr& request, const Record& record);
  // The place of the next request in the list, with sg_list and num_sge: the rest is to be filled
  // in there, and so is record(head_). Then end_request(). Null: what was there was refused, and
  // the connection is of no use.
  ibv_send_wr* begin_request(size_t pieces) {
    if (listed_ == list_.size() || listed_pieces_ + pieces > list_pieces_.size()) [[unlikely]] {
      if (!flush().ok()) return nullptr;
    }
    ibv_send_wr& request = list_[listed_];
    request.sg_list = list_pieces_.data() + listed_pieces_;
    request.num_sge = static_cast<int>(pieces);
    return &request;
  }
  void end_request(ibv_send_wr& request) {
    request.wr_id = head_;
    request.next = &request + 1;
    if ((request.send_flags & IBV_SEND_SIGNALED) == 0 && ++unsignaled_ >= kSignalEvery)
      request.send_flags |= IBV_SEND_SIGNALED;
    if ((request.send_flags & IBV_SEND_SIGNALED) != 0) unsignaled_ = 0;
    listed_pieces_ += static_cast<size_t>(request.num_sge);
    ++listed_;
    ++head_;
  }
  // Requires: some are listed. False: some were refused, and failure() has why.
  bool ring_doorbell();
  void say_bound(size_t posted);
  void refused(size_t count, const ibv_send_wr* bad, int error);
  void take_back(uint64_t first);
  void drop_list();
  Result<bool> move(Pieces& pieces, ibv_send_wr& request, const wire::Segment& peer,
                    uint64_t cookie, const uint32_t* notice);
  bool in_one_region(const std::byte* data, uint64_t length, ibv_sge& piece);
  bool find_region(uint64_t start, uint64_t removals);
  void move_piece(ibv_wr_opcode opcode, const ibv_sge& piece, const wire::Segment& peer,
                  uint64_t cookie, const uint32_t* notice);
  static Status cut_at_peer_pages(Pieces& pieces, uint64_t address);
  Status gather(Pieces& pieces, std::byte* data, uint64_t length, bool write);
  void invalidate(WindowId window);
  Status wait_for(uint64_t sequence);
  void handle(const ibv_wc& completion, proto::DirectClient& client, Instant now);
  void account_flushed(const ibv_wc& completion);
  void handle_received(const ibv_wc& completion, proto::DirectClient& client, Instant now);
  void handle_frame(ConstBytes frame, proto::DirectClient& client, Instant now);
  void retire(uint64_t sequence, proto::DirectClient* client, Instant now);
  void note_error(const ibv_wc& completion);
  void give_credits() {
    if (slots_posted_ - credits_told_ >= kSlots / 2) send_frame(FrameKind::kMessage, {}, {}, 0);
  }
  void handle_deferred(proto::DirectClient& client, Instant now, int& most, size_t& work);
  void handle_put_aside(proto::DirectClient& client, Instant now, int& most, size_t& work);
  void drain_flushed();

  Device& device_;
  VerbsApi& api_;
  const uintptr_t user_;  // its number at the device
  const Use use_;
  const uint32_t slots_in_;  // of the peer's messages
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  uint8_t port_ = 0;
  uint64_t chunk_limit_ = 0;
  uint32_t max_pieces_ = 1;
  uint32_t max_read_pieces_ = 1;
  uint32_t max_inline_ = 0;
  uint32_t depth_ = 0;

  // Message slots: kSlots to receive, then kSlots to send; then kProofBytes for the peer to read,
  // and as many for what is read of it.
  std::byte* slots_ = nullptr;
  ibv_mr* slots_mr_ = nullptr;
  ibv_mr* proof_mr_ = nullptr;  // iWARP; for the peer to read
  ProofPlace peer_proof_;
  std::array<bool, kSlots> posted_{};
  uint32_t receives_out_ = 0;
  std::array<uint32_t, kReceivesPosted> used_{};  // slots that were read and are not posted again
  size_t used_count_ = 0;

  std::vector<Record> records_;  // ring of depth_ or more: a power of two
  uint64_t record_mask_ = 0;
  Found found_;
  uint64_t head_ = 0, tail_ = 0;  // sequence numbers
  // The last `listed_` of them, which the device has not got yet.
  std::array<ibv_send_wr, kMostListed> list_{};
  std::array<ibv_sge, 4 * kMostListed>
      list_pieces_;  // theirs; one request has 3 * kMaxPlaces at most
  size_t listed_ = 0, listed_pieces_ = 0;
  bool binds_listed_ = false;               // some of them bind windows
  uint32_t unsignaled_ = 0;                 // since the last signaled request
  uint32_t send_head_ = 0, send_tail_ = 0;  // slots in use, in order

  uint32_t credit_limit_ = kSlots;  // slots the peer has posted, as far as we know
  uint32_t credits_used_ = 0;
  uint32_t slots_posted_ = 0;  // ours
  uint32_t credits_told_ = slots_in_;

  WindowTable windows_;
  std::vector<WindowId> to_invalidate_;   // closed while the queue was full
  std::vector<uint64_t> closed_at_once_;  // cookies whose windows needed no request
  std::vector<ibv_wc> deferred_;          // polled while waiting for one
  std::array<ibv_wc, 16> batch_;          // polled, being handled; from look() to poll() not yet
  int batch_at_ = 0, batch_size_ = 0, batch_asked_ = 0;
  std::optional<EventModerator> moderator_;  // SLUICE_RDMA_MODERATION=auto
  uint64_t completions_ = 0, bytes_ = 0;     // handled, for it
  Failure failure_;
  bool failed_by_flush_ = false;
  bool stuck_ = false;
};

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_QUEUE_PAIR_H_
