// How operations end: by the peer's answer, or before their time, by cancel, deadline or the end of
// the connection.
#ifndef SLUICE_PROTO_OPERATION_ENDS_H_
#define SLUICE_PROTO_OPERATION_ENDS_H_

#include <sluice/proto/connection.h>
#include <sluice/proto/control_queue.h>
#include <sluice/proto/incoming.h>
#include <sluice/proto/operations.h>
#include <sluice/proto/send_queue.h>
#include <sluice/proto/transfer.h>
#include <sluice/proto/unexpected.h>

namespace sluice::proto {

// Thread: the context's. Blocks: never.
class OperationEnds {
 public:
  OperationEnds(Connection& connection, Operations& operations, ControlQueue& control,
                SendQueue& sends, Incoming& incoming, Transfer& transfer)
      : connection_(connection),
        operations_(operations),
        control_(control),
        sends_(sends),
        incoming_(incoming),
        transfer_(transfer) {}

  // Answers of the peer. Errors: kCorrupt.
  Status on_done(const wire::Done& done);
  void on_release(const wire::Release& release);
  // The peer withdraws an offer whose bytes may be on their way.
  void on_offer_withdrawn(uint64_t offer_id);

  // Errors: kInvalidArgument.
  Status cancel(OperationId id);
  // Ends an operation before its time; where the peer may have it, it is told, and the
  // outcome is unknown unless it is certain that nothing can have been delivered.
  void end_early(Operation* op, const Status& why);
  // Ends all. Of a dead link nothing is asked, and the peer is not told.
  void fail_all(const Status& why);

  struct Overdue {
    Instant next = kNever;  // when to look again
    bool waiting = false;   // something waits for the peer
  };
  // Ends what is past its deadline. The text names what came instead, of `unexpected`, and whether
  // the peer is silent.
  Overdue end_overdue(Instant now, UnexpectedQueue& unexpected, bool peer_silent);

  // Nobody else gets the memory that the peer's device, or the peer, may still reach.
  void quarantine_reachable();
  void quarantine_loans();

 private:
  Status on_done_of_source(Operation* op, Code code);

  Connection& connection_;
  Operations& operations_;
  ControlQueue& control_;
  SendQueue& sends_;
  Incoming& incoming_;
  Transfer& transfer_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_OPERATION_ENDS_H_
