// One side of one test at one size. Both sides have one; the client's round and the
// server's run at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <sluice/api/context.h>
#include <sluice/spi/endpoint_core.h>

#include "tools/perf/run/conditions.h"
#include "tools/perf/run/control.h"
#include "tools/perf/flags/plan.h"
#include "tools/perf/report/samples.h"

namespace sluice::tools {

enum class Role : uint8_t { kClient, kServer };

// What a workload works on; all outlive it.
struct Side {
  Context& context;
  Endpoint& endpoint;
  ControlChannel& control;
  Role role;

  bool client() const { return role == Role::kClient; }
  // Progresses until done() is true. Errors: kTimedOut after kStallLimit, kUnreachable
  // when the endpoint is closed meanwhile.
  template <typename Done>
  Status wait_until(Done&& done) {
    EndpointCore& core = endpoint.core();
    SLUICE_RETURN_IF_ERROR(
        context.wait_until([&] { return done() || core.state() != EndpointState::kConnected; },
                           after(context.now(), kStallLimit)));
    return done() ? Status() : closed();
  }

  // The same for bytes that a peer's device writes here: no descriptor tells of them, so nothing
  // may sleep.
  template <typename Done>
  Status watch_until(Done&& done) {
    EndpointCore& core = endpoint.core();
    Instant limit = after(context.refresh_now(), kStallLimit);
    for (uint32_t turn = 1; !done(); ++turn) {
      if (core.state() != EndpointState::kConnected) return closed();
      context.progress();
      if (turn % kTurnsPerYield != 0) continue;
      if (context.refresh_now() >= limit) return stalled();
      give_way();
    }
    return Status();
  }

 private:
  // The peer, or the kernel that moves its bytes, may need this CPU.
  static constexpr uint32_t kTurnsPerYield = 64;
  static void give_way();
  static Status closed();
  static Status stalled();
};

class Steps;

// What the checks found so far on this side.
struct Verdict {
  uint64_t verified_bytes = 0;
  uint64_t mismatched_bytes = 0;
};

// Where buffers were, and what was done to them, under the conditions that were asked for.
struct Buffers {
  std::optional<uint64_t> source_at, destination_at;  // past a page's beginning, of the last one
  uint64_t evicted_bytes = 0;
};

class Workload {
 public:
  Workload(const Side& side, const Load& load)
      : side_(side), load_(load), pauses_(load.pause_ns, load.pause_seed) {}
  virtual ~Workload() = default;
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  // Allocates and grants. The server's object goes to the client's adopt().
  virtual Result<Json> prepare() = 0;
  virtual Status adopt(const Json&) { return Status(); }
  // Posts what must be there before the peer's first byte.
  virtual Status arm(const Round&) { return Status(); }
  // `samples`: null, or room for round.iterations. A passive server returns when the
  // control channel has something.
  virtual Status run(const Round& round, Samples* samples) = 0;
  // Null: run() alone.
  virtual Steps* steps() { return nullptr; }
  // After a round, off the clock: compares what is left in memory.
  virtual void inspect(const Round&) {}
  // Places among the samples of the first `tensors` steps where a tensor of an extent
  // that was not handed over before crossed.
  virtual std::span<const uint32_t> first_of_extent() const { return {}; }

  const Verdict& verdict() const { return verdict_; }
  const Load& load() const { return load_; }
  const Buffers& buffers() const { return buffers_; }
  uint64_t paused_ns() const { return pauses_.paused_ns(); }

 protected:
  // Memory at the offsets that were asked for: what is sent or written from, and what is received,
  // written or read into.
  Result<Buffer> source(uint64_t bytes) {
    return placed(bytes, load_.source_offset, buffers_.source_at);
  }
  Result<Buffer> destination(uint64_t bytes) {
    return placed(bytes, load_.destination_offset, buffers_.destination_at);
  }
  // Where that was asked for.
  void make_cold(const std::byte* data) {
    if (load_.cold) buffers_.evicted_bytes += evict(data, load_.size_bytes);
  }
  // Before a message of the client, and before its clock starts.
  void pause(const Round& round) {
    if (pauses_ && round.mode == Round::Mode::kPlain) pauses_.pause();
  }
  // Whether this side must flip a byte of what it sends, so that the check is seen to work.
  bool damages(const Round& round) const {
    return load_.corrupt && round.mode == Round::Mode::kCheck;
  }
  // Writes the pattern of `step`, and its checksum where there is to be one. The damage comes after
  // that.
  void fill(std::byte* data, uint64_t step, bool damage) const { fill(load_, data, step, damage); }
  // The bytes that are checked.
  void compare(const std::byte* data, uint64_t step) { compare(load_, data, step); }
  // The same of messages that are not the load's own.
  static void fill(const Load& messages, std::byte* data, uint64_t step, bool damage);
  void compare(const Load& messages, const std::byte* data, uint64_t step);
  // Progresses until the client says that the round is over.
  Status serve_passively();

  Side side_;
  Load load_;
  Verdict verdict_;
  Buffers buffers_;
  Pauses pauses_;

 private:
  Result<Buffer> placed(uint64_t bytes, std::optional<uint32_t> offset,
                        std::optional<uint64_t>& at);
};

// A workload that is run in steps, beside others on connections of their own: begin(), then
// advance() whenever something may have ended, until over().
class Steps : public Workload {
 public:
  using Workload::Workload;
  Steps* steps() final { return this; }
  Status run(const Round& round, Samples* samples) final {
    begin(round, samples);
    Steps* self = this;
    return run_together(side_, std::span(&self, 1));
  }

  virtual void begin(const Round& round, Samples* samples) = 0;
  // Posts what there is room for.
  virtual Status advance() = 0;
  virtual bool over() const = 0;
  // Nothing is under way: advance() is to be called again, whether something ended or not.
  virtual bool stuck() const { return false; }
  // Operations that have ended in this round.
  virtual uint64_t ended() const = 0;

  // Requires: each has begun. Waits with `side`, which is that of one of them.
  static Status run_together(Side& side, std::span<Steps* const> all);
};

std::unique_ptr<Workload> make_send_workload(const Side& side, const Load& load);
std::unique_ptr<Workload> make_one_sided_workload(const Side& side, const Load& load);
std::unique_ptr<Workload> make_atomic_workload(const Side& side, const Load& load);
std::unique_ptr<Workload> make_duplex_workload(const Side& side, const Load& load);
std::unique_ptr<Workload> make_exchange_workload(const Side& side, const Load& load);
std::unique_ptr<Workload> make_rpc_workload(const Side& side, const Load& load);
std::unique_ptr<Workload> make_workload(const Side& side, const Load& load);

}  // namespace sluice::tools
