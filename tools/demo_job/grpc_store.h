// What the gRPC services of a server share with its steps: two sets of weights in turn, and a seat
// of gradients for each worker. Knows no message of gRPC's.
#ifndef SLUICE_TOOLS_DEMO_JOB_GRPC_STORE_H_
#define SLUICE_TOOLS_DEMO_JOB_GRPC_STORE_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include <sluice/base/clock.h>

#include "tools/demo_job/model.h"

namespace sluice::tools::demo {

// Where a part of a gradient belongs.
struct PartPlace {
  uint32_t worker = 0, tensor = 0;
  int64_t step = 0;
  uint64_t offset = 0;  // bytes
};

// Thread: any. `model` outlives it.
class GrpcStore {
 public:
  GrpcStore(const Model& model, size_t workers);

  const Model& model() const { return model_; }
  float* weights(int64_t step, uint32_t tensor) {
    return weights_[static_cast<size_t>(step) % 2][tensor].get();
  }
  const float* gradient(uint32_t worker, uint32_t tensor) const {
    return seats_[worker].gradients[tensor].get();
  }

  void prepare(int64_t step);
  void publish(int64_t step);
  // Nobody waits any more.
  void stop();
  // False: the server ends, or that step is over. Blocks: until the step is published.
  bool wait_published(int64_t step);
  // The same without blocking: `then` is called once, at once or by publish() or stop().
  void when_published(int64_t step, std::function<void(bool)> then);
  bool wait_gathered(Instant deadline);

  // Takes a part of a gradient, which came in pieces; parts of a tensor come in order. False: there
  // is no such place. A worker's seat has one writer at a time: a call that a dead worker left
  // behind may still be running when its successor's begins. Parts of other steps, and what is
  // complete already, are dropped.
  bool put(const PartPlace& place, std::span<const std::string_view> pieces);

 private:
  using ParameterSet = std::vector<std::unique_ptr<float[]>>;
  struct Seat {
    std::mutex writer;
    ParameterSet gradients;
    std::vector<char> received;  // by tensor
    size_t complete = 0;         // tensors received
  };
  struct Waiting {
    int64_t step;
    std::function<void(bool)> then;
  };

  static ParameterSet allocate(const Model& model);
  // Calls those whose step is published, or all if the server ends. Takes the lock's ownership.
  void wake(std::unique_lock<std::mutex> lock);

  const Model& model_;
  ParameterSet weights_[2];
  std::vector<Seat> seats_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Waiting> waiting_;
  int64_t collecting_ = -1;
  int64_t published_ = -1;
  bool stopping_ = false;
};

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_GRPC_STORE_H_
