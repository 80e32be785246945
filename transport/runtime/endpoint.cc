#include <sluice/api/endpoint.h>

#include <cstring>
#include <utility>

#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice {
namespace {

// Waits for exactly one completion.
struct OneCompletion final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    value = std::move(completion);
    done = true;
  }
  Completion value;
  bool done = false;
};

PostOptions options_for(OneCompletion& sink, Instant deadline) {
  return {.sink = &sink, .deadline = deadline, .level = Level::kPlaced};
}

// The operation ends by its own deadline, so the wait needs none.
Status finish(Context& context, OneCompletion& sink) {
  SLUICE_RETURN_IF_ERROR(context.wait_until([&] { return sink.done; }, kNever));
  return sink.value.status;
}

// What came; on failure the buffer goes back to `into`.
Result<Endpoint::Received> received(Context& context, OneCompletion& sink, Buffer& into) {
  Status status = finish(context, sink);
  Completion& completion = sink.value;
  if (!status.ok()) {
    if (!completion.buffers.empty()) into = std::move(completion.buffers[0]);
    return status;
  }
  Endpoint::Received out{.buffer = std::move(completion.buffers[0]),
                         .tag = completion.tag,
                         .receipt = completion.receipt};
  // Cannot fail: the bytes came into this very buffer.
  (void)out.buffer.reshape(TensorDescriptor::bytes(completion.receipt.bytes));
  return out;
}

}  // namespace

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
  OneCompletion sink;
  SLUICE_RETURN_IF_ERROR(send(tag, std::move(segment), options_for(sink, deadline)));
  SLUICE_RETURN_IF_ERROR(finish(*context_, sink));
  return sink.value.receipt;
}

Result<Endpoint::Received> Endpoint::receive_and_wait(TagMatch match, Buffer&& into,
                                                      Instant deadline) {
  OneCompletion sink;
  SLUICE_RETURN_IF_ERROR(receive(match, std::move(into), options_for(sink, deadline)));
  return received(*context_, sink, into);
}

Result<Receipt> Endpoint::write_and_wait(const RemoteKey& key, uint64_t offset, Tensor from,
                                         Instant deadline) {
  OneCompletion sink;
  SLUICE_RETURN_IF_ERROR(write(key, offset, std::move(from), options_for(sink, deadline)));
  SLUICE_RETURN_IF_ERROR(finish(*context_, sink));
  return sink.value.receipt;
}

Result<Endpoint::Received> Endpoint::read_and_wait(const RemoteKey& key, uint64_t offset,
                                                   Buffer&& into, Instant deadline) {
  OneCompletion sink;
  SLUICE_RETURN_IF_ERROR(read(key, offset, std::move(into), options_for(sink, deadline)));
  return received(*context_, sink, into);
}

Result<OperationId> Endpoint::atomic(const RemoteKey& key, uint64_t offset, const Atomic& request,
                                     Buffer&& result, const PostOptions& options) {
  if (!usable()) [[unlikely]]
    return unusable();
  return core_->post_atomic(key, offset, request, result, options);
}

namespace {
Result<uint64_t> atomic_and_wait(Endpoint& endpoint, const RemoteKey& key, uint64_t offset,
                                 const Atomic& request, Instant deadline) {
  // The context may be gone, and the endpoint closed with it.
  if (!endpoint || endpoint.state() == EndpointState::kClosed) {
    return Status(Code::kWrongState, Scope::kEndpoint, "api/endpoint",
                  "the endpoint is closed; connect again");
  }
  SLUICE_TRY(Buffer result,
             endpoint.context().arena().allocate(sizeof(uint64_t), {.for_receive = true}));
  OneCompletion sink;
  SLUICE_RETURN_IF_ERROR(
      endpoint.atomic(key, offset, request, std::move(result), options_for(sink, deadline)));
  SLUICE_RETURN_IF_ERROR(finish(endpoint.context(), sink));
  uint64_t before;
  std::memcpy(&before, sink.value.buffers[0].data(), sizeof(before));
  return before;
}
}  // namespace

Result<uint64_t> Endpoint::fetch_add_and_wait(const RemoteKey& key, uint64_t offset, uint64_t add,
                                              Instant deadline) {
  return atomic_and_wait(*this, key, offset, {.kind = Atomic::Kind::kFetchAdd, .operand = add},
                         deadline);
}

Result<uint64_t> Endpoint::compare_swap_and_wait(const RemoteKey& key, uint64_t offset,
                                                 uint64_t expected, uint64_t desired,
                                                 Instant deadline) {
  return atomic_and_wait(
      *this, key, offset,
      {.kind = Atomic::Kind::kCompareSwap, .operand = desired, .expected = expected}, deadline);
}

Status Endpoint::close(Instant deadline) {
  if (!core_) return Status();
  if (Status forked = owner_.check(); !forked.ok()) {
    core_.reset();
    return forked;
  }
  core_->drop_unexpected();
  if (core_->state() == EndpointState::kClosed) {  // perhaps with its context
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
