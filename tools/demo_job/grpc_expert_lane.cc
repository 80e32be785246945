#include <future>

#include <grpcpp/generic/generic_stub.h>

#include "tools/demo_job/grpc_expert.h"

namespace sluice::tools::demo {
namespace {

// One call, which ends with OnDone().
class Call : public ::grpc::ClientBidiReactor<::grpc::ByteBuffer, ::grpc::ByteBuffer> {
 public:
  void OnDone(const ::grpc::Status& status) override { done_.set_value(status); }
  // Blocks: until the call is over.
  ::grpc::Status wait() { return done_.get_future().get(); }
  ::grpc::ClientContext& context() { return context_; }

 protected:
  void prepare(const std::shared_ptr<::grpc::Channel>& channel, const char* method) {
    ::grpc::TemplatedGenericStub<::grpc::ByteBuffer, ::grpc::ByteBuffer> stub(channel);
    stub.PrepareBidiStreamingCall(&context_, method, {}, this);
  }

  ::grpc::ClientContext context_;
  ::grpc::ByteBuffer message_;

 private:
  std::promise<::grpc::Status> done_;
};

class ExpertLane final : public GrpcLane {
 public:
  explicit ExpertLane(const GrpcLaneParameters& parameters) : GrpcLane(parameters) {
    for (const TensorSpec& spec : shard_.tensors)
      weights_.push_back(std::make_unique_for_overwrite<float[]>(spec.elements));
  }

  const float* weights(uint32_t tensor) const override { return weights_[tensor].get(); }

  Status pull(int64_t step, uint64_t chunk_bytes, Instant deadline) override {
    Pull call(*this);
    limit(call.context(), deadline);
    call.start({step, chunk_bytes});
    const Status ended = told(call.wait());
    if (call.received() == shard_.bytes() || !ended.ok()) return ended;
    return Status(Code::kCorrupt, Scope::kOperation, "demo/grpc",
                  "the stream ended early, or with a part outside its tensor");
  }

  Status push(int64_t step, uint64_t chunk_bytes, Instant deadline) override {
    Push call(*this, step, chunk_bytes);
    limit(call.context(), deadline);
    call.start();
    return told(call.wait());
  }

 private:
  class Pull final : public Call {
   public:
    explicit Pull(ExpertLane& lane) : lane_(lane) {}
    void start(const ExpertAsk& ask) {
      prepare(lane_.channel_, kExpertPull);
      const ::grpc::Slice slice(&ask, sizeof(ask));
      message_ = ::grpc::ByteBuffer(&slice, 1);
      StartWriteLast(&message_, ::grpc::WriteOptions());
      StartRead(&answer_);
      StartCall();
    }
    // Requires: the call is over. Bytes of parts that were in their place.
    uint64_t received() const { return received_; }

    void OnReadDone(bool ok) override {
      if (!ok) return;
      if (!take()) return context_.TryCancel();
      StartRead(&answer_);
    }

   private:
    bool take() {
      PartPlace place;
      if (!part_.open(answer_, place) || place.tensor >= lane_.tensor_count()) return false;
      const size_t bytes = lane_.shard_.tensors[place.tensor].bytes();
      size_t at = place.offset;
      for (std::string_view piece : part_.pieces()) {
        if (at > bytes || piece.size() > bytes - at) return false;
        char* to = reinterpret_cast<char*>(lane_.weights_[place.tensor].get());
        std::memcpy(to + at, piece.data(), piece.size());
        at += piece.size();
        received_ += piece.size();
      }
      lane_.kill_half_way(KillPoint::kMidPull, place.tensor);
      return true;
    }

    ExpertLane& lane_;
    ::grpc::ByteBuffer answer_;
    ExpertMessage part_;
    uint64_t received_ = 0;
  };

  class Push final : public Call {
   public:
    Push(ExpertLane& lane, int64_t step, uint64_t chunk_bytes)
        : lane_(lane), step_(step), chunks_(lane.shard_, chunk_bytes) {}
    void start() {
      prepare(lane_.channel_, kExpertPush);
      next();
      StartCall();
    }
    void OnWriteDone(bool ok) override {
      if (ok && !chunks_.done()) next();
    }

   private:
    void next() {
      const uint32_t tensor = chunks_.tensor();
      message_ = chunks_.take(lane_.gradient_bytes(tensor), {lane_.worker_, 0, step_, 0});
      if (chunks_.done())
        StartWriteLast(&message_, ::grpc::WriteOptions());
      else
        StartWrite(&message_);
      if (chunks_.tensor() != tensor) lane_.kill_half_way(KillPoint::kMidPush, tensor);
    }

    ExpertLane& lane_;
    const int64_t step_;
    ExpertChunks chunks_;
  };

  std::vector<std::unique_ptr<float[]>> weights_;
};

}  // namespace

std::unique_ptr<GrpcLane> make_expert_lane(const GrpcLaneParameters& parameters) {
  return std::make_unique<ExpertLane>(parameters);
}

}  // namespace sluice::tools::demo
