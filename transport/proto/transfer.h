// How payload that is too large for a control message gets to the other end: one class for each
// kind of path. A session has one Transfer and asks it wherever kinds of paths differ.
//
// The session keeps what all kinds share: matching, credits, deadlines, closing, loans, control
// messages. A transfer knows it by TransferHost only.
#ifndef SLUICE_PROTO_TRANSFER_H_
#define SLUICE_PROTO_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <span>

#include <sluice/allocator/arena.h>
#include <sluice/api/endpoint.h>
#include <sluice/proto/grants.h>
#include <sluice/proto/link.h>
#include <sluice/proto/operation_table.h>

namespace sluice::proto {

// What became of an operation that was to start.
enum class Started : uint8_t {
  kSent,
  kBlocked,  // no room or no credit now: it stays in the queue
  kFailed,   // it is completed with the reason
};

// Counts payload bytes that went by a way of this cost.
inline void count_copies(Operation* op, EndpointCounters& counters, uint64_t bytes,
                         const CopyCost& cost) {
  op->completion.receipt.copied_bytes += bytes * cost.user;
  op->completion.receipt.kernel_copied_bytes += bytes * cost.kernel;
  counters.copied_bytes += bytes * cost.user;
  counters.kernel_copied_bytes += bytes * cost.kernel;
}

// What a transfer may ask of its session. Thread: the context's. Blocks: never.
class TransferHost {
 public:
  // The session's own; they live as long as it does.
  virtual OperationTable& operations() = 0;
  virtual EndpointCounters& live_counters() = 0;
  virtual Grants& grants() = 0;
  virtual Arena& arena() = 0;

  // Time, as SessionHost tells it.
  virtual Instant now() const = 0;
  virtual Instant exact_now() const = 0;
  // handle_timeout() is to be called then, at the latest.
  virtual void arm_timeout(Instant when) = 0;
  // progress() is to be called.
  virtual void activate() noexcept = 0;

  // A call of the link into the transfer: begins and ends. The peer was heard at `now`.
  virtual void begin_link_call() = 0;
  virtual void end_link_call() = 0;
  virtual void peer_heard(Instant now) = 0;

  // The connection has failed: the link takes nothing more.
  virtual bool link_dead() const = 0;
  virtual bool finished() const = 0;
  virtual void fail_connection(const Status& why) = 0;
  // The link said "no room", and its writable() has not come.
  virtual bool blocked() const = 0;
  virtual void set_blocked() = 0;
  // What the link took goes out with the flush() that ends this round.
  virtual void flush_later() = 0;
  // Nothing is offered until release_offers() or the link's writable(): the path cannot name more
  // memory to the peer now.
  virtual void hold_offers() = 0;
  virtual void release_offers() = 0;

  // Operations.
  virtual void start_or_queue(Operation* op) = 0;
  // Delivers the completion now. Requires: called from progress.
  virtual void complete(Operation* op, Status status) = 0;
  // Delivers it with the next progress.
  virtual void complete_later(Operation* op, Status status) = 0;
  // All bytes of an incoming transfer are in place: tells the peer, and completes.
  virtual void finish_incoming(Operation* op) = 0;
  // Completes once no device can reach the operation's memory.
  virtual void conclude(Operation* op, Status status) = 0;
  // Gives the slot back without a completion.
  virtual void release_operation(Operation* op) = 0;
  // The operation that the peer names by this id of its own and may cancel; null: none that
  // `accept` takes.
  virtual Operation* find_by_peer_id(uint64_t peer_id, bool (*accept)(const Operation&)) = 0;
  // A view of the peer's memory; RELEASE of `offer_id` goes out when it ends.
  virtual StorageRef make_view(const ImportedRun& run, size_t length, uint64_t offer_id) = 0;
  virtual void revoke_grant(uint64_t number) = 0;
  // The last thing that the close waited for may be over.
  virtual void recheck_end() = 0;

  // Control messages.
  virtual void send_want(const wire::Want& want) = 0;
  virtual void send_cancel(const wire::Cancel& cancel) = 0;
  virtual void send_done(uint64_t id, Code code, uint64_t bytes) = 0;

 protected:
  ~TransferHost() = default;
};

// The base has what most kinds do: nothing. Thread: the context's. Blocks: never, where not said.
class Transfer {
 public:
  explicit Transfer(const LinkTraits& traits, TransferHost& host)
      : traits_(traits), host_(host), table_(host.operations()), counters_(host.live_counters()) {}
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Progress.

  // Operations whose bytes progress() moves.
  bool moving() const { return !incoming_.empty() || !outgoing_.empty(); }
  // Whether progress() would do something now.
  virtual bool has_work() const = 0;
  // Moves bytes, bounded. Returns how much it did.
  virtual size_t progress() = 0;
  // What takes bulk bytes.
  virtual Path bulk_path() const { return traits_.properties.path; }

  // Out.

  // Names the operation's memory in an offer whose payload does not ride along.
  virtual Started describe(Operation* op, wire::Offer& offer) = 0;
  // Such an offer has gone.
  virtual void offered(Operation* /*op*/, const wire::Offer& /*offer*/) {}
  // Offer::flags of an answer to a request of the peer.
  virtual uint8_t supply_flags(const Operation& op) const = 0;
  // Starts a tensor for the request `token`.
  virtual void start_supply(Operation* op, uint64_t /*token*/) { host_.start_or_queue(op); }
  // The peer asks for the DATA of an offer of ours.
  virtual Status on_pull(const wire::Want& want) = 0;
  // An offer of ours is void, the peer was sent CANCEL; `total` of them so far.
  virtual void count_withdrawals(uint64_t /*total*/) {}
  // Returns when the peer has ended the piece that it was copying, or the connection has.
  // Blocks: for milliseconds.
  virtual void await_copies() {}
  // On return what the link has of the operation's bytes is read from its memory no more.
  virtual void settle(const Operation& /*op*/) {}

  // In.

  // Errors: kCorrupt, of an offer that says of its bytes what cannot be on this path.
  virtual Status check_offer(const wire::Offer& offer) const = 0;
  // Gets the bytes of the offer op->peer_id, op->total of them, into the operation's buffers.
  virtual Status fetch(Operation* op, std::span<const wire::Segment> segments) = 0;
  // They follow the offer by themselves.
  virtual Status expect(Operation* op);
  // Completes a request without a destination by a view of the peer's memory. False: the bytes
  // have to be fetched.
  virtual Result<bool> deliver_view(Operation* /*op*/, const wire::Offer& /*offer*/) {
    return false;
  }
  // The peer has withdrawn an offer.
  virtual void offer_withdrawn() {}
  // `op` (null: none) was fetching it.
  virtual void cancel_incoming(uint64_t offer_id, Operation* op);

  // Requests for keys.

  // Names the destination to the peer. Errors: those of opening a window.
  virtual Status open_destination(Operation* /*op*/, Buffer& /*destination*/,
                                  wire::Want& /*message*/) {
    return Status();
  }
  // Of a request of the peer that names memory. Errors: kCorrupt.
  virtual Status check_want_windows(const wire::Want& want) const;
  virtual void keep_want_windows(const wire::Want& /*want*/) {}
  virtual void drop_want_windows(uint64_t /*token*/) {}
  // The peer gives up a request that may be being supplied.
  virtual void on_want_given_up(uint64_t /*token*/) {}

  // One-sided access.

  // Errors: kInvalidArgument, kAccessDenied, of a key that would end the connection.
  virtual Status check_key(const RemoteKey& /*key*/, Right /*right*/) const { return Status(); }
  virtual void start_read(Operation* op, const RemoteKey& key, uint64_t offset);
  virtual void start_write(Operation* op, const RemoteKey& /*key*/, uint64_t /*offset*/) {
    host_.start_or_queue(op);
  }
  // Requires: Capability::kAtomics.
  virtual void start_atomic(Operation* op, const RemoteKey& key, uint64_t offset,
                            const Atomic& request);
  // Errors: kCorrupt where the peer's device does that without a message.
  virtual Status check_remote(Right /*right*/) const { return Status(); }
  // Lets the peer's device reach a grant's memory, and says in `key` how.
  virtual Status open_grant(Grant& /*grant*/, RemoteKey& /*key*/) { return Status(); }
  // On return the peer's device does not reach it. Blocks: one system call.
  virtual Status close_grant(WindowId /*window*/) { return Status(); }
  // Revokes grants that are past their deadline; returns when to look again.
  virtual Instant expire_grants(Instant /*now*/) { return kNever; }

  // Ends of operations. Only for operations with `engaged` where the session says so.

  // The peer's memory is not needed any more (engaged).
  virtual void release_peer_memory(Operation* /*op*/) {}
  // The operation is over (engaged): nothing of it is kept.
  virtual void forget(Operation* op) { op->engaged = false; }
  // Before an operation with `engaged` completes. True: a device may reach its memory; it completes
  // with this status when none does.
  virtual bool fence(Operation* /*op*/, Status& /*status*/) { return false; }
  // Before an operation ends early. True: the transfer ends it. With `peer_answers` the peer may be
  // asked to let go.
  virtual bool fence_early(Operation* /*op*/, const Status& /*why*/, bool /*peer_answers*/) {
    return false;
  }
  // Of an operation in kFencing: the peer answers; its deadline has passed.
  virtual void answer_fence(Operation* /*op*/, const wire::Done& /*done*/) {}
  virtual void fence_overdue(Operation* /*op*/, Instant /*now*/) {}
  // Whether no operation is in kFencing.
  virtual bool all_fenced() const { return true; }
  // The peer has answered that it has all of our bytes.
  virtual void peer_took(Operation* /*op*/) {}

  // Ends of the connection.

  // Ends all access of devices to memory. False: one does not let go of what may_be_reached().
  virtual bool stop() { return true; }
  virtual bool may_be_reached(const Operation& /*op*/) { return false; }
  // stop() was called: for each operation, before it ends.
  virtual void link_stopped(Operation* /*op*/) {}
  virtual void clear() {}

 protected:
  // While the link calls.
  struct LinkCall {
    explicit LinkCall(TransferHost& h) : host(h) { host.begin_link_call(); }
    ~LinkCall() { host.end_link_call(); }
    TransferHost& host;
  };

  static void unlink(Operation* op) {
    if (op->list != nullptr) op->list->remove(op);
  }

  const LinkTraits traits_;
  TransferHost& host_;
  OperationTable& table_;
  EndpointCounters& counters_;
  OperationList incoming_;  // kPulling, where progress() moves the bytes
  OperationList outgoing_;  // kPushing
};

// For paths whose offers name memory: the two differ from streams in the same way.
Status check_offer_of_memory(const wire::Offer& offer);
uint8_t supply_flags_by_memory(const Operation& op, uint64_t inline_bytes);

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_TRANSFER_H_
