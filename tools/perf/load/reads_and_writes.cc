// write_lat: a one-sided write there and one back, each seen in memory by its target.
// read_lat: one read. write_bw, read_bw: a window of them, each slot with a range of its
// own in the target's memory.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "tools/perf/load/pattern.h"
#include "tools/perf/flags/target.h"
#include "tools/perf/load/window.h"
#include "tools/perf/load/workload.h"

namespace sluice::tools {
namespace {

class WriteLatency final : public Workload, private CompletionSink {
 public:
  WriteLatency(const Side& side, const Load& load)
      : Workload(side, load),
        signal_bytes_(std::min<uint64_t>(load.size_bytes, sizeof(uint64_t))),
        body_bytes_(checked_bytes(load)) {}
  ~WriteLatency() override { in_.revoke(side_); }

  Result<Json> prepare() override {
    SLUICE_RETURN_IF_ERROR(in_.grant(side_, destination(load_.size_bytes), Right::kWrite));
    for (size_t i = 0; i < (load_.cold ? out_.size() : 1); ++i) {
      SLUICE_TRY(Buffer buffer, source(load_.size_bytes));
      out_[i].data = buffer.data();
      fill(out_[i].data, 0, false);
      out_[i].tensor = std::move(buffer).freeze();
    }
    return encode_key(in_.key());
  }
  Status adopt(const Json& peer) override {
    SLUICE_TRY(peer_, decode_key(peer));
    return Status();
  }

  Status run(const Round& round, Samples* samples) override {
    bool check = round.mode == Round::Mode::kCheck;
    uint64_t end = round.first_step + round.iterations;
    Laps laps(samples);
    laps.start();
    for (uint64_t step = round.first_step; step < end; ++step) {
      if (side_.client()) {
        if (step > round.first_step) cool_down(step - 1);
        pause(round);
        if (load_.cold || pauses_) laps.start();
        SLUICE_RETURN_IF_ERROR(write(round, step));
      }
      // The source is changed next: our own write must have ended, too.
      auto over = [&] { return in_signal() == truncated(step) && completed_ == posted_; };
      SLUICE_RETURN_IF_ERROR(passive_ ? side_.watch_until(over) : side_.wait_until(over));
      SLUICE_RETURN_IF_ERROR(failure_);
      if (check) compare(in_.data(), step);
      if (!side_.client()) {
        SLUICE_RETURN_IF_ERROR(write(round, step));
        // The client does the same before its next one. What we have just written from is under
        // way.
        if (step > round.first_step) cool_down(step - 1);
      }
      laps.lap();
    }
    SLUICE_RETURN_IF_ERROR(side_.wait_until([&] { return completed_ == posted_; }));
    // In rounds without a check the body is what the last round with one left there.
    if (!check) verdict_.verified_bytes += load_.verify ? round.iterations * signal_bytes_ : 0;
    return failure_;
  }

 private:
  struct Out {
    std::byte* data = nullptr;
    Tensor tensor;
  };
  // Of two in turn, so that one can be made cold while the other is under way.
  Out& out(uint64_t step) { return out_[load_.cold ? step % out_.size() : 0]; }
  void cool_down(uint64_t step) {
    make_cold(in_.data());
    if (load_.cold) make_cold(out(step).data);
  }
  // The last bytes carry the step: the target sees there that the write is complete.
  uint64_t truncated(uint64_t step) const {
    return signal_bytes_ == sizeof(step) ? step : step & ((uint64_t{1} << (signal_bytes_ * 8)) - 1);
  }
  uint64_t in_signal() const {
    uint64_t found = 0;
    std::memcpy(&found, in_.data() + body_bytes_, signal_bytes_);
    return found;
  }
  // Requires: our last write has ended.
  Status write(const Round& round, uint64_t step) {
    std::byte* data = out(step).data;
    if (round.mode == Round::Mode::kCheck) {
      fill(data, step, damages(round));
    }
    uint64_t signal = truncated(step);
    std::memcpy(data + body_bytes_, &signal, signal_bytes_);
    SLUICE_RETURN_IF_ERROR(side_.endpoint.write(
        peer_, 0, out(step).tensor, {.sink = this, .deadline = kNever, .level = Level::kPlaced}));
    ++posted_;
    return Status();
  }
  void on_completion(Completion&& completion) noexcept override {
    if (!completion.status.ok()) failure_ = completion.status;
    ++completed_;
  }

  uint64_t signal_bytes_, body_bytes_;
  bool passive_ = side_.endpoint.info().path.capabilities.has(Capability::kPassiveTarget);
  Target in_;
  RemoteKey peer_;
  std::array<Out, 2> out_;
  Status failure_;
  uint64_t posted_ = 0, completed_ = 0;
};

// The side that is written or read, and does nothing but progress.
class PassiveTarget final : public Workload {
 public:
  using Workload::Workload;
  ~PassiveTarget() override { memory_.revoke(side_); }

  Result<Json> prepare() override {
    Right right = reads() ? Right::kRead : Right::kWrite;
    SLUICE_RETURN_IF_ERROR(memory_.grant(side_,
                                         reads() ? source(load_.size_bytes * load_.depth)
                                                 : destination(load_.size_bytes * load_.depth),
                                         right));
    return encode_key(memory_.key());
  }
  Status arm(const Round& round) override {
    if (!reads()) return Status();
    for (uint32_t slot = 0; slot < load_.depth; ++slot)
      fill(at(slot), round.first_step + slot, damages(round));
    return Status();
  }
  Status run(const Round&, Samples*) override { return serve_passively(); }
  void inspect(const Round& round) override {
    if (reads()) return;
    for (uint32_t slot = 0; slot < load_.depth && slot < round.iterations; ++slot)
      compare(at(slot), round.first_step + slot);
  }

 private:
  bool reads() const { return load_.test->verb == Verb::kRead; }
  std::byte* at(uint32_t slot) const { return memory_.data() + slot * load_.size_bytes; }

  Target memory_;
};

// The side that writes or reads, one operation at a time or a window of them. Each slot's
// content stays the same through a round.
class Initiator final : public Steps {
 public:
  Initiator(const Side& side, const Load& load)
      : Steps(side, load),
        window_(load.depth, load.test->latency ? &pauses_ : nullptr, load.post_list),
        sources_(load.depth),
        tensors_(load.depth) {}

  Result<Json> prepare() override {
    for (uint32_t slot = 0; slot < load_.depth; ++slot) {
      SLUICE_TRY(Buffer buffer, reads() ? destination(load_.size_bytes) : source(load_.size_bytes));
      sources_[slot] = buffer.data();
      if (reads()) {
        window_.returned(slot) = std::move(buffer);
      } else {
        tensors_[slot] = std::move(buffer).freeze();
      }
    }
    return Json::object();
  }
  Status adopt(const Json& peer) override {
    SLUICE_TRY(peer_, decode_key(peer));
    return Status();
  }
  Status arm(const Round& round) override {
    for (uint32_t slot = 0; slot < load_.depth; ++slot) {
      // Of what is read, the damage is another pattern: an empty read must not pass.
      fill(sources_[slot], reads() ? ~round.first_step : round.first_step + slot, damages(round));
    }
    return Status();
  }
  void begin(const Round& round, Samples* samples) override {
    window_.begin(round.iterations, samples);
  }
  Status advance() override {
    return window_.fill([&](uint32_t slot, uint64_t, PostOptions options) {
      uint64_t offset = slot * load_.size_bytes;
      if (reads())
        return internal::status_of(
            side_.endpoint.read(peer_, offset, std::move(window_.returned(slot)), options));
      options.level = Level::kPlaced;
      return internal::status_of(side_.endpoint.write(peer_, offset, tensors_[slot], options));
    });
  }
  bool over() const override { return window_.over(); }
  bool stuck() const override { return window_.stuck(); }
  uint64_t ended() const override { return window_.completed(); }
  void inspect(const Round& round) override {
    if (!reads()) return;
    for (uint32_t slot = 0; slot < load_.depth && slot < round.iterations; ++slot)
      compare(sources_[slot], round.first_step + slot);
  }

 private:
  bool reads() const { return load_.test->verb == Verb::kRead; }

  Window window_;
  std::vector<std::byte*> sources_;  // what is written from, or read into
  std::vector<Tensor> tensors_;
  RemoteKey peer_;
};

}  // namespace

std::unique_ptr<Workload> make_one_sided_workload(const Side& side, const Load& load) {
  if (load.test->verb == Verb::kWrite && load.test->latency)
    return std::make_unique<WriteLatency>(side, load);
  if (side.role == Role::kClient) return std::make_unique<Initiator>(side, load);
  return std::make_unique<PassiveTarget>(side, load);
}

}  // namespace sluice::tools
