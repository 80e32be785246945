// The server's link over gRPC: a synchronous service, as its tutorial has it, and beside it the
// experts' (grpc_expert.h). The only threads are gRPC's own, and the bridge's where calls go over
// sluice.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string_view>

#include <sluice/base/settings.h>
#include <sluice/grpc/bridge.h>

#include "tools/demo_job/grpc_expert.h"
#include "tools/demo_job/grpc_link.h"
#include "tools/demo_job/grpc_store.h"
#include "tools/demo_job/links.h"
#include "tools/demo_job/parameter_server.grpc.pb.h"

namespace sluice::tools::demo {
namespace {

::grpc::Status over() {
  return {::grpc::StatusCode::FAILED_PRECONDITION, "that step is over, or the server ends"};
}
::grpc::Status bad_part() {
  return {::grpc::StatusCode::INVALID_ARGUMENT, "no such worker, tensor or range"};
}

class Service final : public ::sluice::demo::ParameterServer::Service {
 public:
  explicit Service(GrpcStore& store) : store_(store) {}

  ::grpc::Status Pull(::grpc::ServerContext*, const ::sluice::demo::PullRequest* request,
                      ::sluice::demo::TensorData* reply) override {
    if (request->tensor() >= store_.model().tensors.size()) return bad_part();
    if (!store_.wait_published(request->step())) return over();
    reply->set_tensor(request->tensor());
    reply->set_step(request->step());
    reply->set_data(store_.weights(request->step(), request->tensor()),
                    store_.model().tensors[request->tensor()].bytes());
    return ::grpc::Status::OK;
  }

  ::grpc::Status Push(::grpc::ServerContext*, const ::sluice::demo::TensorData* part,
                      ::sluice::demo::Done*) override {
    return put(*part, 0) ? ::grpc::Status::OK : bad_part();
  }

  ::grpc::Status PullAll(::grpc::ServerContext*, const ::sluice::demo::PullAllRequest* request,
                         ::grpc::ServerWriter<::sluice::demo::Chunk>* writer) override {
    if (request->chunk_bytes() == 0) return bad_part();
    if (!store_.wait_published(request->step())) return over();
    ::sluice::demo::Chunk chunk;
    chunk.set_step(request->step());
    for (uint32_t t = 0; t < store_.model().tensors.size(); ++t) {
      const size_t bytes = store_.model().tensors[t].bytes();
      const char* data = reinterpret_cast<const char*>(store_.weights(request->step(), t));
      chunk.set_tensor(t);
      for (size_t at = 0; at < bytes; at += request->chunk_bytes()) {
        chunk.set_offset(at);
        chunk.set_data(data + at, std::min<size_t>(request->chunk_bytes(), bytes - at));
        if (!writer->Write(chunk)) return {::grpc::StatusCode::CANCELLED, "the worker is gone"};
      }
    }
    return ::grpc::Status::OK;
  }

  ::grpc::Status PushAll(::grpc::ServerContext*,
                         ::grpc::ServerReader<::sluice::demo::Chunk>* reader,
                         ::sluice::demo::Done*) override {
    ::sluice::demo::Chunk chunk;
    while (reader->Read(&chunk)) {
      if (!put(chunk, chunk.offset())) return bad_part();
    }
    return ::grpc::Status::OK;
  }

 private:
  template <typename Part>
  bool put(const Part& part, uint64_t offset) {
    const std::string_view data = part.data();
    return store_.put({part.worker(), part.tensor(), part.step(), offset}, {&data, 1});
  }

  GrpcStore& store_;
};

class GrpcServer final : public ServerLink {
 public:
  GrpcServer(const Visit& visit, const Model& model)
      : visit_(visit), store_(model, static_cast<size_t>(visit.workers)), service_(store_) {
    keep_grpc_running();
  }
  ~GrpcServer() override { close(); }

  Result<std::string> listen() override {
    // An abstract name: nothing in the file system to remove. The bridge's targets have a port.
    const bool bridge = visit_.mode == Mode::kGrpcOverSluice;
    const bool by_unix = visit_.route == Route::kShm && !bridge;
    const std::string unix_name =
        "unix-abstract:sluice-demo-grpc-" + std::to_string(std::random_device()());
    int port = 0;
    ::grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    if (visit_.mode == Mode::kGrpcExpert) {
      expert_ = make_expert_service(store_);
      builder.RegisterCallbackGenericService(expert_.get());
    }
    const bool brackets = visit_.host.find(':') != std::string::npos;
    const std::string host = (brackets ? "[" + visit_.host + "]" : visit_.host) + ":";
    builder.AddListeningPort(by_unix ? unix_name : host + "0", ::grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0) {
      return Status(Code::kUnreachable, Scope::kContext, "demo/grpc",
                    "gRPC's server did not start");
    }
    if (bridge) SLUICE_RETURN_IF_ERROR(listen_over_sluice(host));
    return by_unix ? unix_name : host + std::to_string(port);
  }

  float* weights(uint32_t tensor) override { return store_.weights(step_, tensor); }
  Status prepare(int64_t step) override {
    step_ = step;
    store_.prepare(step);
    return Status();
  }
  Status publish(int64_t step) override {
    store_.publish(step);
    return Status();
  }
  Status gather(Instant deadline) override {
    if (store_.wait_gathered(deadline)) return Status();
    return Status(Code::kTimedOut, Scope::kOperation, "demo/grpc",
                  "not all gradients came in time");
  }
  const float* gradient(uint32_t worker, uint32_t tensor) const override {
    return store_.gradient(worker, tensor);
  }
  // The other set: a worker that was restarted may be reading this one.
  Result<float*> next_weights(uint32_t tensor, Instant) override {
    return store_.weights(step_ + 1, tensor);
  }
  void swap_weights() override { ++step_; }
  void release_gradients() override {}
  Result<Message> wait_order(ControlLine& line, Instant deadline) override {
    return line.receive(deadline);
  }
  uint64_t copied_bytes() const override { return 0; }
  void close() override {
    if (!server_) return;
    store_.stop();
    listener_.reset();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
    server_.reset();
  }

 private:
  // Clients ask for it at the gRPC port.
  Status listen_over_sluice(const std::string& host) {
    if (visit_.route == Route::kL2) SLUICE_RETURN_IF_ERROR(set_setting("SLUICE_ETHERNET", "1"));
    const std::string scheme = visit_.route == Route::kRdma ? "rdma://" : "sluice://";
    SLUICE_TRY(listener_, sluice::grpc::Listen(server_.get(), {.address = scheme + host + "0"}));
    return Status();
  }

  const Visit& visit_;
  GrpcStore store_;
  Service service_;
  std::unique_ptr<::grpc::CallbackGenericService> expert_;
  std::unique_ptr<::grpc::Server> server_;
  std::unique_ptr<sluice::grpc::Listener> listener_;  // ends before the server
  int64_t step_ = 0;
};

}  // namespace

std::unique_ptr<ServerLink> make_grpc_server(const Visit& visit, const Model& model) {
  return std::make_unique<GrpcServer>(visit, model);
}

}  // namespace sluice::tools::demo
