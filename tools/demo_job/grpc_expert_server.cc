#include <optional>

#include "tools/demo_job/grpc_expert.h"

namespace sluice::tools::demo {
namespace {

using Reactor = ::grpc::ServerGenericBidiReactor;

::grpc::Status bad_message() {
  return {::grpc::StatusCode::INVALID_ARGUMENT, "no such step, worker, tensor or range"};
}

// Sends the weights from where they lie.
class Pull final : public Reactor {
 public:
  explicit Pull(GrpcStore& store) : store_(store) { StartRead(&message_); }

  void OnReadDone(bool ok) override {
    ExpertMessage asked;
    if (!ok || !asked.open(message_, ask_)) return Finish(bad_message());
    chunks_.emplace(store_.model(), ask_.chunk_bytes);
    // Alive until Finish(), which only what is called here leads to.
    store_.when_published(ask_.step, [this](bool there) {
      if (there) return next();
      Finish({::grpc::StatusCode::FAILED_PRECONDITION, "that step is over, or the server ends"});
    });
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish({::grpc::StatusCode::CANCELLED, "the worker is gone"});
    next();
  }
  void OnDone() override { delete this; }

 private:
  void next() {
    if (chunks_->done()) return Finish(::grpc::Status::OK);
    char* data = reinterpret_cast<char*>(store_.weights(ask_.step, chunks_->tensor()));
    message_ = chunks_->take(data, {.step = ask_.step});
    StartWrite(&message_);
  }

  GrpcStore& store_;
  ExpertAsk ask_;
  std::optional<ExpertChunks> chunks_;
  ::grpc::ByteBuffer message_;
};

class Push final : public Reactor {
 public:
  explicit Push(GrpcStore& store) : store_(store) { StartRead(&message_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(::grpc::Status::OK);
    PartPlace place;
    if (!part_.open(message_, place) || !store_.put(place, part_.pieces()))
      return Finish(bad_message());
    StartRead(&message_);
  }
  void OnDone() override { delete this; }

 private:
  GrpcStore& store_;
  ::grpc::ByteBuffer message_;
  ExpertMessage part_;
};

class Unknown final : public Reactor {
 public:
  Unknown() { Finish({::grpc::StatusCode::UNIMPLEMENTED, "no such method"}); }
  void OnDone() override { delete this; }
};

class Service final : public ::grpc::CallbackGenericService {
 public:
  explicit Service(GrpcStore& store) : store_(store) {}

 private:
  Reactor* CreateReactor(::grpc::GenericCallbackServerContext* context) override {
    if (context->method() == kExpertPull) return new Pull(store_);
    if (context->method() == kExpertPush) return new Push(store_);
    return new Unknown;
  }

  GrpcStore& store_;
};

}  // namespace

std::unique_ptr<::grpc::CallbackGenericService> make_expert_service(GrpcStore& store) {
  return std::make_unique<Service>(store);
}

}  // namespace sluice::tools::demo
