// One server of a gRPC worker: the channel to it, and the tensors that it has.
#ifndef SLUICE_TOOLS_DEMO_JOB_GRPC_LANE_H_
#define SLUICE_TOOLS_DEMO_JOB_GRPC_LANE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include <sluice/base/clock.h>
#include <sluice/base/result.h>

#include "tools/demo_job/links.h"
#include "tools/demo_job/model.h"
#include "tools/demo_job/parameter_server.grpc.pb.h"

namespace sluice::tools::demo {

// All outlive the lane.
struct GrpcLaneParameters {
  const Visit& visit;
  const Model& shard;
  uint32_t worker;
  const KillSwitch& kill;
};

class GrpcLane {
 public:
  explicit GrpcLane(const GrpcLaneParameters& parameters);
  virtual ~GrpcLane() = default;

  Status connect(const std::string& address);

  // `chunk_bytes`: of a stream.
  virtual Status pull(int64_t step, uint64_t chunk_bytes, Instant deadline) = 0;
  virtual Status push(int64_t step, uint64_t chunk_bytes, Instant deadline) = 0;
  virtual const float* weights(uint32_t tensor) const = 0;
  float* gradient(uint32_t tensor) { return gradients_[tensor].get(); }

 protected:
  static void limit(::grpc::ClientContext& call, Instant deadline);
  static Status told(const ::grpc::Status& status);
  char* gradient_bytes(uint32_t tensor) const {
    return reinterpret_cast<char*>(gradients_[tensor].get());
  }
  uint32_t tensor_count() const { return static_cast<uint32_t>(shard_.tensors.size()); }
  void kill_half_way(KillPoint point, uint32_t tensor) const {
    if ((tensor + 1) * 2 >= tensor_count()) kill_(point);
  }

  const Model& shard_;
  const uint32_t worker_;
  std::shared_ptr<::grpc::Channel> channel_;
  std::unique_ptr<::sluice::demo::ParameterServer::Stub> stub_;

 private:
  const Visit& visit_;
  const KillSwitch& kill_;
  std::vector<std::unique_ptr<float[]>> gradients_;
};

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_GRPC_LANE_H_
