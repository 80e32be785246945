#include <sluice/collective/group.h>

#include <numeric>
#include <utility>

#include "transport/collective/algorithms.h"

namespace sluice {
namespace {
constexpr const char* kOrigin = "collective/group";

Status invalid(std::string what) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, std::move(what));
}
Status outside() {
  return invalid(
      "a region lies outside its buffer, or in device memory; copy that to host memory first");
}

// The parts of `whole`, one after the other; `sizes` fill it.
std::vector<Region> cut(const Region& whole, std::span<const uint64_t> sizes) {
  std::vector<Region> parts;
  size_t at = 0;
  for (uint64_t size : sizes) {
    parts.push_back(whole.part(at, size));
    at += size;
  }
  return parts;
}

bool overlap(const Region& a, const Region& b) {
  return a.bytes() > 0 && b.bytes() > 0 && a.data() < b.data() + b.bytes() &&
         b.data() < a.data() + a.bytes();
}

// True if `sizes` are as many as ranks and add up to `bytes`.
bool fills(std::span<const uint64_t> sizes, int ranks, uint64_t bytes) {
  if (sizes.size() != static_cast<size_t>(ranks)) return false;
  uint64_t left = bytes;
  for (uint64_t size : sizes) {
    if (size > left) return false;
    left -= size;
  }
  return left == 0;
}
}  // namespace

using internal::Call;
using internal::Kind;

Group::Group(std::unique_ptr<internal::Mesh> mesh) : mesh_(std::move(mesh)) {}
Group::~Group() = default;

int Group::rank() const { return mesh_->rank(); }
int Group::size() const { return mesh_->size(); }
Path Group::path() const { return mesh_->path(); }
bool Group::one_host() const { return mesh_->views(); }
Status Group::broken() const { return mesh_->broken(); }

Status Group::close(Instant deadline) {
  // A barrier: what came before it has ended on every rank.
  Status met;
  if (mesh_->usable().ok()) met = barrier_and_wait(deadline).status();
  Status closed = mesh_->close(deadline);
  return met.ok() ? closed : met;
}

Result<Call> Group::begin(Call call) {
  SLUICE_RETURN_IF_ERROR(mesh_->usable());
  call.number = next_number_++;
  call.history = internal::history_of(digest_);
  digest_ = internal::digest_with(digest_, call);
  return call;
}

Status Group::check_rank(int rank, const char* what) const {
  if (rank >= 0 && rank < size()) return Status();
  return invalid(std::string(what) + " " + std::to_string(rank) + " is no rank of a group of " +
                 std::to_string(size()));
}

Status Group::check_elements(const Region& data, DataType dtype, ReduceOp op) const {
  if (!data.valid()) return outside();
  SLUICE_RETURN_IF_ERROR(check_reducible(dtype, op));
  const size_t element = dtype.size_bytes();
  if (data.bytes() % element != 0)
    return invalid(std::to_string(data.bytes()) + " bytes are no whole number of " +
                   dtype.to_string());
  const size_t alignment = dtype.code == TypeCode::kComplex ? element / 2 : element;
  if (reinterpret_cast<uintptr_t>(data.data()) % alignment != 0)
    return invalid("the region is not aligned to " + std::to_string(alignment) + " bytes, as " +
                   dtype.to_string() + " needs");
  return Status();
}

Task<Group::Outcome> Group::allreduce(Region data, DataType dtype, ReduceOp op, Instant deadline) {
  if (Status bad = check_elements(data, dtype, op); !bad.ok()) return internal::failed(bad);
  Result<Call> call = begin({.kind = Kind::kAllreduce,
                             .op = op,
                             .dtype = dtype,
                             .bytes = data.bytes(),
                             .deadline = deadline});
  if (!call.ok()) return internal::failed(call.status());
  const bool small = data.bytes() <= internal::kSlotBytes;
  if (mesh_->views() || size() == 1)
    return small ? internal::reduce_in_slots(*mesh_, *call, std::move(data), -1)
                 : internal::reduce_in_place(*mesh_, *call, std::move(data), -1);
  return small ? internal::reduce_doubling(*mesh_, *call, std::move(data))
               : internal::reduce_ring(*mesh_, *call, std::move(data));
}

Task<Group::Outcome> Group::reduce(Region data, DataType dtype, ReduceOp op, int root,
                                   Instant deadline) {
  if (Status bad = check_elements(data, dtype, op); !bad.ok()) return internal::failed(bad);
  if (Status bad = check_rank(root, "root"); !bad.ok()) return internal::failed(bad);
  Result<Call> call = begin({.kind = Kind::kReduce,
                             .op = op,
                             .dtype = dtype,
                             .root = root,
                             .bytes = data.bytes(),
                             .deadline = deadline});
  if (!call.ok()) return internal::failed(call.status());
  if (!mesh_->views() && size() > 1)
    return internal::reduce_tree(*mesh_, *call, std::move(data), root);
  return data.bytes() <= internal::kSlotBytes
             ? internal::reduce_in_slots(*mesh_, *call, std::move(data), root)
             : internal::reduce_in_place(*mesh_, *call, std::move(data), root);
}

Task<Group::Outcome> Group::broadcast(Region data, int root, Instant deadline) {
  if (!data.valid()) return internal::failed(outside());
  if (Status bad = check_rank(root, "root"); !bad.ok()) return internal::failed(bad);
  Result<Call> call =
      begin({.kind = Kind::kBroadcast, .root = root, .bytes = data.bytes(), .deadline = deadline});
  if (!call.ok()) return internal::failed(call.status());
  return internal::broadcast_tree(*mesh_, *call, std::move(data), mesh_->views());
}

Task<Group::Outcome> Group::allgather(Region mine, Region all, Instant deadline) {
  if (!mine.valid() || !all.valid()) return internal::failed(outside());
  const size_t part = mine.bytes();
  if (all.bytes() / static_cast<size_t>(size()) != part ||
      all.bytes() % static_cast<size_t>(size()) != 0)
    return internal::failed(invalid("the region for all ranks has " + std::to_string(all.bytes()) +
                                    " bytes, not " + std::to_string(size()) + " times the " +
                                    std::to_string(part) + " of one"));
  Result<Call> call = begin({.kind = Kind::kAllgather, .bytes = part, .deadline = deadline});
  if (!call.ok()) return internal::failed(call.status());
  std::vector<Region> send(static_cast<size_t>(size()), mine);
  std::vector<uint64_t> sizes(static_cast<size_t>(size()), part);
  return internal::exchange_parts(*mesh_, *call, std::move(send), cut(all, sizes));
}

Task<Group::Outcome> Group::alltoall(Region send, Region receive, Instant deadline) {
  if (!send.valid() || !receive.valid()) return internal::failed(outside());
  const auto ranks = static_cast<size_t>(size());
  if (send.bytes() != receive.bytes() || send.bytes() % ranks != 0)
    return internal::failed(invalid(std::to_string(send.bytes()) + " bytes to send and " +
                                    std::to_string(receive.bytes()) + " to receive: both must be " +
                                    std::to_string(ranks) + " equal parts"));
  if (overlap(send, receive)) return internal::failed(invalid("the regions overlap"));
  Result<Call> call = begin({.kind = Kind::kAlltoall, .bytes = send.bytes(), .deadline = deadline});
  if (!call.ok()) return internal::failed(call.status());
  const std::vector<uint64_t> sizes(ranks, send.bytes() / ranks);
  return internal::exchange_parts(*mesh_, *call, cut(send, sizes), cut(receive, sizes));
}

Task<Group::Outcome> Group::alltoallv(Region send, std::span<const uint64_t> send_bytes,
                                      Region receive, std::span<const uint64_t> receive_bytes,
                                      Instant deadline) {
  if (!send.valid() || !receive.valid()) return internal::failed(outside());
  if (!fills(send_bytes, size(), send.bytes()) || !fills(receive_bytes, size(), receive.bytes()))
    return internal::failed(
        invalid("the sizes must be one per rank and add up to the bytes of their region"));
  if (send_bytes[static_cast<size_t>(rank())] != receive_bytes[static_cast<size_t>(rank())])
    return internal::failed(invalid("this rank's part for itself has two sizes"));
  if (overlap(send, receive)) return internal::failed(invalid("the regions overlap"));
  Result<Call> call = begin({.kind = Kind::kAlltoallv, .deadline = deadline});
  if (!call.ok()) return internal::failed(call.status());
  return internal::exchange_parts(*mesh_, *call, cut(send, send_bytes),
                                  cut(receive, receive_bytes));
}

Task<Group::Outcome> Group::barrier(Instant deadline) {
  Result<Call> call = begin({.kind = Kind::kBarrier, .deadline = deadline});
  if (!call.ok()) return internal::failed(call.status());
  return internal::dissemination(*mesh_, *call);
}

// A collective ends by its own deadline.
Group::Outcome Group::allreduce_and_wait(Region data, DataType dtype, ReduceOp op,
                                         Instant deadline) {
  return mesh_->context().run_until(allreduce(std::move(data), dtype, op, deadline));
}
Group::Outcome Group::reduce_and_wait(Region data, DataType dtype, ReduceOp op, int root,
                                      Instant deadline) {
  return mesh_->context().run_until(reduce(std::move(data), dtype, op, root, deadline));
}
Group::Outcome Group::broadcast_and_wait(Region data, int root, Instant deadline) {
  return mesh_->context().run_until(broadcast(std::move(data), root, deadline));
}
Group::Outcome Group::allgather_and_wait(Region mine, Region all, Instant deadline) {
  return mesh_->context().run_until(allgather(std::move(mine), std::move(all), deadline));
}
Group::Outcome Group::alltoall_and_wait(Region send, Region receive, Instant deadline) {
  return mesh_->context().run_until(alltoall(std::move(send), std::move(receive), deadline));
}
Group::Outcome Group::alltoallv_and_wait(Region send, std::span<const uint64_t> send_bytes,
                                         Region receive, std::span<const uint64_t> receive_bytes,
                                         Instant deadline) {
  return mesh_->context().run_until(
      alltoallv(std::move(send), send_bytes, std::move(receive), receive_bytes, deadline));
}
Group::Outcome Group::barrier_and_wait(Instant deadline) {
  return mesh_->context().run_until(barrier(deadline));
}

}  // namespace sluice
