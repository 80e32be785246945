#include "tools/perf/load/workload.h"

#include <sched.h>

#include <chrono>
#include <string>

#include "tools/perf/load/checksum.h"
#include "tools/perf/load/pattern.h"

namespace sluice::tools {

Status Side::closed() {
  return Status(Code::kUnreachable, Scope::kEndpoint, "perf",
                "the peer went away in the middle of the test");
}

Status Side::stalled() {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(kStallLimit).count();
  return Status(Code::kTimedOut, Scope::kEndpoint, "perf",
                "nothing arrived in memory for " + std::to_string(seconds) +
                    " s; see that the peer runs, and that its machine has time for it");
}

void Side::give_way() { (void)::sched_yield(); }

Result<Buffer> Workload::placed(uint64_t bytes, std::optional<uint32_t> offset,
                                std::optional<uint64_t>& at) {
  SLUICE_TRY(Buffer buffer, allocate_at(side_.context.arena(), bytes, offset));
  if (offset) at = reinterpret_cast<uintptr_t>(buffer.data()) % kPageBytes;
  return buffer;
}

void Workload::fill(const Load& messages, std::byte* data, uint64_t step, bool damage) {
  fill_pattern({data, messages.size_bytes}, messages.seed, step);
  if (carries_checksum(messages)) seal({data, checked_bytes(messages)}, messages.seed, step);
  if (damage && messages.size_bytes > 0) data[checked_bytes(messages) / 2] ^= std::byte{0x10};
}

void Workload::compare(const Load& messages, const std::byte* data, uint64_t step) {
  uint64_t length = checked_bytes(messages);
  verdict_.verified_bytes += length;
  if (carries_checksum(messages)) {
    verdict_.mismatched_bytes +=
        is_intact({data, length}, messages.seed, step) ? 0 : length;  // which of them is not known
  } else {
    verdict_.mismatched_bytes += count_mismatches({data, length}, messages.seed, step);
  }
}

Status Workload::serve_passively() {
  SLUICE_RETURN_IF_ERROR(side_.control.expect());
  // The client's round may be as long as it likes: only the connection's end is a failure.
  while (!side_.control.arrived()) {
    Status status = side_.wait_until([&] { return side_.control.arrived(); });
    if (!status.ok() && status.code() != Code::kTimedOut) return status;
  }
  return Status();
}

Status Steps::run_together(Side& side, std::span<Steps* const> all) {
  auto sum = [all] {
    uint64_t ended = 0;
    for (const Steps* each : all) ended += each->ended();
    return ended;
  };
  while (true) {
    // What ends while others are advanced counts as new.
    uint64_t before = sum();
    bool over = true, stuck = true;
    for (Steps* each : all) {
      SLUICE_RETURN_IF_ERROR(each->advance());
      over = over && each->over();
      stuck = stuck && (each->over() || each->stuck());
    }
    if (over) return Status();
    if (stuck) {
      side.context.progress();
    } else {
      SLUICE_RETURN_IF_ERROR(side.wait_until([&] { return sum() != before; }));
    }
  }
}

std::unique_ptr<Workload> make_workload(const Side& side, const Load& load) {
  if (load.bidirectional) return make_duplex_workload(side, load);
  switch (load.test->verb) {
    case Verb::kSend: return make_send_workload(side, load);
    case Verb::kWrite:
    case Verb::kRead: return make_one_sided_workload(side, load);
    case Verb::kAtomic: return make_atomic_workload(side, load);
    case Verb::kExchange: return make_exchange_workload(side, load);
    case Verb::kRpc: return make_rpc_workload(side, load);
    case Verb::kRegister:
    case Verb::kCopy: break;  // without a peer
  }
  return nullptr;
}

}  // namespace sluice::tools
