// One operation after another between two contexts of one thread, for a counter of instructions:
// what the library itself does for each, at both ends, without a second process and almost without
// waiting. benchmarks/instructions.py runs it under callgrind, which counts inside
// measured_operations() only.
//
// Usage: hot_path MODE COUNT. Modes: message-shm, message-tcp (64 B there and back: two messages),
// view-shm, into-shm, into-tcp (a tensor of 64 KiB published, fetched and released), names-shm (as
// view-shm, of 64 names in turn, as a model with so many parameters), ahead-shm (as view-shm, but
// each step was fetched two steps before it is published), subscribed-shm (the same by a
// subscription).
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include <sluice/sluice.h>

#include "benchmarks/must.h"

namespace {

using namespace sluice;

constexpr int64_t kMessageBytes = 64;
constexpr int64_t kTensorBytes = 64 * 1024;
constexpr uint64_t kWarmUp = 200;
constexpr int kTurns = 1'000'000;  // without a result: it hangs

using bench::check;
using bench::fail;
using bench::must;
Instant soon() { return after(now(), std::chrono::seconds(60)); }

class Pair : private CompletionSink {
 public:
  explicit Pair(bool tcp)
      : left_(must(open_context({.waiting = Waiting::kSpin}), "open_context")),
        right_(must(open_context({.waiting = Waiting::kSpin}), "open_context")),
        left_keys_(*left_),
        right_keys_(*right_) {
    Listener listener =
        must(right_->listen(tcp ? "tcp://127.0.0.1:0" : "shm:hot-path-" + std::to_string(getpid())),
             "listen");
    std::thread accepting([&] { right_end_ = must(listener.accept(soon()), "accept"); });
    left_end_ = must(left_->connect(listener.address()), "connect");
    accepting.join();
    out_ = allocate(*left_, kMessageBytes).freeze();
    back_ = allocate(*right_, kMessageBytes).freeze();
    in_left_ = allocate(*left_, kMessageBytes);
    in_right_ = allocate(*right_, kMessageBytes);
    tensor_ = allocate(*left_, kTensorBytes).freeze();
    place_ = allocate(*right_, kTensorBytes);
    for (size_t i = 0; i < names_.size(); ++i) names_[i] = "layer" + std::to_string(i) + "/weights";
  }
  void use_exchanges() {
    check(left_keys_.add(left_end_), "add");
    check(right_keys_.add(right_end_), "add");
  }

  void message_there_and_back(uint64_t) {
    send(right_end_, in_right_, left_end_, out_);
    send(left_end_, in_left_, right_end_, back_);
  }
  void view(uint64_t step) { view_of("weights", step); }
  void names(uint64_t step) { view_of(names_[step % names_.size()], step / names_.size()); }
  void view_of(std::string_view name, uint64_t step) {
    auto publication = must(left_keys_.publish({name, step}, tensor_, {.readers = 1}), "publish");
    auto fetch = right_keys_.fetch({name, step}, kNever);
    turn_until([&] { return fetch.ready(); });
    Delivery<Tensor> delivery = must(fetch.take(), "fetch");
    delivery.value = Tensor();
    turn_until([&] { return publication.ready(); });
    tensor_ = publication.take();
  }
  void ahead(uint64_t step) {
    if (step == 0) {
      for (uint64_t early = 0; early < kAhead; ++early)
        ahead_[early].emplace(right_keys_.fetch({"weights", early}, kNever));
    }
    auto publication =
        must(left_keys_.publish({"weights", step}, tensor_, {.readers = 1}), "publish");
    std::optional<Fetch>& fetch = ahead_[step % kAhead];
    turn_until([&] { return fetch->ready(); });
    Delivery<Tensor> delivery = must(fetch->take(), "fetch");
    fetch.reset();
    delivery.value = Tensor();
    fetch.emplace(right_keys_.fetch({"weights", step + kAhead}, kNever));
    turn_until([&] { return publication.ready(); });
    tensor_ = publication.take();
  }
  void subscribed(uint64_t step) {
    if (step == 0) subscription_.emplace(right_keys_.subscribe("weights"));
    auto publication =
        must(left_keys_.publish({"weights", step}, tensor_, {.readers = 1}), "publish");
    turn_until([&] { return subscription_->ready(); });
    Delivery<Tensor> delivery = must(subscription_->take(), "take");
    delivery.value = Tensor();
    turn_until([&] { return publication.ready(); });
    tensor_ = publication.take();
  }
  void into(uint64_t step) {
    auto publication =
        must(left_keys_.publish({"weights", step}, tensor_, {.readers = 1}), "publish");
    auto fetch = right_keys_.fetch_into({"weights", step}, std::move(place_), kNever);
    turn_until([&] { return fetch.ready(); });
    Placed placed = fetch.take();
    check(placed.status(), "fetch_into");
    place_ = placed.take_buffer();
    turn_until([&] { return publication.ready(); });
    tensor_ = publication.take();
  }

 private:
  static Buffer allocate(Context& context, int64_t bytes) {
    return must(context.allocate({bytes}, uint8), "allocate");
  }
  void send(Endpoint& to, Buffer& into, Endpoint& from, const Tensor& what) {
    arriving_ = &into;
    check(internal::status_of(
              to.receive({.tag = 1}, std::move(into), {.sink = this, .deadline = kNever})),
          "receive");
    check(internal::status_of(from.send(1, what, {.deadline = kNever})), "send");
    turn_until([&] { return arriving_ == nullptr; });
  }
  template <typename Done>
  void turn_until(Done&& done) {
    for (int turn = 0; !done(); ++turn) {
      if (turn == kTurns) fail("waiting", Status(Code::kTimedOut, Scope::kOperation, "hot_path"));
      left_->progress();
      right_->progress();
    }
  }
  void on_completion(Completion&& completion) noexcept override {
    check(completion.status, "completion");
    *arriving_ = std::move(completion.buffers[0]);
    arriving_ = nullptr;
  }

  std::unique_ptr<Context> left_, right_;
  Endpoint left_end_, right_end_;
  Exchange left_keys_, right_keys_;
  static constexpr uint64_t kAhead = 2;
  std::array<std::optional<Fetch>, kAhead> ahead_;
  std::optional<Subscription> subscription_;
  std::array<std::string, 64> names_;
  Tensor out_, back_, tensor_;
  Buffer in_left_, in_right_, place_;
  Buffer* arriving_ = nullptr;
};

using Operation = void (Pair::*)(uint64_t step);

void operations(Pair& pair, Operation operation, uint64_t from, uint64_t to) {
  for (uint64_t step = from; step < to; ++step) (pair.*operation)(step);
}

}  // namespace

// By this name callgrind knows when to count.
[[gnu::noinline]] void measured_operations(Pair& pair, Operation operation, uint64_t count) {
  operations(pair, operation, kWarmUp, kWarmUp + count);
}

int main(int argc, char** argv) {
  const std::string_view mode = argc == 3 ? argv[1] : "";
  const uint64_t count = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const bool tcp = mode.ends_with("-tcp");
  Operation operation = nullptr;
  if (mode.starts_with("message-")) operation = &Pair::message_there_and_back;
  if (mode == "view-shm") operation = &Pair::view;
  if (mode == "names-shm") operation = &Pair::names;
  if (mode == "ahead-shm") operation = &Pair::ahead;
  if (mode == "subscribed-shm") operation = &Pair::subscribed;
  if (mode.starts_with("into-")) operation = &Pair::into;
  if (operation == nullptr || count == 0 || !(tcp || mode.ends_with("-shm"))) {
    std::fprintf(
        stderr,
        "usage: hot_path message-shm|message-tcp|view-shm|names-shm|ahead-shm|subscribed-shm|"
        "into-shm|into-tcp "
        "COUNT\n");
    return 2;
  }
  Pair pair(tcp);
  if (operation != &Pair::message_there_and_back) pair.use_exchanges();
  operations(pair, operation, 0, kWarmUp);
  measured_operations(pair, operation, count);
  std::printf("%llu\n", static_cast<unsigned long long>(count));
  return 0;
}
