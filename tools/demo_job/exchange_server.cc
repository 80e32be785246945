// The server's link over sluice's exchange: modes zerocopy and onecopy. A worker that
// dies before the step's gradients are complete is awaited again: its successor's
// gradients replace all it had sent.

#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include <sluice/sluice.h>

#include "tools/demo_job/exchange_link.h"
#include "tools/demo_job/links.h"
#include "tools/demo_job/parcels.h"

namespace sluice::tools::demo {
namespace {

// One connection. Stays until the end of the visit: a completion may still refer to it.
struct Peer final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    if (completion.status.ok() && completion.buffers.size() == 1) {
      std::memcpy(&worker, completion.buffers[0].data(), sizeof worker);
      introduced = true;
    }
  }
  Endpoint endpoint;
  uint32_t worker = 0;
  bool introduced = false;
  bool adopted = false;
};

struct Seat {
  Peer* peer = nullptr;  // who sits here
  std::optional<Inlet> gradients;
  int64_t posted_step = -1;
  bool complete = false;  // the step's gradients are here, whatever becomes of the peer
};

class ExchangeServer final : public ServerLink {
 public:
  ExchangeServer(const Visit& visit, const Model& model) : visit_(visit), model_(model) {}

  Result<std::string> listen() override {
    SLUICE_TRY(context_, open_context());
    exchange_.emplace(*context_);
    const bool bounce = visit_.mode == Mode::kOnecopy;
    const Inlet::Options inlet{visit_.route == Route::kShm, bounce};
    // Zero copies: the next weights are written beside the ones being read. With
    // bounce buffers the master copy is private and written in place.
    for (int i = 0; i < (bounce ? 1 : 2); ++i) {
      SLUICE_RETURN_IF_ERROR(
          outlets_.emplace_back(*context_, *exchange_, model_, "weights/", bounce).allocate());
    }
    seats_.resize(static_cast<size_t>(visit_.workers));
    for (Seat& seat : seats_) {
      seat.gradients.emplace(*context_, *exchange_, model_, "gradients/", inlet);
      SLUICE_RETURN_IF_ERROR(seat.gradients->allocate());
    }
    SLUICE_TRY(listener_, context_->listen(address(), {.operation_timeout = visit_.patience()}));
    return listener_.address();
  }

  float* weights(uint32_t tensor) override { return outlets_[current_].memory(tensor); }

  Status prepare(int64_t step) override {
    step_ = step;
    for (Seat& seat : seats_) seat.complete = false;
    serve();
    return failure_;
  }

  Status publish(int64_t step) override {
    Outlet& outlet = outlets_[current_];
    if (outlets_.size() == 1) {
      outlet.retire();
      SLUICE_RETURN_IF_ERROR(outlet.reclaim_by(after(now(), visit_.patience())));
    }
    return outlet.publish(step, {.readers = until_retired, .keep_steps = 0});
  }

  Status gather(Instant deadline) override {
    Status waited = context_->wait_until(
        [&] {
          serve();
          return !failure_.ok() || all_complete();
        },
        deadline);
    if (!failure_.ok()) return failure_;
    if (waited.ok()) return waited;
    return Status(Code::kTimedOut, Scope::kOperation, "demo/server",
                  "not all gradients came in time");
  }

  const float* gradient(uint32_t worker, uint32_t tensor) const override {
    return seats_[worker].gradients->data(tensor);
  }

  Result<float*> next_weights(uint32_t tensor, Instant deadline) override {
    Outlet& next = outlets_[outlets_.size() - 1 - current_];
    if (tensor == 0 && outlets_.size() == 2) SLUICE_RETURN_IF_ERROR(next.reclaim_by(deadline));
    return next.memory(tensor);
  }
  void swap_weights() override { current_ = outlets_.size() - 1 - current_; }

  void release_gradients() override {
    for (Seat& seat : seats_) seat.gradients->release();
  }

  Result<Message> wait_order(ControlLine& line, Instant deadline) override {
    return orders_.wait(*context_, line, deadline, [this] { serve(); });
  }

  uint64_t copied_bytes() const override {
    uint64_t sum = 0;
    for (const auto& peer : peers_) {
      const EndpointCounters counters = peer->endpoint.counters();
      sum += counters.copied_bytes + counters.kernel_copied_bytes;
    }
    for (const Seat& seat : seats_) sum += seat.gradients->bounced_bytes();
    for (const Outlet& outlet : outlets_) sum += outlet.bounced_bytes();
    return sum;
  }

  uint64_t arena_bytes() const override { return context_->arena().statistics().peak_used_bytes; }

  void close() override {
    for (auto& peer : peers_) (void)peer->endpoint.close(after(now(), kCloseTime));
    listener_.close();
    exchange_.reset();
    (void)context_->close(after(now(), kCloseTime));
  }

 private:
  std::string address() const {
    if (visit_.route == Route::kShm)
      return "shm:sluice-demo-" + std::to_string(std::random_device()());
    const bool brackets = visit_.host.find(':') != std::string::npos;
    const std::string host = brackets ? "[" + visit_.host + "]" : visit_.host;
    return std::string(to_string(visit_.route)) + "://" + host + ":0";
  }

  bool all_complete() const {
    for (const Seat& seat : seats_) {
      if (!seat.complete) return false;
    }
    return true;
  }

  // A turn for everything beside the step: new workers, dead workers, arrived messages.
  // Failures are kept in failure_.
  void serve() {
    accept();
    for (auto& peer : peers_) {
      if (peer->introduced && !peer->adopted && peer->worker < seats_.size()) try_seat(*peer);
    }
    for (Seat& seat : seats_) serve_seat(seat);
  }

  void accept() {
    for (;;) {
      Result<Endpoint> accepted = listener_.try_accept();
      if (!accepted.ok()) return;
      auto peer = std::make_unique<Peer>();
      peer->endpoint = std::move(*accepted);
      Result<Buffer> hello = context_->arena().allocate(sizeof peer->worker);
      if (!hello.ok()) {
        failure_ = hello.status();
        return;
      }
      // No deadline: it is the first message, or the endpoint closes.
      const PostOptions options{.sink = peer.get(), .deadline = kNever};
      Result<OperationId> posted =
          peer->endpoint.receive(TagMatch{kHelloTag}, std::move(*hello), options);
      const Status added = exchange_->add(peer->endpoint);  // refuses one that has ended
      if (posted.ok() && added.ok()) peers_.push_back(std::move(peer));
    }
  }

  // The newcomer replaces who sat there, once nothing is under way to the old one.
  void try_seat(Peer& peer) {
    Seat& seat = seats_[peer.worker];
    if (seat.peer != nullptr && !seat.gradients->idle()) {
      seat.gradients->cancel();
      seat.gradients->collect();
      if (!seat.gradients->idle()) return;
    }
    seat.peer = &peer;
    seat.posted_step = -1;
    peer.adopted = true;
  }

  void serve_seat(Seat& seat) {
    Inlet& gradients = *seat.gradients;
    gradients.collect();
    if (seat.complete || seat.peer == nullptr) return;
    if (seat.posted_step == step_) {
      if (!gradients.idle()) return;
      seat.complete = gradients.complete();
      // Who died is awaited: the coordinator starts it anew, or ends us.
      const bool alive = seat.peer->endpoint.state() == EndpointState::kConnected;
      if (!seat.complete && alive) failure_ = gradients.failure();
      return;
    }
    if (!gradients.idle() || seat.peer->endpoint.state() != EndpointState::kConnected) return;
    Status posted = gradients.post(seat.peer->endpoint, step_, after(now(), visit_.patience()));
    if (!posted.ok()) failure_ = posted;
    seat.posted_step = step_;
  }

  const Visit& visit_;
  const Model& model_;
  std::unique_ptr<Context> context_;
  std::optional<Exchange> exchange_;
  Listener listener_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Outlet> outlets_;
  std::vector<Seat> seats_;
  OrderWatch orders_;
  size_t current_ = 0;
  int64_t step_ = 0;
  Status failure_;
};

}  // namespace

std::unique_ptr<ServerLink> make_exchange_server(const Visit& visit, const Model& model) {
  return std::make_unique<ExchangeServer>(visit, model);
}

}  // namespace sluice::tools::demo
