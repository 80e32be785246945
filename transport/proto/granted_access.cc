#include <sluice/proto/granted_access.h>

#include <algorithm>
#include <array>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/runtime/peer_account.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

Counter access_denied("session.access_denied");
Counter grants_expired("session.grants_expired");

}  // namespace

Result<RemoteKey> GrantedAccess::add(const StorageRef& storage, std::byte* data, uint64_t length,
                                     const GrantOptions& options) {
  SLUICE_RETURN_IF_ERROR(connection_.check_connected());
  if (!storage) return invalid("an empty buffer cannot be granted");
  if (DeviceStorage* device = DeviceStorage::of(storage);
      device != nullptr && !transfer_.reaches(*device)) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "a peer reaches device memory only over an RDMA device that imports its dma-buf; "
                  "send or publish it, or grant host memory");
  }
  bool atomics = connection_.traits.properties.capabilities.has(Capability::kAtomics);
  if (has_right(options.rights, Right::kAtomic) && !atomics) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "this path has no atomics; connect by rdma:// over a device that has them");
  }
  SLUICE_RETURN_IF_ERROR(connection_.account->charge(PeerResource::kGrants));
  PeerCharge charge(connection_.account, PeerResource::kGrants);
  Grant grant{.storage = storage,
              .data = data,
              .length = length,
              .rights = options.rights,
              .deadline = options.deadline};
  grant.charge = std::move(charge);
  RemoteKey device;
  SLUICE_RETURN_IF_ERROR(transfer_.open_grant(grant, device));
  WindowId opened = grant.window;
  Result<RemoteKey> key = grants_.add(std::move(grant));
  if (!key.ok()) {
    (void)transfer_.close_grant(opened);
    return key;
  }
  key->address = device.address;
  key->device_key = device.device_key;
  return key;
}

Result<RemoteKey> GrantedAccess::grant(const Tensor& memory, const GrantOptions& options) {
  if (options.rights != Right::kRead)
    return invalid("a tensor is immutable: it can be granted for reading only");
  return add(memory.storage(), const_cast<std::byte*>(memory.data()), memory.size_bytes(), options);
}

Status GrantedAccess::revoke(uint64_t number) {
  const Grant* grant = grants_.find(number);
  if (grant == nullptr) return invalid("no such grant; it was revoked before");
  if (!connection_.link_dead) {
    Status closed = transfer_.close_grant(grant->window);
    if (!closed.ok()) connection_.fail(closed);  // the only fence that is left
  }
  grants_.remove(number);
  // Writes through it run on this thread only: ending them here is the fence. Reads are stopped
  // below; of what the peer copies by itself we wait for the end of a piece.
  const uint64_t withdrawn = sends_.withdrawn();
  operations_.for_each([&](Operation& op) {
    if (!op.internal || op.grant != number || connection_.link_dead) return;
    if (op.kind == OperationKind::kSupply) return stop_read(&op);
    control_.send_done(op.peer_id, Code::kAccessDenied, 0);
    if (!connection_.link_dead) operations_.release(&op);  // else all of them ended
  });
  if (withdrawn == sends_.withdrawn() || connection_.link_dead) return Status();
  return transfer_.await_copies();
}

// A read of the peer whose grant is void. What the link has of its bytes it keeps as they
// are now; the rest never leaves.
void GrantedAccess::stop_read(Operation* op) {
  if (op->in_flight > 0) transfer_.settle(*op);
  const bool under_way =
      op->state == OperationState::kQueued || op->state == OperationState::kPushing;
  if (under_way) control_.send_done(op->peer_id, Code::kAccessDenied, 0);
  if (op->loaned && !connection_.link_dead) sends_.withdraw(*op);
  if (!under_way || connection_.link_dead) return;
  operations_.release_or_linger(op);
}

void GrantedAccess::refuse(uint64_t request) {
  access_denied.add();
  control_.send_done(request, Code::kAccessDenied, 0);
}

Result<Operation*> GrantedAccess::take(OperationKind kind, const Grant& grant, uint64_t offset,
                                       uint64_t length) {
  SLUICE_TRY(Operation * op, operations_.take_internal(kind));
  op->total = length;
  std::array<int64_t, 1> shape = {static_cast<int64_t>(length)};
  std::array<int64_t, 1> stride = {1};
  uint64_t byte_offset = static_cast<uint64_t>(grant.data - grant.storage->data()) + offset;
  auto range = TensorDescriptor::strided(shape, stride, uint8, byte_offset);
  if (!range.ok()) {
    operations_.take_back(op);
    return range.status();
  }
  if (kind == OperationKind::kReceive) {
    op->completion.buffers.emplace_back(grant.storage, *range);
  } else {
    op->tensors.emplace_back(grant.storage, *range);
  }
  return op;
}

Status GrantedAccess::on_write(const wire::Offer& offer, PayloadReader& payload) {
  const wire::WriteOffer write = offer.about.write();
  SLUICE_RETURN_IF_ERROR(transfer_.check_remote(Right::kWrite));
  const Grant* grant = grants_.check(write.grant, write.epoch, Right::kWrite, write.offset,
                                     offer.total, [&] { return connection_.exact_now(); });
  if (grant == nullptr) {
    refuse(offer.id);
    return Status();
  }
  Result<Operation*> taken = take(OperationKind::kReceive, *grant, write.offset, offer.total);
  if (!taken.ok()) {
    control_.send_done(offer.id, Code::kTryAgain, 0);
    return Status();
  }
  (*taken)->grant = write.grant;
  (*taken)->peer_id = offer.id;
  return incoming_.accept(*taken, offer, payload);
}

Status GrantedAccess::on_read(const wire::Want& want) {
  const wire::ReadWant read = want.about.read();
  SLUICE_RETURN_IF_ERROR(transfer_.check_remote(Right::kRead));
  const Grant* grant = grants_.check(read.grant, read.epoch, Right::kRead, read.offset, read.length,
                                     [&] { return connection_.exact_now(); });
  if (grant == nullptr) {
    refuse(want.id);
    return Status();
  }
  Result<Operation*> taken = take(OperationKind::kSupply, *grant, read.offset, read.length);
  if (!taken.ok()) {
    control_.send_done(want.id, Code::kTryAgain, 0);
    return Status();
  }
  (*taken)->grant = read.grant;
  (*taken)->peer_id = want.id;
  operations_.index_by_peer_id(*taken);
  sends_.start_or_queue(*taken);
  return Status();
}

Instant GrantedAccess::expire(Instant now) {
  Instant next = kNever;
  if (!transfer_.device_reaches_grants()) return next;
  std::vector<uint64_t> expired;
  grants_.for_each([&](uint64_t number, const Grant& grant) {
    if (grant.deadline > now) {
      next = std::min(next, grant.deadline);
    } else {
      expired.push_back(number);
    }
  });
  for (uint64_t number : expired) {
    grants_expired.add();
    (void)revoke(number);
  }
  return next;
}

void GrantedAccess::quarantine() {
  grants_.for_each(
      [&](uint64_t, const Grant& grant) { connection_.link.quarantine(grant.storage); });
}

}  // namespace sluice::proto
