// send_lat: a tagged message there and one back. send_bw: a window of messages one way.
// A message's tag is its step.
#include <array>
#include <utility>
#include <vector>

#include "tools/perf/load/source.h"
#include "tools/perf/load/window.h"
#include "tools/perf/load/workload.h"

namespace sluice::tools {
namespace {

class SendLatency final : public Workload, private CompletionSink {
 public:
  using Workload::Workload;

  Result<Json> prepare() override {
    for (size_t i = 0; i < (load_.cold ? out_.size() : 1); ++i) {
      SLUICE_RETURN_IF_ERROR(out_[i].take(source(load_.size_bytes)));
      SLUICE_TRY(in_[i], destination(load_.size_bytes));
    }
    return Json::object();
  }

  Status arm(const Round& round) override {
    for (Source& out : out_) {
      if (round.mode != Round::Mode::kCheck && out.data != nullptr) fill(out.data, kSteady, false);
    }
    return post_receive(round.first_step);
  }

  Status run(const Round& round, Samples* samples) override {
    bool check = round.mode == Round::Mode::kCheck;
    uint64_t end = round.first_step + round.iterations;
    Laps laps(samples);
    laps.start();
    if (side_.client()) SLUICE_RETURN_IF_ERROR(send(round, round.first_step, laps));
    for (uint64_t step = round.first_step; step < end; ++step) {
      SLUICE_RETURN_IF_ERROR(side_.wait_until([&] { return arrived_; }));
      SLUICE_RETURN_IF_ERROR(failure_);
      laps.lap();
      if (check) compare(in_[place(step)].data(), step);
      // The next receive is posted while the message travels: the answer is a round trip
      // away, and nothing is looked at before the next wait.
      uint64_t next = side_.client() ? step + 1 : step;
      if (side_.client() && next < end) cool_down(step, step);
      if (next < end) SLUICE_RETURN_IF_ERROR(send(round, next, laps));
      if (step + 1 < end) SLUICE_RETURN_IF_ERROR(post_receive(step + 1));
      // The client did the same before its clock started. Our last answer is under way.
      if (!side_.client() && step > round.first_step) cool_down(step, step - 1);
    }
    // Nobody is told of an end once this object is gone.
    return untold_ == 0 ? Status() : side_.wait_until([&] { return untold_ == 0; });
  }

  void inspect(const Round& round) override {
    if (round.mode == Round::Mode::kPlain)
      compare(in_[place(round.first_step + round.iterations - 1)].data(), kSteady);
  }

 private:
  // Of two in turn, so that one can be made cold while the other is in use.
  size_t place(uint64_t step) const { return load_.cold ? step % out_.size() : 0; }
  void cool_down(uint64_t received, uint64_t sent) {
    make_cold(in_[place(received)].data());
    make_cold(out_[place(sent)].data);
  }
  // Requires: the peer has sent since our last message, so it has all of that one.
  Status send(const Round& round, uint64_t step, Laps& laps) {
    if (round.mode == Round::Mode::kCheck) fill(out_[place(step)].data, step, damages(round));
    pause(round);
    if (load_.cold || pauses_) laps.start();
    const Tensor& tensor = out_[place(step)].tensor;
    if (!load_.default_options)
      return internal::status_of(side_.endpoint.send(step, tensor, {.deadline = kNever}));
    ++untold_;
    return internal::status_of(
        side_.endpoint.send(step, tensor, {.sink = this, .user_data = kSent}));
  }
  Status post_receive(uint64_t step) {
    arrived_ = false;
    return internal::status_of(
        side_.endpoint.receive(kAnyStep, std::move(in_[place(step)]),
                               {.sink = this,
                                .user_data = place(step),
                                .deadline = load_.default_options ? Instant{} : kNever}));
  }
  void on_completion(Completion&& completion) noexcept override {
    if (!completion.status.ok()) failure_ = completion.status;
    if (completion.user_data == kSent) {
      --untold_;
      return;
    }
    in_[completion.user_data] = std::move(completion.buffers[0]);
    arrived_ = true;
  }

  static constexpr uint64_t kSent = ~uint64_t{0};  // else the place that was received into

  std::array<Source, 2> out_;
  std::array<Buffer, 2> in_;
  Status failure_;
  uint64_t untold_ = 0;  // sends that have not ended, where this is to be told of that
  bool arrived_ = false;
};

class SendBandwidth final : public Steps {
 public:
  SendBandwidth(const Side& side, const Load& load)
      : Steps(side, load), sources_(load.depth), window_(load.depth, nullptr, load.post_list) {}

  Result<Json> prepare() override {
    for (Source& each : sources_) SLUICE_RETURN_IF_ERROR(each.take(source(load_.size_bytes)));
    return Json::object();
  }

  Status arm(const Round& round) override {
    if (round.mode == Round::Mode::kCheck) return Status();
    for (Source& source : sources_) fill(source.data, kSteady, false);
    return Status();
  }

  void begin(const Round& round, Samples* samples) override {
    round_ = round;
    window_.begin(round.iterations, samples);
  }
  Status advance() override {
    bool check = round_.mode == Round::Mode::kCheck;
    return window_.fill([&](uint32_t slot, uint64_t number, const PostOptions& options) {
      uint64_t step = round_.first_step + number;
      if (check) fill(sources_[slot].data, step, damages(round_));
      return internal::status_of(side_.endpoint.send(step, sources_[slot].tensor, options));
    });
  }
  bool over() const override { return window_.over(); }
  bool stuck() const override { return window_.stuck(); }
  uint64_t ended() const override { return window_.completed(); }

 private:
  Round round_;
  std::vector<Source> sources_;
  Window window_;
};

class ReceiveBandwidth final : public Steps, private CompletionSink {
 public:
  ReceiveBandwidth(const Side& side, const Load& load) : Steps(side, load), buffers_(load.depth) {}

  Result<Json> prepare() override {
    for (Buffer& buffer : buffers_) {
      SLUICE_TRY(buffer, destination(load_.size_bytes));
    }
    return Json::object();
  }

  Status arm(const Round& round) override {
    check_ = round.mode == Round::Mode::kCheck;
    expected_ = round.iterations;
    posted_ = arrived_ = 0;
    for (uint32_t slot = 0; slot < load_.depth && posted_ < expected_; ++slot)
      SLUICE_RETURN_IF_ERROR(post_receive(slot));
    return Status();
  }

  void begin(const Round&, Samples*) override {}
  Status advance() override { return failure_; }
  bool over() const override { return arrived_ == expected_; }
  uint64_t ended() const override { return arrived_; }

  void inspect(const Round& round) override {
    if (round.mode != Round::Mode::kPlain) return;
    for (uint32_t slot = 0; slot < load_.depth && slot < round.iterations; ++slot)
      compare(buffers_[slot].data(), kSteady);
  }

 private:
  Status post_receive(uint32_t slot) {
    SLUICE_RETURN_IF_ERROR(
        side_.endpoint.receive(kAnyStep, std::move(buffers_[slot]),
                               {.sink = this, .user_data = slot, .deadline = kNever}));
    ++posted_;
    return Status();
  }
  // Posts again at once: a message that finds no receive is copied twice.
  void on_completion(Completion&& completion) noexcept override {
    auto slot = static_cast<uint32_t>(completion.user_data);
    buffers_[slot] = std::move(completion.buffers[0]);
    ++arrived_;
    if (!completion.status.ok()) {
      failure_ = completion.status;
      return;
    }
    if (check_) compare(buffers_[slot].data(), completion.tag);
    if (posted_ >= expected_) return;
    Status status = post_receive(slot);
    if (!status.ok()) failure_ = status;
  }

  std::vector<Buffer> buffers_;
  Status failure_;
  uint64_t expected_ = 0, posted_ = 0, arrived_ = 0;
  bool check_ = false;
};

}  // namespace

std::unique_ptr<Workload> make_send_workload(const Side& side, const Load& load) {
  if (load.test->latency) return std::make_unique<SendLatency>(side, load);
  if (side.role == Role::kClient) return std::make_unique<SendBandwidth>(side, load);
  return std::make_unique<ReceiveBandwidth>(side, load);
}

}  // namespace sluice::tools
