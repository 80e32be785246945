// The life of a session's operations: taken when one is posted, completed once, given back. Knows
// nothing of what they do.
#ifndef SLUICE_PROTO_OPERATIONS_H_
#define SLUICE_PROTO_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include <sluice/api/endpoint.h>
#include <sluice/base/id_index.h>
#include <sluice/proto/connection.h>
#include <sluice/proto/operation_table.h>

namespace sluice::proto {

// Keeps something of its own for operations that are `engaged`.
class OperationKeeper {
 public:
  // The operation is over: nothing of it is kept.
  virtual void forget(Operation* op) = 0;

 protected:
  ~OperationKeeper() = default;
};

inline void unlink(Operation* op) {
  if (op->list != nullptr) op->list->remove(op);
}

// The processor may read what it sends.
inline bool sends_host_memory(const Operation& op) {
  if (op.total == 0) return true;  // there is nothing to read, and no path offers that as memory
  for (const Tensor& tensor : op.tensors) {
    if (tensor.in_device_memory()) [[unlikely]]
      return false;
  }
  return true;
}

// Counts payload bytes that went by a way of this cost.
inline void count_copies(Operation* op, EndpointCounters& counters, uint64_t bytes,
                         const CopyCost& cost) {
  op->completion.receipt.copied_bytes += bytes * cost.user;
  op->completion.receipt.kernel_copied_bytes += bytes * cost.kernel;
  count_copies(counters, bytes, cost);
}

// Thread: the context's. Blocks: never.
class Operations {
 public:
  // `secret`: random; the peer does not know it.
  Operations(Connection& connection, uint64_t secret)
      : connection_(connection), table_(connection.options.operation_limit), cancellable_(secret) {}
  // Requires: before any operation is `engaged`.
  void set_keeper(OperationKeeper& keeper) { keeper_ = &keeper; }

  OperationTable& table() { return table_; }
  Operation* find(OperationId id) const { return table_.find(id); }
  template <typename Visit>
  void for_each(Visit&& visit) {
    table_.for_each(std::forward<Visit>(visit));
  }

  // A new operation, in no list. Errors: kTryAgain.
  Result<Operation*> take(OperationKind kind, const PostOptions& options);
  // One for a request of the peer: without a deadline, and nobody is told of its end.
  Result<Operation*> take_internal(OperationKind kind);
  // Ends it as if it had not been posted.
  void take_back(Operation* op);

  // Delivers the completion now. Requires: called from progress.
  void complete(Operation* op, Status status);
  // Delivers it with the next progress.
  void complete_later(Operation* op, Status status);
  // Gives the slot back without a completion.
  void release(Operation* op);
  // Of a source that somebody may still read: the slot stays until he does not.
  void release_or_linger(Operation* op) {
    if (op->in_flight == 0) return release(op);
    unlink(op);
    op->state = OperationState::kZombie;
  }
  size_t deliver_ready();
  bool any_ready() const { return !ready_.empty(); }
  // Operations whose memory the peer may read in place.
  uint64_t count_loans() const;

  // The peer names the operation by op->peer_id, and may cancel it, from now on.
  void index_by_peer_id(Operation* op) {
    cancellable_.remove(op);
    cancellable_.insert(op, op->peer_id);
  }
  // Null: none that `accept` takes.
  template <typename Accept>
  Operation* find_by_peer_id(uint64_t peer_id, Accept&& accept) const {
    return cancellable_.find(peer_id, std::forward<Accept>(accept));
  }

 private:
  // Nothing finds the operation any more, and nothing is kept for it.
  void detach(Operation* op);

  Connection& connection_;
  OperationKeeper* keeper_ = nullptr;
  OperationTable table_;
  OperationList ready_;  // ended; to be delivered
  IdIndex<Operation> cancellable_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_OPERATIONS_H_
