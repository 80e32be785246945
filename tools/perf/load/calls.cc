// rpc_lat, rpc_bw: calls. A request, and an answer of a size of its own; one call at a time, or a
// window of them. A message's tag is its call's step, in both directions.
#include <algorithm>
#include <utility>
#include <vector>

#include "tools/perf/load/source.h"
#include "tools/perf/load/window.h"
#include "tools/perf/load/workload.h"

namespace sluice::tools {
namespace {

// A call is over when its answer is here: that is the completion of its receive. By then the server
// has had the request, so that its memory may be written again.
class Caller final : public Steps {
 public:
  Caller(const Side& side, const Load& load)
      : Steps(side, load),
        answers_(answers_of(load)),
        window_(load.depth, load.test->latency ? &pauses_ : nullptr, load.post_list),
        requests_(load.depth),
        asked_(load.depth) {}

  Result<Json> prepare() override {
    for (uint32_t slot = 0; slot < load_.depth; ++slot) {
      SLUICE_RETURN_IF_ERROR(requests_[slot].take(source(load_.size_bytes)));
      SLUICE_TRY(window_.returned(slot), destination(answers_.size_bytes));
    }
    return Json::object();
  }

  Status arm(const Round& round) override {
    if (round.mode == Round::Mode::kCheck) return Status();
    for (Source& request : requests_) fill(request.data, kSteady, false);
    return Status();
  }

  void begin(const Round& round, Samples* samples) override {
    round_ = round;
    sent_ = false;
    std::fill(asked_.begin(), asked_.end(), kSteady);
    window_.begin(round.iterations, samples);
  }
  Status advance() override {
    return window_.fill([&](uint32_t slot, uint64_t number, const PostOptions& options) {
      return call(slot, round_.first_step + number, options);
    });
  }
  bool over() const override { return window_.over(); }
  bool stuck() const override { return window_.stuck(); }
  uint64_t ended() const override { return window_.completed(); }

  void inspect(const Round& round) override {
    if (round.mode == Round::Mode::kTouch) return;
    for (uint32_t slot = 0; slot < load_.depth && slot < round.iterations; ++slot)
      compare(answers_, window_.returned(slot).data(), asked_[slot]);
  }

 private:
  // The request leaves first: its answer's receive is posted while it travels, and nothing is
  // looked at in between. Where there is no room for that receive the call is begun, and is gone on
  // with the next time.
  Status call(uint32_t slot, uint64_t step, const PostOptions& options) {
    if (!sent_) {
      if (round_.mode == Round::Mode::kCheck &&
          asked_[slot] != step) {  // not again, where there was no room to send it
        if (asked_[slot] != kSteady) compare(answers_, window_.returned(slot).data(), asked_[slot]);
        fill(requests_[slot].data, step, damages(round_));
        asked_[slot] = step;
      }
      SLUICE_RETURN_IF_ERROR(
          side_.endpoint.send(step, requests_[slot].tensor, {.deadline = kNever}));
      sent_ = true;
    }
    SLUICE_RETURN_IF_ERROR(
        side_.endpoint.receive({.tag = step}, std::move(window_.returned(slot)),
                               {.sink = options.sink, .user_data = slot, .deadline = kNever}));
    sent_ = false;
    return Status();
  }

  Load answers_;
  Round round_;
  Window window_;
  std::vector<Source> requests_;
  std::vector<uint64_t> asked_;  // of check rounds: the step of each slot's last call
  bool sent_ = false;            // the next call's request
};

class Answerer final : public Steps, private CompletionSink {
 public:
  Answerer(const Side& side, const Load& load)
      : Steps(side, load),
        answers_(answers_of(load)),
        requests_(load.depth),
        sources_(load.depth),
        waiting_(load.depth) {}

  Result<Json> prepare() override {
    for (uint32_t slot = 0; slot < load_.depth; ++slot) {
      SLUICE_TRY(requests_[slot], destination(load_.size_bytes));
      SLUICE_RETURN_IF_ERROR(sources_[slot].take(source(answers_.size_bytes)));
    }
    return Json::object();
  }

  Status arm(const Round& round) override {
    round_ = round;
    posted_ = arrived_ = answered_ = 0;
    stage_ = Stage::kArrived;
    for (Source& answer : sources_) {
      if (round.mode != Round::Mode::kCheck) fill(answers_, answer.data, kSteady, false);
    }
    for (uint32_t slot = 0; slot < load_.depth && posted_ < round.iterations; ++slot)
      SLUICE_RETURN_IF_ERROR(post_receive(slot));
    return Status();
  }

  void begin(const Round&, Samples*) override {}
  // Answers what has come, and has its place ready for the next request while the answer travels.
  Status advance() override {
    SLUICE_RETURN_IF_ERROR(failure_);
    for (; answered_ < arrived_; ++answered_) {
      Status status = answer(waiting_[answered_ % load_.depth]);
      if (status.code() == Code::kTryAgain) return Status();
      SLUICE_RETURN_IF_ERROR(status);
    }
    return Status();
  }
  bool over() const override { return answered_ == round_.iterations; }
  // There was no room for what comes next.
  bool stuck() const override { return answered_ < arrived_; }
  uint64_t ended() const override { return arrived_; }

  void inspect(const Round& round) override {
    if (round.mode != Round::Mode::kPlain) return;
    for (uint32_t slot = 0; slot < load_.depth && slot < round.iterations; ++slot)
      compare(requests_[slot].data(), kSteady);
  }

 private:
  struct Request {
    uint32_t slot = 0;
    uint64_t step = 0;
  };
  // How far the next answer is.
  enum class Stage : uint8_t { kArrived, kReady, kSent };

  // Errors: kTryAgain (goes on from there the next time).
  Status answer(const Request& request) {
    Source& own = sources_[request.slot];
    if (stage_ == Stage::kArrived && round_.mode == Round::Mode::kCheck) {
      // In such a round a place has one request, or the caller had the place's last answer before
      // it sent this one.
      compare(requests_[request.slot].data(), request.step);
      fill(answers_, own.data, request.step, damages(round_));
      stage_ = Stage::kReady;
    }
    if (stage_ != Stage::kSent)
      SLUICE_RETURN_IF_ERROR(side_.endpoint.send(request.step, own.tensor, {.deadline = kNever}));
    stage_ = Stage::kSent;
    if (posted_ < round_.iterations) SLUICE_RETURN_IF_ERROR(post_receive(request.slot));
    stage_ = Stage::kArrived;
    return Status();
  }
  Status post_receive(uint32_t slot) {
    SLUICE_RETURN_IF_ERROR(
        side_.endpoint.receive(kAnyStep, std::move(requests_[slot]),
                               {.sink = this, .user_data = slot, .deadline = kNever}));
    ++posted_;
    return Status();
  }
  void on_completion(Completion&& completion) noexcept override {
    auto slot = static_cast<uint32_t>(completion.user_data);
    requests_[slot] = std::move(completion.buffers[0]);
    waiting_[arrived_++ % load_.depth] = {slot, completion.tag};
    if (!completion.status.ok()) failure_ = completion.status;
  }

  Load answers_;
  Round round_;
  std::vector<Buffer> requests_;
  std::vector<Source> sources_;
  std::vector<Request> waiting_;  // ring: at most one for each place
  Status failure_;
  uint64_t posted_ = 0, arrived_ = 0, answered_ = 0;
  Stage stage_ = Stage::kArrived;
};

}  // namespace

std::unique_ptr<Workload> make_rpc_workload(const Side& side, const Load& load) {
  if (side.role == Role::kClient) return std::make_unique<Caller>(side, load);
  return std::make_unique<Answerer>(side, load);
}

}  // namespace sluice::tools
