// How payload that is too large for a control message gets to the other end: one class for each
// kind of path. A session has one Transfer and asks it wherever kinds of paths differ.
//
// It moves bytes and nothing else: matching, credits, deadlines and closing are other parts of the
// session.
#ifndef SLUICE_PROTO_TRANSFER_H_
#define SLUICE_PROTO_TRANSFER_H_

#include <cstdint>
#include <span>

#include <sluice/allocator/device_storage.h>
#include <sluice/api/endpoint.h>
#include <sluice/proto/connection.h>
#include <sluice/proto/control_queue.h>
#include <sluice/proto/grants.h>
#include <sluice/proto/operation_table.h>
#include <sluice/proto/operations.h>
#include <sluice/proto/peer_view.h>
#include <sluice/spi/link.h>

namespace sluice::proto {

// What became of an operation that was to start.
enum class Started : uint8_t {
  kSent,
  kBlocked,  // no room or no credit now: it stays in the queue
  kFailed,   // it is completed with the reason
};

class Incoming;

// The parts of a session that a transfer uses. They outlive its last call; its constructor does
// not call them.
struct TransferParts {
  Connection& connection;
  Operations& operations;
  ControlQueue& control;
  Incoming& incoming;
  ViewPool& views;
};

// The base has what most kinds do: nothing. Thread: the context's. Blocks: never, where not said.
class Transfer : public OperationKeeper {
 public:
  explicit Transfer(const TransferParts& parts)
      : connection_(parts.connection),
        traits_(parts.connection.traits),
        counters_(parts.connection.counters),
        operations_(parts.operations),
        control_(parts.control) {}
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Progress.

  // Operations whose bytes progress() moves.
  bool moving() const { return !pulling_.empty() || !pushing_.empty(); }
  // Whether progress() would do something now.
  virtual bool has_work() const = 0;
  // Moves bytes, bounded. Returns how much it did.
  virtual size_t progress() = 0;
  // What takes bulk bytes.
  virtual Path bulk_path() const { return traits_.properties.path; }

  // Whether the path reads and writes device memory where it is.
  virtual bool reaches(DeviceStorage& /*memory*/) { return false; }

  // Out.

  // Names the operation's memory in an offer whose payload does not ride along.
  virtual Started describe(Operation* op, wire::Offer& offer) = 0;
  // Such an offer has gone.
  virtual void offered(Operation* /*op*/, const wire::Offer& /*offer*/) {}
  // Offer::flags of an answer to a request of the peer.
  virtual uint8_t supply_flags(const Operation& op) const = 0;
  // Moves a tensor to where the request `token` wants it. False: it has to be offered.
  virtual bool start_supply(Operation* /*op*/, uint64_t /*token*/) { return false; }
  // The peer asks for the DATA of an offer of ours.
  virtual Status on_pull(const wire::Want& want) = 0;
  // An offer of ours is void, the peer was sent CANCEL; `total` of them so far.
  virtual void count_withdrawals(uint64_t /*total*/) {}
  // Returns when the peer has ended the piece that it was copying. Blocks: for milliseconds.
  // Errors: kTimedOut: it has not. The connection has ended; the copy may go on.
  virtual Status await_copies() { return Status(); }
  // What the link has of the operation's bytes may be read after it is closed: it keeps the memory.
  virtual bool outlives_link(const Operation& /*op*/) const { return false; }
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
  // False: the write has to be offered.
  virtual bool start_write(Operation* /*op*/, const RemoteKey& /*key*/, uint64_t /*offset*/) {
    return false;
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
  // Whether it would go on doing so after a grant's deadline.
  virtual bool device_reaches_grants() const { return false; }

  // Ends of operations. Only for operations with `engaged` where the session says so.

  // The peer's memory is not needed any more (engaged).
  virtual void release_peer_memory(Operation* /*op*/) {}
  void forget(Operation* op) override { op->engaged = false; }
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
  Connection& connection_;
  const LinkTraits& traits_;
  EndpointCounters& counters_;
  Operations& operations_;
  ControlQueue& control_;
  OperationList pulling_;  // kPulling, where progress() moves the bytes
  OperationList pushing_;  // kPushing
};

// For paths whose offers name memory: the two differ from streams in the same way.
Status check_offer_of_memory(const wire::Offer& offer);
uint8_t supply_flags_by_memory(const Operation& op, uint64_t inline_bytes);

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_TRANSFER_H_
