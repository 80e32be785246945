// A worker's link over gRPC: one unary call per tensor, by gRPC or over sluice, or one stream of
// chunks copied into memory allocated before, written plainly or as experts do (grpc_expert.h).
// From several servers at once, a thread for each.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "tools/demo_job/grpc_expert.h"
#include "tools/demo_job/grpc_lane.h"
#include "tools/demo_job/grpc_link.h"
#include "tools/demo_job/links.h"
#include "tools/demo_job/parameter_server.grpc.pb.h"

namespace sluice::tools::demo {
namespace {

// Chunk sizes tried in the warm-up step. gRPC's own frames are 16 KiB; larger messages
// save calls until they leave the caches.
constexpr std::array<uint64_t, 5> kChunkSizes = {64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20};

// The weights stay in the replies, whose memory is used again in the next step.
class UnaryLane final : public GrpcLane {
 public:
  explicit UnaryLane(const GrpcLaneParameters& parameters)
      : GrpcLane(parameters), replies_(shard_.tensors.size()) {}

  Status pull(int64_t step, uint64_t, Instant deadline) override {
    for (uint32_t t = 0; t < tensor_count(); ++t) {
      ::sluice::demo::PullRequest request;
      request.set_tensor(t);
      request.set_step(step);
      grpc::ClientContext call;
      limit(call, deadline);
      SLUICE_RETURN_IF_ERROR(told(stub_->Pull(&call, request, &replies_[t])));
      if (replies_[t].data().size() != shard_.tensors[t].bytes()) {
        return Status(Code::kCorrupt, Scope::kOperation, "demo/grpc",
                      "a tensor of another size came");
      }
      kill_half_way(KillPoint::kMidPull, t);
    }
    return Status();
  }

  const float* weights(uint32_t tensor) const override {
    return reinterpret_cast<const float*>(replies_[tensor].data().data());
  }

  Status push(int64_t step, uint64_t, Instant deadline) override {
    ::sluice::demo::TensorData& part = part_;
    part.set_worker(worker_);
    part.set_step(step);
    for (uint32_t t = 0; t < tensor_count(); ++t) {
      part.set_tensor(t);
      part.set_data(gradient_bytes(t), shard_.tensors[t].bytes());
      ::sluice::demo::Done done;
      grpc::ClientContext call;
      limit(call, deadline);
      SLUICE_RETURN_IF_ERROR(told(stub_->Push(&call, part, &done)));
      kill_half_way(KillPoint::kMidPush, t);
    }
    return Status();
  }

 private:
  std::vector<::sluice::demo::TensorData> replies_;
  ::sluice::demo::TensorData part_;
};

class StreamLane final : public GrpcLane {
 public:
  explicit StreamLane(const GrpcLaneParameters& parameters) : GrpcLane(parameters) {
    for (const TensorSpec& spec : shard_.tensors) {
      weights_.push_back(std::make_unique_for_overwrite<float[]>(spec.elements));
    }
  }

  const float* weights(uint32_t tensor) const override { return weights_[tensor].get(); }

  Status pull(int64_t step, uint64_t chunk_bytes, Instant deadline) override {
    ::sluice::demo::PullAllRequest request;
    request.set_step(step);
    request.set_chunk_bytes(chunk_bytes);
    grpc::ClientContext call;
    limit(call, deadline);
    auto reader = stub_->PullAll(&call, request);
    uint64_t received = 0;
    while (reader->Read(&chunk_)) {
      const uint32_t t = chunk_.tensor();
      const std::string& data = chunk_.data();
      if (t >= tensor_count() || chunk_.offset() > shard_.tensors[t].bytes() ||
          data.size() > shard_.tensors[t].bytes() - chunk_.offset()) {
        call.TryCancel();
        return Status(Code::kCorrupt, Scope::kOperation, "demo/grpc",
                      "a chunk outside its tensor came");
      }
      std::memcpy(reinterpret_cast<char*>(weights_[t].get()) + chunk_.offset(), data.data(),
                  data.size());
      received += data.size();
      kill_half_way(KillPoint::kMidPull, t);
    }
    SLUICE_RETURN_IF_ERROR(told(reader->Finish()));
    if (received == shard_.bytes()) return Status();
    return Status(Code::kCorrupt, Scope::kOperation, "demo/grpc", "the stream ended early");
  }

  Status push(int64_t step, uint64_t chunk_bytes, Instant deadline) override {
    grpc::ClientContext call;
    limit(call, deadline);
    ::sluice::demo::Done done;
    auto writer = stub_->PushAll(&call, &done);
    chunk_.set_worker(worker_);
    chunk_.set_step(step);
    bool writing = true;
    for (uint32_t t = 0; t < tensor_count() && writing; ++t) {
      const size_t bytes = shard_.tensors[t].bytes();
      chunk_.set_tensor(t);
      for (size_t at = 0; at < bytes && writing; at += chunk_bytes) {
        chunk_.set_offset(at);
        chunk_.set_data(gradient_bytes(t) + at, std::min<size_t>(chunk_bytes, bytes - at));
        writing = writer->Write(chunk_);
      }
      kill_half_way(KillPoint::kMidPush, t);
    }
    writer->WritesDone();
    return told(writer->Finish());
  }

 private:
  std::vector<std::unique_ptr<float[]>> weights_;
  ::sluice::demo::Chunk chunk_;
};

std::unique_ptr<GrpcLane> make_lane(const GrpcLaneParameters& parameters) {
  switch (parameters.visit.mode) {
    case Mode::kGrpcExpert: return make_expert_lane(parameters);
    case Mode::kGrpcStream: return std::make_unique<StreamLane>(parameters);
    default: return std::make_unique<UnaryLane>(parameters);
  }
}

std::span<const uint64_t> chunk_sizes(Mode mode) {
  switch (mode) {
    case Mode::kGrpcExpert: return kExpertChunkSizes;
    case Mode::kGrpcStream: return kChunkSizes;
    default: return {};
  }
}

class GrpcWorker final : public WorkerLink {
 public:
  GrpcWorker(const Visit& visit, const WorkerParameters& parameters, KillSwitch kill)
      : parameters_(parameters),
        kill_(std::move(kill)),
        chunk_sizes_(chunk_sizes(visit.mode)),
        chunk_bytes_(visit.chunk_bytes) {
    keep_grpc_running();
    for (const Model& shard : parameters.placement.shards)
      lanes_.push_back(make_lane({visit, shard, parameters.worker, kill_}));
  }

  Status connect(const std::vector<std::string>& addresses) override {
    for (size_t i = 0; i < addresses.size(); ++i)
      SLUICE_RETURN_IF_ERROR(lanes_[i]->connect(addresses[i]));
    return Status();
  }

  Status prepare(int64_t, Instant) override { return Status(); }

  Status pull(int64_t step, Instant deadline) override {
    if (!chunk_sizes_.empty() && chunk_bytes_ == 0) return sweep(step, deadline);
    return pull_in_chunks(step, chunk_bytes_, deadline);
  }

  Status push(int64_t step, Instant deadline) override {
    return with_all([&](GrpcLane& lane) { return lane.push(step, chunk_bytes_, deadline); });
  }

  const float* weights(uint32_t tensor) const override {
    return lane_of(tensor).weights(parameters_.placement.places[tensor].tensor);
  }
  float* gradient(uint32_t tensor) override {
    return lane_of(tensor).gradient(parameters_.placement.places[tensor].tensor);
  }
  Result<Message> wait_order(ControlLine& line, Instant deadline) override {
    return line.receive(deadline);
  }
  Status finish(Instant) override { return Status(); }
  uint64_t copied_bytes() const override { return 0; }
  uint64_t chunk_bytes() const override { return chunk_bytes_; }
  void close() override { lanes_.clear(); }

 private:
  GrpcLane& lane_of(uint32_t tensor) const {
    return *lanes_[parameters_.placement.places[tensor].server];
  }

  // At once, the first of them in this thread.
  Status with_all(const std::function<Status(GrpcLane&)>& act) {
    std::vector<Status> ended(lanes_.size());
    {
      std::vector<std::jthread> threads;
      for (size_t i = 1; i < lanes_.size(); ++i)
        threads.emplace_back([&, i] { ended[i] = act(*lanes_[i]); });
      ended[0] = act(*lanes_[0]);
    }
    for (const Status& status : ended) SLUICE_RETURN_IF_ERROR(status);
    return Status();
  }

  Status pull_in_chunks(int64_t step, uint64_t chunk_bytes, Instant deadline) {
    return with_all([&](GrpcLane& lane) { return lane.pull(step, chunk_bytes, deadline); });
  }

  // Warm-up: the first pull faults the pages in, then each size has its turn.
  Status sweep(int64_t step, Instant deadline) {
    SLUICE_RETURN_IF_ERROR(pull_in_chunks(step, chunk_sizes_[1], deadline));
    Duration best = Duration::max();
    for (uint64_t size : chunk_sizes_) {
      const Instant start = now();
      SLUICE_RETURN_IF_ERROR(pull_in_chunks(step, size, deadline));
      if (now() - start < best) {
        best = now() - start;
        chunk_bytes_ = size;
      }
    }
    return Status();
  }

  const WorkerParameters parameters_;
  KillSwitch kill_;
  const std::span<const uint64_t> chunk_sizes_;  // empty: no chunks
  uint64_t chunk_bytes_;
  std::vector<std::unique_ptr<GrpcLane>> lanes_;
};

}  // namespace

std::unique_ptr<WorkerLink> make_grpc_worker(const Visit& visit, const WorkerParameters& parameters,
                                             KillSwitch kill) {
  return std::make_unique<GrpcWorker>(visit, parameters, std::move(kill));
}

}  // namespace sluice::tools::demo
