// Carries out one process's part of a plan over an exchange. Knows no path: what a tensor's way was
// is read from its receipt.
#ifndef SLUICE_GRAPH_RUNNER_H_
#define SLUICE_GRAPH_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include <sluice/api/context.h>
#include <sluice/exchange/exchange.h>
#include <sluice/graph/plan.h>

namespace sluice::graph {

// What the program does at its nodes. Memory is compact, of the edge's dtype and shape, and valid
// for the length of the call. Thread: the context's; a kernel may progress the context.
class Kernels {
 public:
  struct Input {
    uint32_t edge = 0;
    std::span<const std::byte> bytes;
  };
  struct Output {
    uint32_t edge = 0;
    std::span<std::byte> bytes;  // may be an input's memory, where the node is in_place
  };
  virtual ~Kernels() = default;
  // The tensor that step 0 reads of an edge with delay.
  virtual Status supply(uint32_t edge, std::span<std::byte> into) = 0;
  // In the order in which the graph lists the edges. Control edges are left out.
  virtual Status run(uint32_t node, uint64_t step, std::span<const Input> inputs,
                     std::span<const Output> outputs) = 0;
};

// What came by one delivery so far, by its receipts.
struct Traffic {
  uint64_t tensors = 0;
  uint64_t views = 0;  // of them, those whose receipt says: peer's memory, no byte copied
  uint64_t bytes = 0;
  uint64_t copied_bytes = 0;  // by processors of this side, user and kernel
  Path path = Path::kNone;    // of the last one
  double waited_us = 0;       // the process had nothing else to do
};

struct RunnerOptions {
  // Longest wait for one tensor, or for readers to give one back.
  Duration patience = std::chrono::seconds(30);
};

// Thread: the context's. Requires: context, exchange, plan and kernels outlive it; problem_of(plan)
// is empty.
class Runner {
 public:
  Runner(Context& context, Exchange& exchange, const Plan& plan, uint32_t process, Kernels& kernels,
         const RunnerOptions& options = {});
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Takes the memory of the plan and lets the program supply what step 0 reads. Nobody else is
  // needed for that.
  // Errors: kUnsupported (a node's device is not cpu), kNoMemory, and the program's.
  Status prepare();
  // Which endpoint leads to a process. Needed for each whose tensors this one reads, before
  // start(); the others ask by themselves. The endpoint is in the exchange already.
  void connect(uint32_t process, const Endpoint& endpoint);
  // Publishes and asks for what step 0 reads.
  // Errors: kWrongState (not prepared, started or finished before, no endpoint to a process), and
  // those of publishing and fetching; after these the runner can only finish().
  Status start();
  // One step. Errors: the program's, those of fetches, kTimedOut (patience), kUnreachable (a
  // process that reads what lay in memory that is needed has ended, or was too slow for the
  // exchange), kInternal (a receipt that contradicts the plan: a view that was copied), each with
  // the tensor and the step. The runner can only finish() after one.
  Status run_step();
  uint64_t step() const;  // the next one
  // Cancels what was asked for ahead, and waits until the readers of the last step, which others
  // may still run, have given their tensors back: keep the endpoints open until it returns. All
  // processes run the same number of steps. After a failure it waits for nobody.
  // Errors: kTimedOut (patience).
  Status finish();

  // By delivery of the plan; those of other processes stay empty.
  std::span<const Traffic> traffic() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::graph

#endif  // SLUICE_GRAPH_RUNNER_H_
