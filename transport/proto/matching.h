// Tag matching: receives that wait for a message, and unexpected messages that wait for a receive,
// both in order.
#ifndef SLUICE_PROTO_MATCHING_H_
#define SLUICE_PROTO_MATCHING_H_

#include <cstdint>
#include <span>

#include <sluice/api/endpoint.h>
#include <sluice/base/id_index.h>
#include <sluice/proto/connection.h>
#include <sluice/proto/control_queue.h>
#include <sluice/proto/credits.h>
#include <sluice/proto/incoming.h>
#include <sluice/proto/operations.h>
#include <sluice/proto/unexpected.h>

namespace sluice::proto {

// Thread: the context's. Blocks: never.
class Matching {
 public:
  // `secret`: random; the peer does not know it.
  Matching(Connection& connection, Operations& operations, ControlQueue& control, Credits& credits,
           Incoming& incoming, uint64_t secret);

  // EndpointCore's.
  Result<OperationId> post_receive(TagMatch match, std::span<Buffer> segments,
                                   const PostOptions& options);

  // A message of the peer. Errors: kCorrupt (beyond its credit), kNoMemory.
  Status on_message(const wire::TaggedInline& message, PayloadReader& payload);
  Status on_offer(const wire::Offer& offer, PayloadReader& payload);
  // The peer withdraws an offer. False: it is not here.
  bool withdraw(uint64_t offer_id);

  // Messages that have come whole can be received after the end of the connection.
  bool has_unexpected() const { return !unexpected_.empty(); }
  // What no receive has taken yet.
  UnexpectedQueue& unexpected() { return unexpected_; }
  // The connection is over: the bytes of offers are out of reach.
  void drop_offers();
  void clear();

 private:
  Operation* match_posted(Tag tag, uint64_t total);
  bool take_credit(uint64_t eager_bytes);
  void widen_credit();
  void consumed(uint64_t eager_bytes) {
    if (credits_.consume(eager_bytes)) [[unlikely]]
      control_.send(credits_.grant());
  }
  Status take_unexpected(Operation* op, UnexpectedQueue::Iterator message);
  Status store(const wire::TaggedInline& message, PayloadReader& payload);
  Result<Unexpected*> store(uint64_t offer_id, Tag tag, uint64_t total, uint64_t kept);
  void drop(UnexpectedQueue::Iterator message);
  Status keep(uint64_t bytes);
  void let_go(uint64_t bytes);

  Connection& connection_;
  Operations& operations_;
  ControlQueue& control_;
  Credits& credits_;
  Incoming& incoming_;
  OperationList posted_;  // receives waiting for a message
  UnexpectedQueue unexpected_;
  IdIndex<Unexpected> offers_;  // of those, what a CANCEL may name
  uint64_t kept_ = 0;           // bytes in the queue
  uint64_t charged_ = 0;        // of those, to the peer's account
  uint64_t widened_ = 0;        // charged too: what the peer may make us keep by wider credit
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_MATCHING_H_
