// Bulk by devices: windows of memory are opened for the peer's device, ours reads and writes the
// peer's, and no memory goes back to its owner while either may reach it.
#ifndef SLUICE_PROTO_DEVICE_TRANSFER_H_
#define SLUICE_PROTO_DEVICE_TRANSFER_H_

#include <sluice/proto/device_access.h>
#include <sluice/proto/transfer.h>

namespace sluice::proto {

class DeviceTransfer final : public Transfer, private DeviceClient {
 public:
  // The link's arrivals go to `session` and to the transfer from now on.
  DeviceTransfer(DeviceLink& link, LinkClient& session, const TransferParts& parts)
      : Transfer(parts), link_(link), incoming_(parts.incoming) {
    link.set_client(&session, this);
  }

  bool has_work() const override { return moving() && !control_.blocked(); }
  size_t progress() override { return post_some(pulling_) + post_some(pushing_); }
  Path bulk_path() const override { return link_.bulk_path(); }
  bool reaches(DeviceStorage& memory) override { return link_.reaches(memory); }

  Started describe(Operation* op, wire::Offer& offer) override;
  uint8_t supply_flags(const Operation& op) const override {
    return supply_flags_by_memory(op, traits_.inline_bytes);
  }
  bool start_supply(Operation* op, uint64_t token) override;
  Status on_pull(const wire::Want& want) override;

  Status check_offer(const wire::Offer& offer) const override {
    return check_offer_of_memory(offer);
  }
  Status fetch(Operation* op, std::span<const wire::Segment> segments) override;
  void cancel_incoming(uint64_t offer_id, Operation* op) override;

  Status open_destination(Operation* op, Buffer& destination, wire::Want& message) override;
  Status check_want_windows(const wire::Want&) const override { return Status(); }
  void keep_want_windows(const wire::Want& want) override { want_windows_.keep(want); }
  void drop_want_windows(uint64_t token) override { want_windows_.drop(token); }
  void on_want_given_up(uint64_t token) override;

  Status check_key(const RemoteKey& key, Right right) const override {
    return check_device_key(key, right);
  }
  void start_read(Operation* op, const RemoteKey& key, uint64_t offset) override {
    start_one_sided(op, key, offset, OperationState::kPulling);
  }
  bool start_write(Operation* op, const RemoteKey& key, uint64_t offset) override {
    start_one_sided(op, key, offset, OperationState::kPushing);
    return true;
  }
  void start_atomic(Operation* op, const RemoteKey& key, uint64_t offset,
                    const Atomic& request) override;
  Status check_remote(Right right) const override;
  Status open_grant(Grant& grant, RemoteKey& key) override;
  Status close_grant(WindowId window) override { return link_.revoke_window(window); }
  bool device_reaches_grants() const override { return true; }

  void forget(Operation* op) override;
  bool fence(Operation* op, Status& status) override;
  bool fence_early(Operation* op, const Status& why, bool peer_answers) override;
  void answer_fence(Operation* op, const wire::Done& done) override;
  void fence_overdue(Operation* op, Instant now) override;
  bool all_fenced() const override { return fencing_ == 0; }
  // The peer pulled it: what that cost here nothing else has told.
  void peer_took(Operation* op) override {
    if (windows_open(*op) > 0) count_sent(op, op->total);
  }

  bool stop() override { return link_.stop(); }
  bool may_be_reached(const Operation& op) override;
  void link_stopped(Operation* op) override;
  void clear() override { want_windows_.clear(); }

 private:
  void transfer_done(uint64_t cookie, uint64_t length, const Status& status, Instant now) override;
  Status arrived(uint32_t notice, Instant now) override;
  void window_closed(uint64_t cookie, Instant now) override;

  // Its part of an operation; not empty unless it is `engaged`.
  DeviceAccess& access(Operation* op) {
    op->engaged = true;
    return accesses_.of(*op);
  }
  uint32_t windows_open(const Operation& op) {
    return op.engaged ? accesses_.of(op).windows_open : 0;
  }
  void close_windows(Operation* op);
  void start_moving(Operation* op, OperationState state);
  void start_one_sided(Operation* op, const RemoteKey& key, uint64_t offset, OperationState state);
  bool post_whole(Operation* op, const wire::Segment& peer);
  size_t post_some(OperationList& list);
  void note_posted(OperationList& list, Operation* op);
  Result<bool> post_chunk(Operation* op);
  Result<bool> hand_to_link(Operation* op, const DeviceAccess& theirs, DeviceAccess::Chunk& chunk);
  bool leave_in_steps(Operation* op, const wire::Segment& peer);
  Result<bool> hand_whole_to_link(Operation* op, const wire::Segment& peer);
  void transfer_failed(Operation* op, uint64_t length, const Status& status);
  void give_up_moving(Operation* op, const Status& why);
  void count_moved(Operation* op, uint64_t bytes, const CopyCost& cost);
  void count_received(Operation* op, uint64_t bytes);
  void count_sent(Operation* op, uint64_t bytes);
  void start_fence(Operation* op, Status status);
  void end_fence(Operation* op);

  DeviceLink& link_;
  Incoming& incoming_;
  OperationStates<DeviceAccess> accesses_;
  WantWindows want_windows_;
  uint32_t fencing_ = 0;  // operations in kFencing
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_DEVICE_TRANSFER_H_
