#include <sluice/grpc/whole_call.h>

#include <map>
#include <string>
#include <utility>

#include <grpc/grpc.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/impl/call_op_set.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/callback_common.h>

namespace sluice::grpc {
struct WholeCallKey;
}  // namespace sluice::grpc

// gRPC's own reactors hand each reaction to another thread. This call reacts where the service
// ends, so it is made of the parts that they are made of. Channels and contexts let the
// specialisations of this template make calls.
template <>
class grpc::internal::BlockingUnaryCallImpl<sluice::grpc::WholeCallKey,
                                            sluice::grpc::WholeCallKey> {
 public:
  static Call make(ChannelInterface& channel, const RpcMethod& method, ClientContext& context,
                   CompletionQueue& queue) {
    return channel.CreateCall(method, &context, &queue);
  }
  static std::multimap<std::string, std::string>* metadata(ClientContext& context) {
    return &context.send_initial_metadata_;
  }
  static uint32_t flags(const ClientContext& context) { return context.initial_metadata_flags(); }
};

namespace sluice::grpc {
namespace {

namespace grpc_parts = ::grpc::internal;
using Maker = grpc_parts::BlockingUnaryCallImpl<WholeCallKey, WholeCallKey>;

// Not a queue: each operation runs its own function when it is done. For the life of the process,
// since gRPC's threads may still be in it.
::grpc::CompletionQueue& reactions() {
  static grpc_completion_queue_functor ended{
      .functor_run = [](grpc_completion_queue_functor*, int) {}, .inlineable = 1};
  static auto* queue =
      new ::grpc::CompletionQueue(grpc_completion_queue_create_for_callback(&ended, nullptr));
  return *queue;
}

}  // namespace

struct WholeCall::Operation {
  Operation(WholeCall& call)
      : method(call.method_.c_str(), grpc_parts::RpcMethod::NORMAL_RPC),
        made(Maker::make(*call.channel_, method, call.context_, reactions())) {}

  const grpc_parts::RpcMethod method;
  grpc_parts::Call made;
  grpc_parts::CallOpSet<grpc_parts::CallOpSendInitialMetadata, grpc_parts::CallOpSendMessage,
                        grpc_parts::CallOpClientSendClose, grpc_parts::CallOpRecvInitialMetadata,
                        grpc_parts::CallOpRecvMessage<::grpc::ByteBuffer>,
                        grpc_parts::CallOpClientRecvStatus>
      operations;
  grpc_parts::CallbackWithSuccessTag tag;
  ::grpc::ByteBuffer response;
  ::grpc::Status status;
};

WholeCall::WholeCall(std::shared_ptr<ServerCallHost> host, std::shared_ptr<::grpc::Channel> channel,
                     const Frame& headers, const Metadata& about_the_peer)
    : host_(std::move(host)),
      channel_(std::move(channel)),
      stream_(headers.stream),
      method_(headers.text) {
  show_headers(headers, about_the_peer, context_);
}

WholeCall::~WholeCall() = default;

void WholeCall::begin() {
  if (operation_ || cancelled_ || !half_closed_ || (has_request_ && !request_ready_)) return;
  self_ = shared_from_this();
  operation_ = std::make_unique<Operation>(*this);
  channel_.reset();
  auto& operations = operation_->operations;
  operations.SendInitialMetadata(Maker::metadata(context_), Maker::flags(context_));
  // Of bytes that are serialised already: nothing can fail.
  if (has_request_) [[maybe_unused]]
    auto serialised = operations.SendMessage(request_);
  request_.Clear();
  operations.ClientSendClose();
  operations.RecvInitialMetadata(&context_);
  operations.RecvMessage(&operation_->response);
  operations.AllowNoMessage();
  operations.ClientRecvStatus(&context_, &operation_->status);
  operation_->tag.Set(
      operation_->made.call(), [this](bool) { on_done(); }, &operations, /*can_inline=*/true);
  operations.set_core_cq_tag(&operation_->tag);
  operation_->made.PerformOps(&operations);
}

void WholeCall::on_frame(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kMessage: return on_message(frame);
    case FrameKind::kHalfClose: half_closed_ = true; return begin();
    case FrameKind::kCancel: return cancel();
    default: return host_->connection()->refuse("a frame that clients do not send in such a call");
  }
}

void WholeCall::on_message(const Frame& frame) {
  if (half_closed_) return host_->connection()->refuse("a message after the half-close");
  if (std::exchange(has_request_, true))
    return host_->connection()->refuse("a second message of a call that has one");
  if (over(frame.length, host_->receive_limit())) {
    host_->connection()->drop_parts(frame);
    return lose_request(too_large("Received", frame.length, host_->receive_limit()));
  }
  gather(*host_->connection(), frame,
         [self = shared_from_this()](const Status& status, ::grpc::ByteBuffer& bytes) {
           if (!status.ok()) return self->lose_request(request_lost(status));
           self->request_.Swap(&bytes);
           self->request_ready_ = true;
           self->begin();
         });
}

void WholeCall::lose_request(const ::grpc::Status& why) {
  if (!cancelled_ && host_->connection() != nullptr)
    host_->connection()->send(status_frame(stream_, why, {}));
  cancel();
}

void WholeCall::cancel() {
  if (std::exchange(cancelled_, true)) return;
  if (!operation_) return host_->remove(stream_);
  context_.TryCancel();
}

// On whatever thread ended the call: mostly the service's.
void WholeCall::on_done() {
  auto response = std::make_shared<Outgoing>();
  const bool answered = operation_->status.ok() && operation_->operations.got_message;
  if (answered) *response = make_outgoing(operation_->response, host_->arena());
  operation_->response.Clear();
  host_->run_soon([self = self_, response,
                   initial = metadata_of(context_.GetServerInitialMetadata()),
                   trailing = metadata_of(context_.GetServerTrailingMetadata())]() mutable {
    self->end(std::move(*response), std::move(initial), std::move(trailing));
    self->self_.reset();
  });
}

void WholeCall::end(Outgoing response, Metadata initial, Metadata trailing) {
  auto self = shared_from_this();
  host_->remove(stream_);
  Connection* connection = host_->connection();
  if (cancelled_ || connection == nullptr) return;
  ::grpc::Status status = operation_->status;
  if (!response.status.ok()) status = response.status;
  Frame first{
      .kind = FrameKind::kInitialMetadata, .stream = stream_, .metadata = std::move(initial)};
  if (!fits(first)) {
    status = ::grpc::Status(::grpc::StatusCode::RESOURCE_EXHAUSTED,
                            "initial metadata larger than the 16 KiB that a bridged call has");
  } else if (!first.metadata.empty()) {
    connection->send(first);
  }
  if (status.ok() && operation_->operations.got_message)
    send(*connection, stream_, std::move(response));
  connection->send(status_frame(stream_, status, std::move(trailing)));
}

}  // namespace sluice::grpc
