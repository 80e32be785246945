// What a session offers to the peer: messages, writes and answers to its requests, eager or by
// rendezvous, in order. They wait here for credit or room.
#ifndef SLUICE_PROTO_SEND_QUEUE_H_
#define SLUICE_PROTO_SEND_QUEUE_H_

#include <cstdint>
#include <span>

#include <sluice/api/endpoint.h>
#include <sluice/proto/connection.h>
#include <sluice/proto/control_queue.h>
#include <sluice/proto/credits.h>
#include <sluice/proto/layout_numbers.h>
#include <sluice/proto/operations.h>
#include <sluice/proto/transfer.h>

namespace sluice::proto {

// Thread: the context's. Blocks: never.
class SendQueue {
 public:
  SendQueue(Connection& connection, Operations& operations, ControlQueue& control, Credits& credits,
            Transfer& transfer)
      : connection_(connection),
        operations_(operations),
        control_(control),
        credits_(credits),
        transfer_(transfer) {}

  // EndpointCore's.
  Result<OperationId> post_send(Tag tag, std::span<const Tensor> segments,
                                const PostOptions& options);

  // Sends keep their order. One that waits for credit holds up other sends only: the peer
  // may need an answer or a write before it posts the receive that gives the credit.
  void start_or_queue(Operation* op);
  // Starts what waits, as far as credit and room go.
  void run();
  // A CREDIT of the peer.
  void allow(const wire::Credit& credit);
  // Tells the peer that an offer is void. Over a path with views the peer stops copying at
  // once, whenever it reads the message.
  void withdraw(const Operation& op);
  uint64_t withdrawn() const { return withdrawn_; }

  // Whether something waits; whether run() may start it now, with room.
  bool waiting() const { return !queued_.empty(); }
  bool may_start() const { return waiting() && !waits_for_credit_ && !control_.offers_held(); }
  // Its first send waits for a CREDIT.
  bool waits_for_credit() const { return waits_for_credit_; }
  // A message that is over once it is on its way, and that only a full link holds up.
  bool leaves_with_room(const Operation& op) const;

 private:
  bool prefer_eager(uint64_t total) const;
  bool send_at_once(Tag tag, const Tensor& segment, OperationId& id);
  Started start(Operation* op);
  Started start_send(Operation* op);
  Started start_write(Operation* op);
  Started start_supply(Operation* op);
  Started offer(Operation* op, wire::Offer& offer);
  void say_layout(const TensorDescriptor& layout, wire::Offer& offer) const;

  Connection& connection_;
  Operations& operations_;
  ControlQueue& control_;
  Credits& credits_;
  Transfer& transfer_;
  OperationList queued_;
  LayoutNumbers numbers_;  // those that the peer knows
  bool waits_for_credit_ = false;
  uint64_t at_once_ = 0;    // sends that needed no operation
  uint64_t withdrawn_ = 0;  // offers, by CANCEL
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_SEND_QUEUE_H_
