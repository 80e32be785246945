// A transfer that moves nothing, and records what it is asked for.
#ifndef SLUICE_TESTS_PROTO_RECORDING_TRANSFER_H_
#define SLUICE_TESTS_PROTO_RECORDING_TRANSFER_H_

#include <cstdint>
#include <span>
#include <vector>

#include <sluice/proto/transfer.h>

namespace sluice::proto::test {

class RecordingTransfer final : public Transfer {
 public:
  explicit RecordingTransfer(const TransferParts& parts) : Transfer(parts) {}

  bool has_work() const override { return false; }
  size_t progress() override { return 0; }
  Started describe(Operation*, wire::Offer&) override { return Started::kSent; }
  uint8_t supply_flags(const Operation&) const override { return wire::Offer::kDataFollows; }
  Status on_pull(const wire::Want&) override { return Status(); }
  Status check_offer(const wire::Offer&) const override { return Status(); }
  Status fetch(Operation* op, std::span<const wire::Segment> segments) override {
    op->state = OperationState::kPlacing;
    fetched.push_back({op->id, op->peer_id, op->total, segments.size()});
    return Status();
  }
  void on_want_given_up(uint64_t token) override { given_up.push_back(token); }

  struct Fetch {
    OperationId id;
    uint64_t offer_id, total;
    size_t segments;
  };
  std::vector<Fetch> fetched;
  std::vector<uint64_t> given_up;
};

}  // namespace sluice::proto::test

#endif  // SLUICE_TESTS_PROTO_RECORDING_TRANSFER_H_
