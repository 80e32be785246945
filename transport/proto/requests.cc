#include <sluice/proto/requests.h>

#include <span>
#include <string>
#include <utility>

#include <sluice/base/checked.h>
#include <sluice/base/fault_point.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

Status check_key(const WantOptions& want) {
  if (want.key_id < kMaxKeyIds && want.key.size() <= kMaxKeyBytes) return Status();
  return invalid("keys have up to 255 bytes and ids below 65536");
}

Status outside_grant(const std::string& what, uint64_t offset, const RemoteKey& key) {
  return Status(Code::kAccessDenied, Scope::kOperation, kOrigin,
                what + " at " + std::to_string(offset) + " is outside the granted " +
                    std::to_string(key.length) + " bytes");
}
// A function of its own, so that the callers need no room for its texts.
[[gnu::cold, gnu::noinline]] Status outside_grant(const char* what, uint64_t bytes, uint64_t offset,
                                                  const RemoteKey& key) {
  return outside_grant(std::string(what) + " of " + std::to_string(bytes) + " bytes", offset, key);
}

Status wrong_number(const wire::Offer& offer, const std::string& what) {
  return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                "OFFER of " + std::to_string(offer.total) + " bytes with layout number " +
                    std::to_string(offer.layout_number) + ", which " + what);
}

}  // namespace

Result<OperationId> Requests::post_read(const RemoteKey& key, uint64_t offset, Buffer& into,
                                        const PostOptions& options) {
  if (connection_.state != EndpointState::kConnected) [[unlikely]]
    return connection_.check_connected();
  if (!range_fits(offset, into.size_bytes(), key.length)) [[unlikely]]
    return outside_grant("read", into.size_bytes(), offset, key);
  SLUICE_RETURN_IF_ERROR(transfer_.check_key(key, Right::kRead));
  SLUICE_TRY(Operation * op, operations_.take(OperationKind::kRead, options));
  op->total = into.size_bytes();
  op->completion.receipt.bytes = op->total;
  op->completion.buffers.emplace_back(std::move(into));
  OperationId id = op->id;
  transfer_.start_read(op, key, offset);
  return id;
}

Result<OperationId> Requests::post_write(const RemoteKey& key, uint64_t offset, Tensor& from,
                                         const PostOptions& options) {
  if (connection_.state != EndpointState::kConnected) [[unlikely]]
    return connection_.check_connected();
  if (!range_fits(offset, from.size_bytes(), key.length)) [[unlikely]]
    return outside_grant("write", from.size_bytes(), offset, key);
  SLUICE_RETURN_IF_ERROR(transfer_.check_key(key, Right::kWrite));
  SLUICE_TRY(Operation * op, operations_.take(OperationKind::kWrite, options));
  op->level = Level::kPlaced;
  op->grant = key.grant;
  op->grant_epoch = key.epoch;
  op->grant_offset = offset;
  op->total = from.size_bytes();
  op->completion.receipt.bytes = op->total;
  op->tensors.emplace_back(std::move(from));
  OperationId id = op->id;
  if (!transfer_.start_write(op, key, offset)) sends_.start_or_queue(op);
  return id;
}

Result<OperationId> Requests::post_atomic(const RemoteKey& key, uint64_t offset,
                                          const Atomic& request, Buffer& result,
                                          const PostOptions& options) {
  SLUICE_RETURN_IF_ERROR(connection_.check_connected());
  if (!connection_.traits.properties.capabilities.has(Capability::kAtomics)) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "path " + std::string(to_string(connection_.traits.properties.path)) +
                      " has no atomics; connect by rdma:// over a device that has them");
  }
  SLUICE_RETURN_IF_ERROR(transfer_.check_key(key, Right::kAtomic));
  if (!range_fits(offset, 8, key.length)) return outside_grant("an atomic", offset, key);
  if ((key.address + offset) % 8 != 0)
    return invalid("an atomic needs an address that is a multiple of 8");
  if (result.size_bytes() < 8) return invalid("the result of an atomic needs 8 bytes");
  SLUICE_TRY(Operation * op, operations_.take(OperationKind::kAtomic, options));
  op->total = 8;
  op->completion.receipt.bytes = 8;
  op->completion.buffers.emplace_back(std::move(result));
  OperationId id = op->id;
  transfer_.start_atomic(op, key, offset, request);
  return id;
}

Result<OperationId> Requests::post_want(WantOptions& want, const PostOptions& options) {
  SLUICE_RETURN_IF_ERROR(connection_.check_connected());
  SLUICE_RETURN_IF_ERROR(check_key(want));
  if (want.destination && !want.destination.descriptor().is_compact()) {
    return invalid("a destination must be compact (row-major without gaps)");
  }
  SLUICE_TRY(Operation * op, operations_.take(OperationKind::kWant, options));
  wire::Want message{.id = op->id,
                     .about = wire::KeyWant{.key_id = want.key_id, .step = want.step},
                     .key = want.key};
  if (want.destination) {
    message.into = true;
    message.has_layout = true;
    message.layout = want.destination.descriptor();
    Status opened = transfer_.open_destination(op, want.destination, message);
    if (!opened.ok()) {
      operations_.take_back(op);
      return opened;
    }
    op->completion.buffers.emplace_back(std::move(want.destination));
  }
  fault_point("session.want");
  control_.send(message);
  return op->id;
}

Result<size_t> Requests::post_wants(const WantOptions& want, std::span<const PostOptions> options,
                                    std::span<OperationId> ids) {
  SLUICE_RETURN_IF_ERROR(connection_.check_connected());
  SLUICE_RETURN_IF_ERROR(check_key(want));
  size_t posted = 0;
  for (; posted < options.size(); ++posted) {
    Result<Operation*> op = operations_.take(OperationKind::kWant, options[posted]);
    if (!op.ok() && posted == 0) return op.status();
    if (!op.ok()) break;
    ids[posted] = (*op)->id;
  }
  fault_point("session.want");
  wire::Want message{.id = ids[0],
                     .about = wire::KeyWant{.key_id = want.key_id, .step = want.step},
                     .key = want.key};
  const bool together = connection_.peer_can(wire::kFeatureSteps);
  if (together) message.following = wire::IdList(ids.subspan(1, posted - 1));
  control_.send(message);
  for (size_t i = 1; !together && i < posted; ++i) {
    control_.send(wire::Want{.id = ids[i],
                             .about = wire::KeyWant{.key_id = want.key_id, .step = want.step + i}});
  }
  return posted;
}

// Of an offer that numbers its layout: keeps that, or puts in the one that was kept.
Status Requests::take_number(wire::Offer& offer) {
  if (offer.has_layout) {
    layouts_.keep(offer.layout_number, offer.layout);
    return Status();
  }
  const TensorDescriptor* kept = layouts_.find(offer.layout_number);
  if (kept == nullptr) return wrong_number(offer, "stands for none");
  if (kept->span_bytes() != offer.total) return wrong_number(offer, "is " + kept->to_string());
  offer.layout = *kept;
  offer.has_layout = true;
  return Status();
}

Status Requests::on_answer(wire::Offer& offer, PayloadReader& payload) {
  if (offer.layout_number != 0) SLUICE_RETURN_IF_ERROR(take_number(offer));
  const bool read = offer.about.kind() == wire::OfferKind::kRead;
  Operation* op = operations_.find(read ? offer.about.read().want : offer.about.supply().want);
  OperationKind kind = read ? OperationKind::kRead : OperationKind::kWant;
  if (op == nullptr || op->kind != kind || op->state != OperationState::kPosted) {
    control_.send_done(offer.id, Code::kCancelled, 0);  // ours ended meanwhile
    return Status();
  }
  op->peer_id = offer.id;
  bool has_destination = !op->completion.buffers.empty();
  if (read && offer.total != op->total) return corrupt("a read answered with another length");
  if (has_destination && !read) {
    const TensorDescriptor& ours = op->completion.buffers[0].descriptor();
    if (!offer.layout.is_compact() || !ours.same_layout(offer.layout)) {
      control_.send_done(offer.id, Code::kInvalidArgument, 0);
      incoming_.conclude(op, Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                                    "the tensor is " + offer.layout.to_string() +
                                        ", the destination " + ours.to_string()));
      return Status();
    }
  }
  op->total = offer.total;
  op->completion.receipt.bytes = offer.total;
  if (!has_destination) {
    SLUICE_TRY(bool viewed, transfer_.deliver_view(op, offer));
    if (viewed) return Status();
    Status room = incoming_.make_destination(op, offer);
    if (!room.ok()) {
      control_.send_done(offer.id, room.code(), 0);
      incoming_.conclude(op, room);
      return Status();
    }
    if (op->room) {
      incoming_.await_room(op, offer);
      return Status();
    }
  }
  const bool is_inline = (offer.flags & wire::Offer::kInline) != 0;
  if (is_inline || offer.segment_count > 0) return incoming_.accept(op, offer, payload);
  op->moved = 0;
  operations_.index_by_peer_id(op);
  return transfer_.expect(op);
}

}  // namespace sluice::proto
