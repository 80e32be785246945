#include <sluice/api/endpoint.h>

#include <cstring>
#include <optional>
#include <utility>

#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice {

// A blocking call: one operation from its post to its end, to which no other thread comes between.
class Endpoint::Wait final : public CompletionSink {
 public:
  explicit Wait(const Endpoint& endpoint) : endpoint_(endpoint) {
    if (endpoint.core_) inside_.emplace(*endpoint.thread_mark_);
  }
  void on_completion(Completion&& completion) noexcept override {
    completion_ = std::move(completion);
    done_ = true;
  }
  // Before the post. An endpoint that is closed, perhaps with its context, is left to the post.
  Status allowed() const {
    if (!endpoint_.usable()) return endpoint_.unusable();
    if (endpoint_.core_->state() == EndpointState::kClosed) return Status();
    return ContextCore::of(*endpoint_.context_).may_wait();
  }
  PostOptions options(Instant deadline) {
    return {.sink = this, .deadline = deadline, .level = Level::kPlaced};
  }
  // The operation ends by its own deadline, so the wait needs none.
  Status finish() {
    SLUICE_RETURN_IF_ERROR(endpoint_.context_->wait_until([&] { return done_; }, kNever));
    return completion_.status;
  }
  // What came; on failure the buffer goes back to `into`.
  Result<Received> received(Buffer& into) {
    Status status = finish();
    if (!status.ok()) {
      if (!completion_.buffers.empty()) into = std::move(completion_.buffers[0]);
      return status;
    }
    Received out{.buffer = std::move(completion_.buffers[0]),
                 .tag = completion_.tag,
                 .receipt = completion_.receipt};
    // Cannot fail: the bytes came into this very buffer.
    (void)out.buffer.reshape(TensorDescriptor::bytes(completion_.receipt.bytes));
    return out;
  }
  const Completion& completion() const { return completion_; }

 private:
  const Endpoint& endpoint_;
  std::optional<ThreadMark::Inside> inside_;
  Completion completion_;
  bool done_ = false;
};

Endpoint::Endpoint(std::shared_ptr<EndpointCore> core, Context* context)
    : core_(std::move(core)),
      context_(context),
      thread_mark_(ContextCore::of(*context).thread_mark()) {}

Endpoint& Endpoint::operator=(Endpoint&& other) noexcept {
  if (this != &other) {
    Endpoint old(std::move(*this));
    core_ = std::move(other.core_);
    context_ = other.context_;
    thread_mark_ = std::move(other.thread_mark_);
    owner_ = other.owner_;
  }
  return *this;
}

Endpoint::~Endpoint() {
  if (core_ && !owner_.in_forked_child()) {  // there the connection is the parent's, and goes on
    core_->abort(Status(Code::kCancelled, Scope::kEndpoint, "api/endpoint",
                        "the endpoint handle was dropped without close()"));
    core_->drop_unexpected();
  }
}

Status Endpoint::unusable() const {
  SLUICE_RETURN_IF_ERROR(owner_.check());
  if (core_) return ThreadMark::refusal();
  return Status(Code::kWrongState, Scope::kEndpoint, "api/endpoint",
                "this Endpoint is empty: it was moved from, closed, or never connected; "
                "connect again, and use the new handle");
}

EndpointState Endpoint::state() const { return core_ ? core_->state() : EndpointState::kClosed; }
EndpointInfo Endpoint::info() const { return core_ ? core_->info() : EndpointInfo(); }
EndpointCounters Endpoint::counters() const {
  return core_ ? core_->counters() : EndpointCounters();
}
void Endpoint::set_default_timeout(Duration timeout) {
  if (core_) core_->set_default_timeout(timeout);
}
void Endpoint::start_close() {
  if (usable()) core_->start_close();
}
void Endpoint::abort(const Status& why) {
  if (usable()) core_->abort(why);
}

Status Endpoint::cancel(OperationId id) {
  if (!usable()) [[unlikely]]
    return unusable();
  return core_->cancel(id);
}
Result<RemoteKey> Endpoint::grant(const Buffer& memory, const GrantOptions& options) {
  if (!usable()) [[unlikely]]
    return unusable();
  return core_->grant(memory, options);
}
Result<RemoteKey> Endpoint::grant(const Tensor& memory, const GrantOptions& options) {
  if (!usable()) [[unlikely]]
    return unusable();
  return core_->grant(memory, options);
}
Status Endpoint::revoke(const RemoteKey& key) {
  if (!usable()) [[unlikely]]
    return unusable();
  return core_->revoke(key);
}

Result<OperationId> Endpoint::send(Tag tag, const Tensor& segment, const PostOptions& options) {
  if (!usable()) [[unlikely]]
    return unusable();
  return core_->post_send(tag, std::span(&segment, 1), options);
}
Result<OperationId> Endpoint::send(Tag tag, Tensor&& segment, const PostOptions& options) {
  if (!usable()) [[unlikely]]
    return unusable();
  Result<OperationId> id = core_->post_send(tag, std::span(&segment, 1), options);
  if (id.ok()) segment = Tensor();
  return id;
}
Result<OperationId> Endpoint::send(Tag tag, std::span<const Tensor> segments,
                                   const PostOptions& options) {
  if (!usable()) [[unlikely]]
    return unusable();
  return core_->post_send(tag, segments, options);
}
Result<OperationId> Endpoint::receive(TagMatch match, Buffer&& into, const PostOptions& options) {
  if (!usable()) [[unlikely]]
    return unusable();
  return core_->post_receive(match, std::span(&into, 1), options);
}
Result<OperationId> Endpoint::receive(TagMatch match, std::span<Buffer> into,
                                      const PostOptions& options) {
  if (!usable()) [[unlikely]]
    return unusable();
  return core_->post_receive(match, into, options);
}
Result<OperationId> Endpoint::read(const RemoteKey& key, uint64_t offset, Buffer&& into,
                                   const PostOptions& options) {
  if (!usable()) [[unlikely]]
    return unusable();
  return core_->post_read(key, offset, into, options);
}
Result<OperationId> Endpoint::write(const RemoteKey& key, uint64_t offset, Tensor from,
                                    const PostOptions& options) {
  if (!usable()) [[unlikely]]
    return unusable();
  return core_->post_write(key, offset, from, options);
}

Result<Receipt> Endpoint::send_and_wait(Tag tag, Tensor segment, Instant deadline) {
  Wait wait(*this);
  SLUICE_RETURN_IF_ERROR(wait.allowed());
  SLUICE_RETURN_IF_ERROR(send(tag, std::move(segment), wait.options(deadline)));
  SLUICE_RETURN_IF_ERROR(wait.finish());
  return wait.completion().receipt;
}

Result<Endpoint::Received> Endpoint::receive_and_wait(TagMatch match, Buffer&& into,
                                                      Instant deadline) {
  Wait wait(*this);
  SLUICE_RETURN_IF_ERROR(wait.allowed());
  SLUICE_RETURN_IF_ERROR(receive(match, std::move(into), wait.options(deadline)));
  return wait.received(into);
}

Result<Receipt> Endpoint::write_and_wait(const RemoteKey& key, uint64_t offset, Tensor from,
                                         Instant deadline) {
  Wait wait(*this);
  SLUICE_RETURN_IF_ERROR(wait.allowed());
  SLUICE_RETURN_IF_ERROR(write(key, offset, std::move(from), wait.options(deadline)));
  SLUICE_RETURN_IF_ERROR(wait.finish());
  return wait.completion().receipt;
}

Result<Endpoint::Received> Endpoint::read_and_wait(const RemoteKey& key, uint64_t offset,
                                                   Buffer&& into, Instant deadline) {
  Wait wait(*this);
  SLUICE_RETURN_IF_ERROR(wait.allowed());
  SLUICE_RETURN_IF_ERROR(read(key, offset, std::move(into), wait.options(deadline)));
  return wait.received(into);
}

Result<OperationId> Endpoint::atomic(const RemoteKey& key, uint64_t offset, const Atomic& request,
                                     Buffer&& result, const PostOptions& options) {
  if (!usable()) [[unlikely]]
    return unusable();
  return core_->post_atomic(key, offset, request, result, options);
}

Result<uint64_t> Endpoint::atomic_and_wait(const RemoteKey& key, uint64_t offset,
                                           const Atomic& request, Instant deadline) {
  Wait wait(*this);
  SLUICE_RETURN_IF_ERROR(wait.allowed());
  // The context may be gone, and the endpoint closed with it.
  if (state() == EndpointState::kClosed) {
    return Status(Code::kWrongState, Scope::kEndpoint, "api/endpoint",
                  "the endpoint is closed; connect again");
  }
  SLUICE_TRY(Buffer result, context_->arena().allocate(sizeof(uint64_t), {.for_receive = true}));
  SLUICE_RETURN_IF_ERROR(atomic(key, offset, request, std::move(result), wait.options(deadline)));
  SLUICE_RETURN_IF_ERROR(wait.finish());
  uint64_t before;
  std::memcpy(&before, wait.completion().buffers[0].data(), sizeof(before));
  return before;
}

Result<uint64_t> Endpoint::fetch_add_and_wait(const RemoteKey& key, uint64_t offset, uint64_t add,
                                              Instant deadline) {
  return atomic_and_wait(key, offset, {.kind = Atomic::Kind::kFetchAdd, .operand = add}, deadline);
}

Result<uint64_t> Endpoint::compare_swap_and_wait(const RemoteKey& key, uint64_t offset,
                                                 uint64_t expected, uint64_t desired,
                                                 Instant deadline) {
  return atomic_and_wait(
      key, offset, {.kind = Atomic::Kind::kCompareSwap, .operand = desired, .expected = expected},
      deadline);
}

Status Endpoint::close(Instant deadline) {
  if (!core_) return Status();
  if (Status forked = owner_.check(); !forked.ok()) {
    core_.reset();
    return forked;
  }
  const bool over = core_->state() == EndpointState::kClosed;  // perhaps with its context
  if (!over) SLUICE_RETURN_IF_ERROR(ContextCore::of(*context_).may_wait());
  core_->drop_unexpected();
  if (over) {
    core_.reset();
    return Status();
  }
  // Views dropped just before are given back with a RELEASE, not by the end of it all.
  context_->progress();
  core_->start_close();
  Status status =
      context_->wait_until([&] { return core_->state() == EndpointState::kClosed; }, deadline);
  if (!status.ok()) {
    core_->abort(Status(Code::kTimedOut, Scope::kEndpoint, "api/endpoint",
                        "the peer did not answer the close in time; let it call progress()"));
  }
  core_.reset();
  return status;
}

namespace internal {
Result<OperationId> post_send(EndpointCore& core, Tag tag, std::span<const Tensor> segments,
                              const PostOptions& options) {
  return core.post_send(tag, segments, options);
}
Result<OperationId> post_receive(EndpointCore& core, TagMatch match, std::span<Buffer> into,
                                 const PostOptions& options) {
  return core.post_receive(match, into, options);
}
Result<OperationId> post_read(EndpointCore& core, const RemoteKey& key, uint64_t offset,
                              Buffer& into, const PostOptions& options) {
  return core.post_read(key, offset, into, options);
}
Result<OperationId> post_write(EndpointCore& core, const RemoteKey& key, uint64_t offset,
                               Tensor& from, const PostOptions& options) {
  return core.post_write(key, offset, from, options);
}
Status cancel(EndpointCore& core, OperationId id) { return core.cancel(id); }
}  // namespace internal

}  // namespace sluice
