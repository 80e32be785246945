// atomic_lat: one atomic and its answer. atomic_bw: a window of them, each slot with a word
// of its own in the target's memory. Every atomic adds one, by fetch and add or by a
// compare and swap that expects what its slot's last one left: so each answer is known, and
// so is the sum that the target finds.
#include <cstring>
#include <utility>
#include <vector>

#include "tools/perf/load/pattern.h"
#include "tools/perf/flags/target.h"
#include "tools/perf/load/window.h"
#include "tools/perf/load/workload.h"

namespace sluice::tools {
namespace {

// What a slot's word holds when a round begins.
uint64_t first_value(const Load& load, const Round& round, uint32_t slot) {
  return mixed(load.seed ^ mixed(round.first_step) ^ slot);
}

uint64_t word_at(const std::byte* data) {
  uint64_t value = 0;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

class AtomicTarget final : public Workload {
 public:
  using Workload::Workload;
  ~AtomicTarget() override { memory_.revoke(side_); }

  Result<Json> prepare() override {
    SLUICE_RETURN_IF_ERROR(memory_.grant(
        side_, side_.context.arena().allocate(Load::kAtomicBytes * load_.depth), Right::kAtomic));
    return encode_key(memory_.key());
  }
  Status arm(const Round& round) override {
    for (uint32_t slot = 0; slot < load_.depth; ++slot) {
      uint64_t value = first_value(load_, round, slot) ^ (damages(round) ? 0x10 : 0);
      std::memcpy(at(slot), &value, sizeof(value));
    }
    return Status();
  }
  Status run(const Round&, Samples*) override { return serve_passively(); }
  void inspect(const Round& round) override {
    uint64_t added = 0;
    for (uint32_t slot = 0; slot < load_.depth; ++slot)
      added += word_at(at(slot)) - first_value(load_, round, slot);
    verdict_.verified_bytes += load_.depth * Load::kAtomicBytes;
    if (added != round.iterations) verdict_.mismatched_bytes += Load::kAtomicBytes;
  }

 private:
  std::byte* at(uint32_t slot) const { return memory_.data() + slot * Load::kAtomicBytes; }

  Target memory_;
};

class AtomicInitiator final : public Steps {
 public:
  AtomicInitiator(const Side& side, const Load& load)
      : Steps(side, load),
        window_(load.depth, load.test->latency ? &pauses_ : nullptr, load.post_list),
        slots_(load.depth) {}

  Result<Json> prepare() override {
    for (uint32_t slot = 0; slot < load_.depth; ++slot) {
      SLUICE_TRY(window_.returned(slot), side_.context.arena().allocate(Load::kAtomicBytes));
    }
    return Json::object();
  }
  Status adopt(const Json& peer) override {
    SLUICE_TRY(peer_, decode_key(peer));
    return Status();
  }
  Status arm(const Round& round) override {
    for (uint32_t slot = 0; slot < load_.depth; ++slot)
      slots_[slot] = {.next = first_value(load_, round, slot)};
    return Status();
  }
  void begin(const Round& round, Samples* samples) override {
    window_.begin(round.iterations, samples);
  }
  Status advance() override {
    Atomic::Kind kind = load_.compare ? Atomic::Kind::kCompareSwap : Atomic::Kind::kFetchAdd;
    Status status = window_.fill([&](uint32_t number, uint64_t, const PostOptions& options) {
      Slot& slot = slots_[number];
      check_answer(number);
      Atomic request{
          .kind = kind, .operand = load_.compare ? slot.next + 1 : 1, .expected = slot.next};
      SLUICE_RETURN_IF_ERROR(side_.endpoint.atomic(peer_, number * Load::kAtomicBytes, request,
                                                   std::move(window_.returned(number)), options));
      slot.answer = slot.next++;
      slot.out = true;
      return Status();
    });
    if (!status.ok() || window_.over()) {
      for (uint32_t slot = 0; slot < load_.depth; ++slot) check_answer(slot);
    }
    return status;
  }
  bool over() const override { return window_.over(); }
  bool stuck() const override { return window_.stuck(); }
  uint64_t ended() const override { return window_.completed(); }

 private:
  struct Slot {
    uint64_t next = 0;    // what its word holds once all before have been done
    uint64_t answer = 0;  // what the one under way must find
    bool out = false;
  };
  // Requires: nothing is under way in the slot. Once for each answer.
  void check_answer(uint32_t number) {
    Slot& slot = slots_[number];
    if (!std::exchange(slot.out, false) || !load_.verify || !window_.returned(number)) return;
    verdict_.verified_bytes += Load::kAtomicBytes;
    if (word_at(window_.returned(number).data()) != slot.answer)
      verdict_.mismatched_bytes += Load::kAtomicBytes;
  }

  Window window_;
  std::vector<Slot> slots_;
  RemoteKey peer_;
};

}  // namespace

std::unique_ptr<Workload> make_atomic_workload(const Side& side, const Load& load) {
  if (side.role == Role::kClient) return std::make_unique<AtomicInitiator>(side, load);
  return std::make_unique<AtomicTarget>(side, load);
}

}  // namespace sluice::tools
