// A flow of messages beside what is measured, from the client to the server on a connection of its
// own (--under-load): a window of them is always under way, served by whatever progresses the
// context.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <sluice/api/context.h>

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

class Flow final : private CompletionSink {
 public:
  enum class End : uint8_t { kSender, kReceiver };

  // The context outlives it.
  Flow(Context& context, Endpoint&& endpoint, End end)
      : context_(context), endpoint_(std::move(endpoint)), end_(end) {}
  ~Flow();
  Flow(const Flow&) = delete;

  // Allocates, and posts the first window. Errors: kWrongState (it runs), kNoMemory.
  Status start(const FlowLoad& load);
  // The sender: what is under way arrives, and nothing follows. The receiver: what still waits for
  // a message is given up. Nothing is under way afterwards. Errors: the flow's own, or kTimedOut.
  Status stop();

  // Messages that have ended since start().
  uint64_t messages() const { return messages_; }
  const Status& failure() const { return failure_; }

 private:
  void on_completion(Completion&& completion) noexcept override;
  // kTryAgain: the slot waits for another one's end.
  Status post(uint32_t slot);
  void post_waiting() noexcept;

  Context& context_;
  Endpoint endpoint_;
  End end_;
  std::vector<Tensor> tensors_;  // the sender's, one for each slot
  std::vector<Buffer> buffers_;  // the receiver's
  std::vector<OperationId> operations_;
  std::vector<uint32_t> waiting_;  // slots for which there was no room
  uint32_t outstanding_ = 0;
  uint64_t messages_ = 0;
  bool running_ = false;
  Status failure_;
};

}  // namespace sluice::tools
