#include "tools/perf/load/flow.h"

#include <cstring>
#include <utility>

#include "tools/perf/run/control.h"

namespace sluice::tools {
namespace {

// Any of the connection, on which nothing else is said.
constexpr TagMatch kAny{.tag = 0, .mask = kControlTag};
constexpr Tag kFlowTag = 1;

}  // namespace

Flow::~Flow() {
  running_ = false;
  // Ends every operation before what it refers to.
  if (endpoint_) (void)endpoint_.close(after(sluice::now(), std::chrono::seconds(5)));
}

Status Flow::start(const FlowLoad& load) {
  // What is under way names slots of the flow before.
  if (running_ || outstanding_ > 0)
    return Status(Code::kWrongState, Scope::kEndpoint, "perf/flow",
                  "a flow that runs is begun once more; end it first");
  Arena& arena = context_.arena();
  tensors_.clear();
  buffers_.clear();
  operations_.assign(load.depth, kNoOperation);
  waiting_.clear();
  messages_ = 0;
  failure_ = Status();
  for (uint32_t slot = 0; slot < load.depth; ++slot) {
    SLUICE_TRY(Buffer buffer, arena.allocate(load.size_bytes));
    if (end_ == End::kReceiver) {
      buffers_.push_back(std::move(buffer));
    } else {
      std::memset(buffer.data(), static_cast<int>(slot), load.size_bytes);
      tensors_.push_back(std::move(buffer).freeze());
    }
  }
  running_ = true;
  for (uint32_t slot = load.depth; slot-- > 0;) waiting_.push_back(slot);
  post_waiting();
  return failure_;
}

void Flow::post_waiting() noexcept {
  while (running_ && failure_.ok() && !waiting_.empty()) {
    Status status = post(waiting_.back());
    // The next end tries again; without one nothing would.
    if (status.code() == Code::kTryAgain && outstanding_ > 0) return;
    if (status.ok()) {
      waiting_.pop_back();
    } else {
      failure_ = status;
    }
  }
}

Status Flow::post(uint32_t slot) {
  PostOptions options{.sink = this, .user_data = slot, .deadline = kNever};
  if (end_ == End::kSender) {
    options.level = Level::kPlaced;
    SLUICE_TRY(operations_[slot], endpoint_.send(kFlowTag, tensors_[slot], options));
  } else {
    SLUICE_TRY(operations_[slot], endpoint_.receive(kAny, std::move(buffers_[slot]), options));
  }
  ++outstanding_;
  return Status();
}

void Flow::on_completion(Completion&& completion) noexcept {
  auto slot = static_cast<uint32_t>(completion.user_data);
  --outstanding_;
  operations_[slot] = kNoOperation;
  if (end_ == End::kReceiver && !completion.buffers.empty())
    buffers_[slot] = std::move(completion.buffers[0]);
  if (!completion.status.ok()) {
    if (running_) failure_ = completion.status;
    return;
  }
  ++messages_;
  waiting_.push_back(slot);
  post_waiting();
}

Status Flow::stop() {
  if (!running_) return failure_;
  running_ = false;
  if (end_ == End::kReceiver) {
    for (OperationId operation : operations_) {
      if (operation != kNoOperation) (void)endpoint_.cancel(operation);
    }
  }
  Status over =
      context_.wait_until([this] { return outstanding_ == 0; }, after(sluice::now(), kStallLimit));
  if (!over.ok())
    (void)endpoint_.close(after(sluice::now(), std::chrono::seconds(5)));  // ends every operation
  tensors_.clear();
  buffers_.clear();
  return failure_.ok() ? over : failure_;
}

}  // namespace sluice::tools
