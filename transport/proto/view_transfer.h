// Bulk through memory that both ends map: the receiver copies out of the sender's arena, or looks
// at it in place.
#ifndef SLUICE_PROTO_VIEW_TRANSFER_H_
#define SLUICE_PROTO_VIEW_TRANSFER_H_

#include <sluice/proto/transfer.h>
#include <sluice/runtime/helper_thread.h>

namespace sluice::proto {

class ViewTransfer final : public Transfer, private ViewClient {
 public:
  // The link's arrivals go to `session` and to the transfer from now on.
  ViewTransfer(ViewLink& link, LinkClient& session, const TransferParts& parts)
      : Transfer(parts), link_(link), incoming_(parts.incoming), views_(parts.views) {
    link.set_client(&session, this);
  }

  bool has_work() const override { return !pulling_.empty() && !copies_held_; }
  size_t progress() override;
  Started describe(Operation* op, wire::Offer& offer) override;
  void offered(Operation* op, const wire::Offer& offer) override {
    op->loaned = offer.segment_count > 0;
  }
  uint8_t supply_flags(const Operation& op) const override {
    return supply_flags_by_memory(op, traits_.inline_bytes);
  }
  Status on_pull(const wire::Want& want) override;
  void count_withdrawals(uint64_t total) override { link_.count_withdrawals(total); }
  Status await_copies() override;
  Status check_offer(const wire::Offer& offer) const override {
    return check_offer_of_memory(offer);
  }
  Status fetch(Operation* op, std::span<const wire::Segment> segments) override;
  Result<bool> deliver_view(Operation* op, const wire::Offer& offer) override;
  void offer_withdrawn() override;
  void release_peer_memory(Operation* op) override;
  void forget(Operation* op) override {
    release_peer_memory(op);
    op->engaged = false;
  }

 private:
  bool copies_pending() const override { return has_work(); }
  HelperThread* helper() const;
  // What an operation that copies from the peer's memory has beside the rest.
  struct Pull {
    InlineVector<ImportedRun, 1> runs;
    InlineVector<uint64_t, 1> lengths;
    bool past_caches = false;  // how it is copied
  };
  Status move_to_arena(Tensor& tensor, Operation* op);
  void copy_piece(Operation* op, const Pull& pull, uint64_t& budget);

  ViewLink& link_;
  Incoming& incoming_;
  ViewPool& views_;
  OperationStates<Pull> pulls_;
  uint64_t withdrawals_seen_ = 0;  // the peer's
  // The peer has withdrawn an offer: nothing is copied before we know which.
  bool copies_held_ = false;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_VIEW_TRANSFER_H_
