// Bulk over a byte stream: DATA messages from the sender's memory into the receiver's.
#ifndef SLUICE_PROTO_STREAM_TRANSFER_H_
#define SLUICE_PROTO_STREAM_TRANSFER_H_

#include <sluice/proto/arrivals.h>
#include <sluice/proto/transfer.h>

namespace sluice::proto {

class StreamTransfer final : public Transfer, private StreamClient {
 public:
  // The link's arrivals go to `session` and to the transfer from now on.
  StreamTransfer(StreamLink& link, LinkClient& session, const TransferParts& parts)
      : Transfer(parts), link_(link), incoming_(parts.incoming) {
    link.set_client(&session, this);
  }

  bool has_work() const override { return !pushing_.empty() && control_.takes_bulk(); }
  size_t progress() override;
  Started describe(Operation*, wire::Offer&) override { return Started::kSent; }
  void offered(Operation* op, const wire::Offer& offer) override;
  uint8_t supply_flags(const Operation& op) const override;
  Status on_pull(const wire::Want& want) override;
  bool outlives_link(const Operation& op) const override { return op.in_flight > 0; }
  void settle(const Operation& op) override { link_.settle(op.id); }
  Status check_offer(const wire::Offer& offer) const override;
  Status fetch(Operation* op, std::span<const wire::Segment> segments) override;
  Status expect(Operation* op) override;
  void on_want_given_up(uint64_t token) override;
  void forget(Operation* op) override;

 private:
  Placement place(uint64_t id, uint64_t offset, uint64_t length) override;
  Status placed(uint64_t id, uint64_t offset, uint64_t length, Instant now) override;
  void pushed(uint64_t cookie, uint64_t length, Instant now) override;
  Status note_arrival(Operation* op, uint64_t offset, uint64_t length);
  void start_pushing(Operation* op);
  bool push_chunk(Operation* op);

  StreamLink& link_;
  Incoming& incoming_;
  OperationStates<Arrivals> arrivals_;  // of operations whose bytes came out of order
  size_t runs_ = 0;                     // in all of arrivals_
  uint64_t chunks_ = 0;                 // that were pushed
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_STREAM_TRANSFER_H_
