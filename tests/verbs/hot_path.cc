// One operation after another over verbs between two contexts of one thread, for a counter of
// instructions: what the library does for each, without the device, which the fake fabric stands
// for. benchmarks/instructions.py runs it under callgrind, which counts inside
// measured_operations() and not inside device_call(). benchmarks/hot_path.cc is the same of other
// paths.
//
// Usage: hot_path MODE COUNT. Modes: write-verbs, read-verbs (64 B, at one end), message-verbs
// (64 B there and back: two messages, both ends), turn-verbs (a turn that finds nothing).
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include <sluice/select/open.h>

#include "benchmarks/must.h"
#include "tests/verbs/fake_provider.h"

using namespace sluice;

// By these names callgrind knows when to count, and when not to.
template <typename Call>
[[gnu::noinline]] int device_call(const Call& call) {
  return call();
}

namespace {

constexpr int64_t kBytes = 64;
constexpr uint64_t kWarmUp = 200;
constexpr int kTurns = 1'000'000;  // without a result: it hangs

using bench::check;
using bench::fail;
using bench::must;
Instant soon() { return after(now(), std::chrono::seconds(60)); }

class CountedVerbs final : public verbs::FakeVerbs {
 public:
  bool counting = false;

  int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) override {
    return apart([&] { return FakeVerbs::post_send(qp, list, bad); });
  }
  int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) override {
    return apart([&] { return FakeVerbs::post_recv(qp, list, bad); });
  }
  int poll_cq(ibv_cq* cq, int entries, ibv_wc* completions) override {
    return apart([&] { return FakeVerbs::poll_cq(cq, entries, completions); });
  }

 private:
  template <typename Call>
  int apart(const Call& call) {
    return counting ? device_call(call) : call();
  }
};

class Pair : private CompletionSink {
 public:
  Pair()
      : left_(must(open_context({.waiting = Waiting::kSpin}), "open_context")),
        right_(must(open_context({.waiting = Waiting::kSpin}), "open_context")) {
    Listener listener = must(right_->listen("rdma://127.0.0.1:0"), "listen");
    std::thread accepting([&] { right_end_ = must(listener.accept(soon()), "accept"); });
    left_end_ = must(left_->connect(listener.address()), "connect");
    accepting.join();
    out_ = allocate(*left_).freeze();
    back_ = allocate(*right_).freeze();
    in_left_ = allocate(*left_);
    in_right_ = allocate(*right_);
    granted_ = allocate(*right_);
    key_ = must(right_end_.grant(granted_, {.rights = Right::kReadWrite}), "grant");
  }

  void write(uint64_t) {
    done_ = false;
    check(internal::status_of(left_end_.write(
              key_, 0, out_, {.sink = this, .deadline = kNever, .level = Level::kPlaced})),
          "write");
    turn_until_done([&] { left_->progress(); });
  }
  void read(uint64_t) {
    begin(in_left_);
    check(internal::status_of(
              left_end_.read(key_, 0, std::move(in_left_), {.sink = this, .deadline = kNever})),
          "read");
    turn_until_done([&] { left_->progress(); });
  }
  void message_there_and_back(uint64_t) {
    send(right_end_, in_right_, left_end_, out_);
    send(left_end_, in_left_, right_end_, back_);
  }
  void turn(uint64_t) { left_->progress(); }

 private:
  static Buffer allocate(Context& context) {
    return must(context.allocate({kBytes}, uint8), "allocate");
  }
  void begin(Buffer& into) {
    done_ = false;
    arriving_ = &into;
  }
  void send(Endpoint& to, Buffer& into, Endpoint& from, const Tensor& what) {
    begin(into);
    check(internal::status_of(
              to.receive({.tag = 1}, std::move(into), {.sink = this, .deadline = kNever})),
          "receive");
    check(internal::status_of(from.send(1, what, {.deadline = kNever})), "send");
    turn_until_done([&] {
      left_->progress();
      right_->progress();
    });
  }
  template <typename Turn>
  void turn_until_done(Turn&& take_turn) {
    for (int turn = 0; !done_; ++turn) {
      if (turn == kTurns) fail("waiting", Status(Code::kTimedOut, Scope::kOperation, "hot_path"));
      take_turn();
    }
  }
  void on_completion(Completion&& completion) noexcept override {
    check(completion.status, "completion");
    if (!completion.buffers.empty()) *arriving_ = std::move(completion.buffers[0]);
    done_ = true;
  }

  std::unique_ptr<Context> left_, right_;
  Endpoint left_end_, right_end_;
  Tensor out_, back_;
  Buffer in_left_, in_right_, granted_;
  RemoteKey key_;
  Buffer* arriving_ = nullptr;
  bool done_ = false;
};

using Operation = void (Pair::*)(uint64_t step);

void operations(Pair& pair, Operation operation, uint64_t from, uint64_t to) {
  for (uint64_t step = from; step < to; ++step) (pair.*operation)(step);
}

}  // namespace

[[gnu::noinline]] void measured_operations(Pair& pair, Operation operation, uint64_t count) {
  operations(pair, operation, kWarmUp, kWarmUp + count);
}

int main(int argc, char** argv) {
  const std::string_view mode = argc == 3 ? argv[1] : "";
  const uint64_t count = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 0;
  Operation operation = nullptr;
  if (mode == "write-verbs") operation = &Pair::write;
  if (mode == "read-verbs") operation = &Pair::read;
  if (mode == "message-verbs") operation = &Pair::message_there_and_back;
  if (mode == "turn-verbs") operation = &Pair::turn;
  if (operation == nullptr || count == 0) {
    std::fprintf(stderr, "usage: hot_path write-verbs|read-verbs|message-verbs|turn-verbs COUNT\n");
    return 2;
  }
  CountedVerbs fabric;
  verbs::use_verbs_api(&fabric);
  {
    Pair pair;
    operations(pair, operation, 0, kWarmUp);
    fabric.counting = true;
    measured_operations(pair, operation, count);
    fabric.counting = false;
  }
  verbs::use_verbs_api(nullptr);
  std::printf("%llu\n", static_cast<unsigned long long>(count));
  return 0;
}
