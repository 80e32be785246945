// The seam of the demo job: how a server and a worker reach each other. One implementation stands
// on sluice's exchange, one on gRPC, by itself or over sluice; the steps (server.cc, worker.cc)
// know neither.
#ifndef SLUICE_TOOLS_DEMO_JOB_LINKS_H_
#define SLUICE_TOOLS_DEMO_JOB_LINKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sluice/base/result.h>

#include "tools/demo_job/control.h"
#include "tools/demo_job/job.h"
#include "tools/demo_job/model.h"

namespace sluice::tools::demo {

// The links of one server; its model is its shard. Thread: one. All blocking calls end by their
// deadline.
class ServerLink {
 public:
  virtual ~ServerLink() = default;
  // The address that workers connect to.
  virtual Result<std::string> listen() = 0;
  // Weights of the step that is or will be published next; of the first one writable.
  virtual float* weights(uint32_t tensor) = 0;
  // Asks present and future workers for the gradients of `step`.
  virtual Status prepare(int64_t step) = 0;
  virtual Status publish(int64_t step) = 0;
  // Blocks: until every worker's gradients of the published step are here.
  virtual Status gather(Instant deadline) = 0;
  virtual const float* gradient(uint32_t worker, uint32_t tensor) const = 0;
  // Memory for the next step's weights; may be weights() itself.
  virtual Result<float*> next_weights(uint32_t tensor, Instant deadline) = 0;
  // next_weights are weights from now on.
  virtual void swap_weights() = 0;
  // The gradients are no longer read.
  virtual void release_gradients() = 0;
  // Keeps the workers served until an order comes.
  virtual Result<Message> wait_order(ControlLine& line, Instant deadline) = 0;
  // Bytes copied by CPUs on this side so far, user and kernel; 0 where unknown.
  virtual uint64_t copied_bytes() const = 0;
  // Most bytes that its arena held at once; 0 where it has none.
  virtual uint64_t arena_bytes() const { return 0; }
  virtual void close() = 0;
};

// To all servers at once; its tensors are those of the whole model.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  virtual Status connect(const std::vector<std::string>& addresses) = 0;
  // Asks for the weights of `step` where that can be done early.
  virtual Status prepare(int64_t step, Instant deadline) = 0;
  // Blocks: until all weights are here.
  virtual Status pull(int64_t step, Instant deadline) = 0;
  virtual const float* weights(uint32_t tensor) const = 0;
  // Writable between finish() and push().
  virtual float* gradient(uint32_t tensor) = 0;
  virtual Status push(int64_t step, Instant deadline) = 0;
  // Keeps the servers served until an order comes.
  virtual Result<Message> wait_order(ControlLine& line, Instant deadline) = 0;
  // The weights are no longer read; gradient() is writable again.
  virtual Status finish(Instant deadline) = 0;
  virtual uint64_t copied_bytes() const = 0;
  virtual uint64_t arena_bytes() const { return 0; }
  virtual uint64_t chunk_bytes() const { return 0; }
  virtual void close() = 0;
};

// What a worker's link moves. Both models outlive it.
struct WorkerParameters {
  const Model& model;
  const Placement& placement;
  uint32_t worker = 0;
};

// Called at the points where a test may kill the worker.
using KillSwitch = std::function<void(KillPoint)>;

std::unique_ptr<ServerLink> make_exchange_server(const Visit& visit, const Model& model);
std::unique_ptr<WorkerLink> make_exchange_worker(const Visit& visit,
                                                 const WorkerParameters& parameters,
                                                 KillSwitch kill);
std::unique_ptr<ServerLink> make_grpc_server(const Visit& visit, const Model& model);
std::unique_ptr<WorkerLink> make_grpc_worker(const Visit& visit, const WorkerParameters& parameters,
                                             KillSwitch kill);

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_LINKS_H_
