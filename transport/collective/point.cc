// Messages between two ranks of a group.
#include <sluice/api/completion.h>
#include "transport/collective/algorithms.h"
#include <sluice/collective/group.h>

namespace sluice {
namespace {
constexpr const char* kOrigin = "collective/point";

// Ends with what it waits for: operations that it still has are cancelled and awaited, since they
// report to it and write to its caller's memory.
class Pair {
 public:
  explicit Pair(Context& context) : context_(context) {}
  ~Pair() {
    for (int i = 0; i < 2; ++i)
      if (operations_[i] != kNoOperation && !ended_[i]) (void)endpoints_[i]->cancel(operations_[i]);
    (void)wait(kNever);
  }
  // Requires: `posting` posts with options(index).
  template <typename Posting>
  Status post(int index, Endpoint& endpoint, Posting posting, Instant deadline) {
    for (;;) {
      Result<OperationId> operation = posting();
      if (operation.ok()) {
        operations_[index] = *operation;
        endpoints_[index] = &endpoint;
        ++pending_;
        return Status();
      }
      if (operation.code() != Code::kTryAgain) return operation.status();
      if (context_.refresh_now() >= deadline)
        return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                      "the path had no room for a message before the deadline");
      context_.progress();
    }
  }
  PostOptions options(int index, Instant deadline) {
    return {.sink = &queue_, .user_data = static_cast<uint64_t>(index), .deadline = deadline};
  }
  Status wait(Instant deadline) {
    return context_.wait_until(
        [&] {
          Completion completion;
          while (queue_.poll(completion)) {
            --pending_;
            ended_[completion.user_data] = true;
            results_[completion.user_data] = std::move(completion);
          }
          return pending_ == 0;
        },
        deadline);
  }
  const Completion& result(int index) const { return results_[index]; }

 private:
  Context& context_;
  CompletionQueue queue_;
  Endpoint* endpoints_[2] = {};
  OperationId operations_[2] = {kNoOperation, kNoOperation};
  bool ended_[2] = {};
  Completion results_[2];
  int pending_ = 0;
};

void add(Receipt& sum, const Receipt& part) {
  sum.bytes += part.bytes;
  sum.copied_bytes += part.copied_bytes;
  sum.kernel_copied_bytes += part.kernel_copied_bytes;
  sum.retries += part.retries;
}
}  // namespace

Group::Outcome Group::send_and_wait(int to, uint32_t tag, Region data, Instant deadline) {
  return send_receive_and_wait(to, std::move(data), -1, Region(), tag, deadline);
}

Group::Outcome Group::receive_and_wait(int from, uint32_t tag, Region into, Instant deadline) {
  return send_receive_and_wait(-1, Region(), from, std::move(into), tag, deadline);
}

Group::Outcome Group::send_receive_and_wait(int to, Region data, int from, Region into,
                                            uint32_t tag, Instant deadline) {
  SLUICE_RETURN_IF_ERROR(mesh_->usable());
  for (int peer : {to, from}) {
    if (peer == -1) continue;
    SLUICE_RETURN_IF_ERROR(check_rank(peer, "peer"));
    if (peer == rank())
      return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                    "a rank sends itself no messages: copy the bytes");
  }
  if (!data.valid() || !into.valid())
    return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                  "a region lies outside its buffer");
  Receipt receipt = internal::receipt_of(*mesh_);
  Pair pair(mesh_->context());
  const Tag wire_tag = internal::lane_tag(internal::Lane::kPoint, tag);
  if (from != -1) {
    Endpoint& peer = mesh_->peer(from);
    SLUICE_RETURN_IF_ERROR(pair.post(
        1, peer,
        [&] {
          return peer.receive({.tag = wire_tag}, into.as_buffer(), pair.options(1, deadline));
        },
        deadline));
  }
  if (to != -1) {
    Endpoint& peer = mesh_->peer(to);
    SLUICE_RETURN_IF_ERROR(pair.post(
        0, peer, [&] { return peer.send(wire_tag, data.as_tensor(), pair.options(0, deadline)); },
        deadline));
  }
  SLUICE_RETURN_IF_ERROR(pair.wait(kNever));  // they end by their deadline
  for (int index : {0, 1}) {
    const int peer = index == 0 ? to : from;
    if (peer == -1) continue;
    const Completion& completion = pair.result(index);
    // The end of the group cancels it: why, the group says.
    if (completion.status == Code::kCancelled && !mesh_->broken().ok()) return mesh_->broken();
    if (!completion.status.ok())
      return mesh_->blame(peer, completion.status, index == 0 ? "send" : "receive");
    add(receipt, completion.receipt);
  }
  if (from != -1 && pair.result(1).receipt.bytes != into.bytes())
    return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                  "rank " + std::to_string(from) + " sent " +
                      std::to_string(pair.result(1).receipt.bytes) + " bytes, not " +
                      std::to_string(into.bytes()) + "; receive into a region of that size");
  return internal::ended(*mesh_, receipt);
}

Status Group::post(int to, uint32_t tag, Tensor message, Instant deadline) {
  SLUICE_RETURN_IF_ERROR(mesh_->usable());
  SLUICE_RETURN_IF_ERROR(check_rank(to, "peer"));
  if (to == rank())
    return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                  "a rank sends itself no messages: copy the bytes");
  Context& context = mesh_->context();
  for (;;) {
    Result<OperationId> posted =
        mesh_->peer(to).send(internal::lane_tag(internal::Lane::kPoint, tag), std::move(message),
                             {.deadline = deadline});
    if (posted.ok()) return Status();
    if (posted.code() != Code::kTryAgain) return mesh_->blame(to, posted.status(), "send");
    if (context.refresh_now() >= deadline)
      return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                    "rank " + std::to_string(to) + " took no message before the deadline");
    context.progress();
  }
}

}  // namespace sluice
