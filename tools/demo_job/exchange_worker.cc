// A worker's link over sluice's exchange: modes zerocopy and onecopy.
#include <array>
#include <cstring>
#include <optional>

#include <sluice/sluice.h>

#include "tools/demo_job/exchange_link.h"
#include "tools/demo_job/links.h"
#include "tools/demo_job/parcels.h"

namespace sluice::tools::demo {
namespace {

class ExchangeWorker final : public WorkerLink {
 public:
  ExchangeWorker(const Visit& visit, const Model& model, uint32_t worker, KillSwitch kill)
      : visit_(visit), model_(model), worker_(worker), kill_(std::move(kill)) {}

  Status connect(const std::string& address) override {
    SLUICE_RETURN_IF_ERROR(open());
    ConnectOptions options{.operation_timeout = visit_.patience()};
    // On shared memory the product must not copy: the connection fails rather than do.
    if (visit_.route == Route::kShm) options.require = zero_copy;
    SLUICE_TRY(endpoint_, context_->connect(address, options));
    exchange_->add(endpoint_);
    SLUICE_TRY(Buffer hello, context_->arena().allocate(sizeof worker_));
    std::memcpy(hello.data(), &worker_, sizeof worker_);
    SLUICE_TRY(Receipt sent, endpoint_.send_and_wait(kHelloTag, std::move(hello).freeze(), after(now(), visit_.patience())));
    (void)sent;
    return Status();
  }

  Status prepare(int64_t step, Instant deadline) override { return weights_->post(endpoint_, step, deadline); }

  Status pull(int64_t, Instant deadline) override {
    SLUICE_RETURN_IF_ERROR(context_->wait_until(
        [&] {
          weights_->collect();
          if (weights_->arrived() * 2 >= model_.tensors.size()) kill_(KillPoint::kMidPull);
          return weights_->idle();
        },
        deadline));
    return weights_->failure();
  }

  const float* weights(uint32_t tensor) const override { return weights_->data(tensor); }
  float* gradient(uint32_t tensor) override { return gradients_->memory(tensor); }

  Status push(int64_t step, Instant) override {
    return gradients_->publish(step, {.readers = 1}, [&](size_t out) {
      if (out * 2 >= model_.tensors.size()) {
        (void)context_->progress();
        kill_(KillPoint::kMidPush);
      }
    });
  }

  Result<Message> wait_order(ControlLine& line, Instant deadline) override {
    return orders_.wait(*context_, line, deadline, {});
  }

  Status finish(Instant deadline) override {
    weights_->release();
    // The server has what it wanted; what it never asked for (it averaged our
    // predecessor's gradients) comes back at once.
    gradients_->retire();
    return gradients_->reclaim_by(deadline);
  }

  uint64_t copied_bytes() const override {
    const EndpointCounters counters = endpoint_.counters();
    return counters.copied_bytes + counters.kernel_copied_bytes + weights_->bounced_bytes() + gradients_->bounced_bytes();
  }

  void close() override {
    (void)endpoint_.close(after(now(), kCloseTime));
    exchange_.reset();
    (void)context_->close(after(now(), kCloseTime));
  }

  Status open() {
    SLUICE_TRY(context_, open_context());
    exchange_.emplace(*context_);
    const bool bounce = visit_.mode == Mode::kOnecopy;
    weights_.emplace(*context_, *exchange_, model_, "weights/", Inlet::Options{visit_.route == Route::kShm, bounce});
    gradients_.emplace(*context_, *exchange_, model_, "gradients/", bounce);
    SLUICE_RETURN_IF_ERROR(weights_->allocate());
    return gradients_->allocate();
  }

 private:
  const Visit& visit_;
  const Model& model_;
  uint32_t worker_;
  KillSwitch kill_;
  std::unique_ptr<Context> context_;
  std::optional<Exchange> exchange_;
  Endpoint endpoint_;
  std::optional<Inlet> weights_;
  std::optional<Outlet> gradients_;
  OrderWatch orders_;
};

}  // namespace

std::unique_ptr<WorkerLink> make_exchange_worker(const Visit& visit, const Model& model, uint32_t worker, KillSwitch kill) {
  return std::make_unique<ExchangeWorker>(visit, model, worker, std::move(kill));
}

}  // namespace sluice::tools::demo
