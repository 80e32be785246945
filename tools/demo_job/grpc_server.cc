// The server's link over gRPC: a synchronous service, as its tutorial has it. The only
// threads are gRPC's own. Knows nothing of sluice's transports.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "tools/demo_job/grpc_link.h"
#include "tools/demo_job/links.h"
#include "tools/demo_job/parameter_server.grpc.pb.h"

namespace sluice::tools::demo {
namespace {

using Floats = std::unique_ptr<float[]>;
using ParameterSet = std::vector<Floats>;

ParameterSet allocate(const Model& model) {
  ParameterSet set;
  for (const TensorSpec& spec : model.tensors)
    set.push_back(std::make_unique_for_overwrite<float[]>(spec.elements));
  return set;
}

// What the handlers share with the server's steps.
class Store {
 public:
  Store(const Model& model, size_t workers) : model_(model), seats_(workers) {
    for (ParameterSet& set : weights_) set = allocate(model);
    for (Seat& seat : seats_) {
      seat.gradients = allocate(model);
      seat.received.resize(model.tensors.size());
    }
  }

  const Model& model() const { return model_; }
  float* weights(int64_t step, uint32_t tensor) {
    return weights_[static_cast<size_t>(step) % 2][tensor].get();
  }
  const float* gradient(uint32_t worker, uint32_t tensor) const {
    return seats_[worker].gradients[tensor].get();
  }

  void prepare(int64_t step) {
    std::lock_guard lock(mutex_);
    collecting_ = step;
    for (Seat& seat : seats_) {
      seat.complete = 0;
      std::fill(seat.received.begin(), seat.received.end(), 0);
    }
  }
  void publish(int64_t step) {
    std::lock_guard lock(mutex_);
    published_ = step;
    changed_.notify_all();
  }
  void stop() {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  // False: the server ends, or that step is over.
  bool wait_published(int64_t step) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || published_ >= step; });
    return !stopping_ && published_ == step;
  }
  bool wait_gathered(Instant deadline) {
    const auto limit = std::chrono::steady_clock::now() + (deadline - now());
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, limit, [&] {
      for (const Seat& seat : seats_) {
        if (seat.complete < model_.tensors.size()) return false;
      }
      return true;
    });
  }

  // Takes a part of a gradient. A worker's seat has one writer at a time: a call that a
  // dead worker left behind may still be running when its successor's begins. Parts of
  // other steps, and what is complete already, are dropped.
  bool put(uint32_t worker, uint32_t tensor, int64_t step, uint64_t offset,
           const std::string& data) {
    if (worker >= seats_.size() || tensor >= model_.tensors.size()) return false;
    const size_t bytes = model_.tensors[tensor].bytes();
    if (offset > bytes || data.size() > bytes - offset) return false;
    Seat& seat = seats_[worker];
    std::lock_guard writer(seat.writer);
    {
      std::lock_guard lock(mutex_);
      if (step != collecting_ || seat.complete == model_.tensors.size()) return true;
    }
    std::memcpy(reinterpret_cast<char*>(seat.gradients[tensor].get()) + offset, data.data(),
                data.size());
    // Chunks of a tensor come in order: the last byte completes it.
    if (offset + data.size() < bytes) return true;
    std::lock_guard lock(mutex_);
    if (!std::exchange(seat.received[tensor], 1)) ++seat.complete;
    changed_.notify_all();
    return true;
  }

 private:
  struct Seat {
    std::mutex writer;
    ParameterSet gradients;
    std::vector<char> received;  // by tensor
    size_t complete = 0;         // tensors received
  };
  const Model& model_;
  ParameterSet weights_[2];
  std::vector<Seat> seats_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t collecting_ = -1;
  int64_t published_ = -1;
  bool stopping_ = false;
};

grpc::Status over() {
  return {grpc::StatusCode::FAILED_PRECONDITION, "that step is over, or the server ends"};
}
grpc::Status bad_part() {
  return {grpc::StatusCode::INVALID_ARGUMENT, "no such worker, tensor or range"};
}

class Service final : public ::sluice::demo::ParameterServer::Service {
 public:
  explicit Service(Store& store) : store_(store) {}

  grpc::Status Pull(grpc::ServerContext*, const ::sluice::demo::PullRequest* request,
                    ::sluice::demo::TensorData* reply) override {
    if (request->tensor() >= store_.model().tensors.size()) return bad_part();
    if (!store_.wait_published(request->step())) return over();
    reply->set_tensor(request->tensor());
    reply->set_step(request->step());
    reply->set_data(store_.weights(request->step(), request->tensor()),
                    store_.model().tensors[request->tensor()].bytes());
    return grpc::Status::OK;
  }

  grpc::Status Push(grpc::ServerContext*, const ::sluice::demo::TensorData* part,
                    ::sluice::demo::Done*) override {
    return store_.put(part->worker(), part->tensor(), part->step(), 0, part->data())
               ? grpc::Status::OK
               : bad_part();
  }

  grpc::Status PullAll(grpc::ServerContext*, const ::sluice::demo::PullAllRequest* request,
                       grpc::ServerWriter<::sluice::demo::Chunk>* writer) override {
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
        if (!writer->Write(chunk)) return {grpc::StatusCode::CANCELLED, "the worker is gone"};
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status PushAll(grpc::ServerContext*, grpc::ServerReader<::sluice::demo::Chunk>* reader,
                       ::sluice::demo::Done*) override {
    ::sluice::demo::Chunk chunk;
    while (reader->Read(&chunk)) {
      if (!store_.put(chunk.worker(), chunk.tensor(), chunk.step(), chunk.offset(), chunk.data()))
        return bad_part();
    }
    return grpc::Status::OK;
  }

 private:
  Store& store_;
};

class GrpcServer final : public ServerLink {
 public:
  GrpcServer(const Visit& visit, const Model& model)
      : visit_(visit), store_(model, static_cast<size_t>(visit.workers)), service_(store_) {
    keep_grpc_running();
  }
  ~GrpcServer() override { close(); }

  Result<std::string> listen() override {
    // An abstract name: nothing in the file system to remove.
    const std::string unix_name =
        "unix-abstract:sluice-demo-grpc-" + std::to_string(std::random_device()());
    int port = 0;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    const bool brackets = visit_.host.find(':') != std::string::npos;
    const std::string host = (brackets ? "[" + visit_.host + "]" : visit_.host) + ":";
    builder.AddListeningPort(visit_.route == Route::kShm ? unix_name : host + "0",
                             grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0) {
      return Status(Code::kUnreachable, Scope::kContext, "demo/grpc",
                    "gRPC's server did not start");
    }
    return visit_.route == Route::kShm ? unix_name : host + std::to_string(port);
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
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
    server_.reset();
  }

 private:
  const Visit& visit_;
  Store store_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  int64_t step_ = 0;
};

}  // namespace

std::unique_ptr<ServerLink> make_grpc_server(const Visit& visit, const Model& model) {
  return std::make_unique<GrpcServer>(visit, model);
}

}  // namespace sluice::tools::demo
