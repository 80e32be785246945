// A worker's link over sluice's exchange: modes zerocopy and onecopy.
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include <sluice/sluice.h>

#include "tools/demo_job/exchange_link.h"
#include "tools/demo_job/links.h"
#include "tools/demo_job/parcels.h"

namespace sluice::tools::demo {
namespace {

// One server, and the weights that come from it. Stays where it is: fetches refer to the endpoint.
struct Source {
  Endpoint endpoint;
  std::optional<Inlet> weights;
};

class ExchangeWorker final : public WorkerLink {
 public:
  ExchangeWorker(const Visit& visit, const WorkerParameters& parameters, KillSwitch kill)
      : visit_(visit), parameters_(parameters), kill_(std::move(kill)) {}

  Status connect(const std::vector<std::string>& addresses) override {
    SLUICE_RETURN_IF_ERROR(open());
    for (size_t i = 0; i < addresses.size(); ++i)
      SLUICE_RETURN_IF_ERROR(connect(*sources_[i], addresses[i]));
    return Status();
  }

  Status prepare(int64_t step, Instant deadline) override {
    for (auto& source : sources_)
      SLUICE_RETURN_IF_ERROR(source->weights->post(source->endpoint, step, deadline));
    return Status();
  }

  Status pull(int64_t, Instant deadline) override {
    SLUICE_RETURN_IF_ERROR(context_->wait_until(
        [&] {
          size_t arrived = 0;
          bool idle = true;
          for (auto& source : sources_) {
            source->weights->collect();
            arrived += source->weights->arrived();
            idle = idle && source->weights->idle();
          }
          if (arrived * 2 >= parameters_.model.tensors.size()) kill_(KillPoint::kMidPull);
          return idle;
        },
        deadline));
    for (const auto& source : sources_) SLUICE_RETURN_IF_ERROR(source->weights->failure());
    return Status();
  }

  const float* weights(uint32_t tensor) const override {
    const Placement::Place& place = parameters_.placement.places[tensor];
    return sources_[place.server]->weights->data(place.tensor);
  }
  float* gradient(uint32_t tensor) override { return gradients_->memory(tensor); }

  Status push(int64_t step, Instant) override {
    return gradients_->publish(step, {.readers = 1}, [&](size_t out) {
      if (out * 2 >= parameters_.model.tensors.size()) {
        (void)context_->progress();
        kill_(KillPoint::kMidPush);
      }
    });
  }

  Result<Message> wait_order(ControlLine& line, Instant deadline) override {
    return orders_.wait(*context_, line, deadline, {});
  }

  Status finish(Instant deadline) override {
    for (auto& source : sources_) source->weights->release();
    // The servers have what they wanted; what they never asked for (they averaged our
    // predecessor's gradients) comes back at once.
    gradients_->retire();
    return gradients_->reclaim_by(deadline);
  }

  uint64_t copied_bytes() const override {
    uint64_t sum = gradients_->bounced_bytes();
    for (const auto& source : sources_) {
      const EndpointCounters counters = source->endpoint.counters();
      sum +=
          counters.copied_bytes + counters.kernel_copied_bytes + source->weights->bounced_bytes();
    }
    return sum;
  }

  uint64_t arena_bytes() const override { return context_->arena().statistics().peak_used_bytes; }

  void close() override {
    for (auto& source : sources_) (void)source->endpoint.close(after(now(), kCloseTime));
    exchange_.reset();
    (void)context_->close(after(now(), kCloseTime));
  }

 private:
  Status open() {
    SLUICE_TRY(context_, open_context());
    exchange_.emplace(*context_);
    const bool bounce = visit_.mode == Mode::kOnecopy;
    for (const Model& shard : parameters_.placement.shards) {
      auto& source = sources_.emplace_back(std::make_unique<Source>());
      source->weights.emplace(*context_, *exchange_, shard, "weights/",
                              Inlet::Options{visit_.route == Route::kShm, bounce});
      SLUICE_RETURN_IF_ERROR(source->weights->allocate());
    }
    gradients_.emplace(*context_, *exchange_, parameters_.model, "gradients/", bounce);
    return gradients_->allocate();
  }

  Status connect(Source& source, const std::string& address) {
    ConnectOptions options{.operation_timeout = visit_.patience()};
    // On shared memory the product must not copy: the connection fails rather than do.
    if (visit_.route == Route::kShm) options.require = zero_copy;
    SLUICE_TRY(source.endpoint, context_->connect(address, options));
    SLUICE_RETURN_IF_ERROR(exchange_->add(source.endpoint));
    SLUICE_TRY(Buffer hello, context_->arena().allocate(sizeof parameters_.worker));
    std::memcpy(hello.data(), &parameters_.worker, sizeof parameters_.worker);
    SLUICE_TRY(Receipt sent, source.endpoint.send_and_wait(kHelloTag, std::move(hello).freeze(),
                                                           after(now(), visit_.patience())));
    (void)sent;
    return Status();
  }

  const Visit& visit_;
  const WorkerParameters parameters_;
  KillSwitch kill_;
  std::unique_ptr<Context> context_;
  std::optional<Exchange> exchange_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::optional<Outlet> gradients_;
  OrderWatch orders_;
};

}  // namespace

std::unique_ptr<WorkerLink> make_exchange_worker(const Visit& visit,
                                                 const WorkerParameters& parameters,
                                                 KillSwitch kill) {
  return std::make_unique<ExchangeWorker>(visit, parameters, std::move(kill));
}

}  // namespace sluice::tools::demo
