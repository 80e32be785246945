// A whole parameter set through the exchange: published from one side (Outlet),
// fetched on the other (Inlet), with or without bounce buffers. Knows keys and
// buffers, not what the numbers mean nor which path carries them.
#ifndef SLUICE_TOOLS_DEMO_JOB_PARCELS_H_
#define SLUICE_TOOLS_DEMO_JOB_PARCELS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sluice/runtime/event_handler.h>
#include <sluice/sluice.h>

#include "tools/demo_job/control.h"
#include "tools/demo_job/model.h"

namespace sluice::tools::demo {

// Tensors that are written here, published under their names, and written again once
// all readers have released them. With a bounce buffer the memory stays writable and
// each publication is a copy of it.
class Outlet {
 public:
  // Keys are prefix + tensor name. Requires: context, exchange and model outlive it.
  Outlet(Context& context, Exchange& exchange, const Model& model, std::string prefix, bool bounce)
      : context_(context),
        exchange_(exchange),
        model_(model),
        prefix_(std::move(prefix)),
        bounce_(bounce) {}

  // Errors: kNoMemory.
  Status allocate();
  // Requires: reclaimed, or bounce; else the memory is only to be read.
  float* memory(uint32_t tensor) const { return memory_[tensor]; }
  // `after_each(n)` runs after n tensors are out.
  Status publish(int64_t step, const PublishOptions& options,
                 const std::function<void(size_t)>& after_each = {});
  // No new reader gets what is published.
  void retire();
  // Takes back what all readers have released; true when everything is writable.
  bool reclaim();
  // Progresses the context until reclaim(). Errors: kTimedOut.
  Status reclaim_by(Instant deadline);
  uint64_t bounced_bytes() const { return bounced_bytes_; }

 private:
  struct Item {
    Buffer master;  // with bounce: what the program writes
    Buffer buffer;  // what is frozen; empty while it is out
    Tensor tensor;  // came back, but its last loan may still be on the way
    std::optional<Publication> publication;
  };
  Context& context_;
  Exchange& exchange_;
  const Model& model_;
  std::string prefix_;
  bool bounce_;
  std::vector<Item> items_;
  std::vector<float*> memory_;
  uint64_t bounced_bytes_ = 0;
};

// Tensors fetched from one endpoint at a time, all of them for one step.
class Inlet {
 public:
  struct Options {
    bool views = false;   // the path has views: nothing to allocate for the transfer
    bool bounce = false;  // each tensor is copied out into memory of its own
  };
  Inlet(Context& context, Exchange& exchange, const Model& model, std::string prefix,
        const Options& options)
      : context_(context),
        exchange_(exchange),
        model_(model),
        prefix_(std::move(prefix)),
        options_(options) {}

  Status allocate();
  // Requires: idle(). Forgets what it held.
  Status post(const Endpoint& from, int64_t step, Instant deadline);
  // Takes in what has come.
  void collect();
  bool idle() const { return pending_ == 0; }  // nothing under way
  size_t arrived() const { return arrived_; }
  bool complete() const { return arrived_ == model_.tensors.size(); }
  // Why a tensor did not come; ok while none failed since post().
  const Status& failure() const { return failure_; }
  const float* data(uint32_t tensor) const { return items_[tensor].data; }
  // Views go home; data() is void.
  void release();
  // What is under way ends soon; collect() until idle().
  void cancel();
  uint64_t bounced_bytes() const { return bounced_bytes_; }

 private:
  struct Item {
    std::optional<Fetch> view;
    std::optional<FetchInto> into;
    Tensor tensor;       // a view, or an owned tensor
    Buffer destination;  // of the transfer, where the path has no views
    Buffer copy;         // with bounce
    const float* data = nullptr;
  };
  void take(Item& item);
  void arrive(Item& item, const std::byte* bytes, size_t length);

  Context& context_;
  Exchange& exchange_;
  const Model& model_;
  std::string prefix_;
  Options options_;
  std::vector<Item> items_;
  size_t pending_ = 0;
  size_t arrived_ = 0;
  Status failure_;
  uint64_t bounced_bytes_ = 0;
};

// Feeds a control line's messages into a context's waiting.
class OrderWatch final : public EventHandler {
 public:
  void on_event(uint32_t epoll_events) noexcept override;
  // Progresses `context` until an order comes; `serve` has a turn after each progress.
  Result<Message> wait(Context& context, ControlLine& line, Instant deadline,
                       const std::function<void()>& serve);

 private:
  ControlLine* line_ = nullptr;
  std::optional<Result<Message>> order_;
};

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_PARCELS_H_
