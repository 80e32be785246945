#include "tests/proof/ping_pong.h"

#include <thread>

#include <sluice/spi/endpoint_core.h>

namespace sluice::test {
namespace {
constexpr size_t kRoom = 4096;
constexpr int64_t kWeights = 50'000;
// Polls without success before a round is called failed: a bound without a clock.
constexpr uint64_t kMostPolls = 50'000'000;
}  // namespace

PingPong::PingPong(const std::string& address, const ContextOptions& options) {
  auto left = open_context(options), right = open_context(options);
  if (!left.ok() || !right.ok()) return;
  left_ = std::move(*left);
  right_ = std::move(*right);
  auto listener = right_->listen(address);
  if (!listener.ok()) return;
  listener_ = std::move(*listener);
  Instant limit = after(now(), std::chrono::seconds(20));
  std::thread connecting([&] {
    auto near = left_->connect(listener_.address());
    if (near.ok()) near_ = std::move(*near);
  });
  auto far = listener_.accept(limit);
  if (far.ok()) far_ = std::move(*far);
  connecting.join();
  if (!ready()) return;
  publisher_ = std::make_unique<Exchange>(*left_);
  fetcher_ = std::make_unique<Exchange>(*right_);
  if (!publisher_->add(near_).ok() || !fetcher_->add(far_).ok()) {
    near_ = Endpoint();  // not ready
    return;
  }
  here_ = std::move(*left_->allocate({kRoom}, uint8));
  there_ = std::move(*right_->allocate({kRoom}, uint8));
  weights_ = std::move(*left_->allocate({kWeights}, float32));
  place_ = std::move(*right_->allocate({kWeights}, float32));
}

PingPong::~PingPong() {
  publisher_.reset();
  fetcher_.reset();
  if (!ready()) return;
  near_.core().start_close();
  until([&] {
    return near_.state() == EndpointState::kClosed && far_.state() == EndpointState::kClosed;
  });
}

template <typename Done>
bool PingPong::until(Done&& done) {
  for (uint64_t polls = 0; polls < kMostPolls; ++polls) {
    if (done()) return true;
    left_->progress();
    right_->progress();
  }
  return false;
}

bool PingPong::pass(Endpoint& from, Endpoint& to, Buffer& out, Buffer& in) {
  uint64_t received = received_.count, sent = sent_.count;
  if (!to.receive({.tag = 1}, std::move(in), {.sink = &received_, .deadline = kNever}).ok())
    return false;
  Tensor tensor = std::move(out).freeze();
  if (!from.send(1, tensor, {.sink = &sent_, .deadline = kNever, .level = Level::kPlaced}).ok())
    return false;
  if (!until([&] { return received_.count > received && sent_.count > sent; })) return false;
  if (!received_.value.status.ok() || !sent_.value.status.ok()) return false;
  in = std::move(received_.value.buffers[0]);
  std::optional<Buffer> back = tensor.try_thaw();
  if (!back) return false;
  out = std::move(*back);
  return true;
}

bool PingPong::message_round(size_t size) {
  for (Buffer* buffer : {&here_, &there_}) {
    if (!buffer->reshape(TensorDescriptor::bytes(size)).ok()) return false;
  }
  return pass(near_, far_, here_, there_) && pass(far_, near_, there_, here_);
}

bool PingPong::tensor_round() {
  ++step_;
  Fetch fetch = fetcher_->fetch({"w", step_}, kNever);
  auto publication = publisher_->publish({"w", step_}, std::move(weights_).freeze());
  if (!publication.ok() || !until([&] { return fetch.ready(); })) return false;
  if (!fetch.take().ok()) return false;  // read and dropped
  if (!until([&] { return publication->ready(); })) return false;
  Tensor home = publication->take();
  std::optional<Buffer> thawed = home.try_thaw();
  if (!thawed) return false;
  weights_ = std::move(*thawed);
  return true;
}

bool PingPong::placed_round() {
  ++step_;
  FetchInto fetch = fetcher_->fetch_into({"w", step_}, std::move(place_), kNever);
  auto publication = publisher_->publish({"w", step_}, std::move(weights_).freeze());
  if (!publication.ok() || !until([&] { return fetch.ready() && publication->ready(); }))
    return false;
  Placed placed = fetch.take();
  place_ = placed.take_buffer();
  Tensor home = publication->take();
  std::optional<Buffer> thawed = home.try_thaw();
  if (!placed.ok() || !thawed) return false;
  weights_ = std::move(*thawed);
  return true;
}

}  // namespace sluice::test
