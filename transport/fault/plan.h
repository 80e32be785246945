// What goes wrong, when and how often: a value. Knows no link.
#ifndef SLUICE_FAULT_PLAN_H_
#define SLUICE_FAULT_PLAN_H_

#include <cstdint>
#include <string>

namespace sluice::fault {

// The places of a connection where a fault can strike: the calls of sluice::Link, then those
// of LinkClient.
enum class Call : uint8_t {
  kSend,
  kPush,
  kFlush,
  kExport,
  kImport,
  kMessage,
  kPlaced,
  kPushed,
  kWritable
};
inline constexpr int kCallCount = 9;

enum class Action : uint8_t {
  kNothing,
  kFail,  // kExport, kImport: the call returns kNoMemory; others: the path breaks in the call
  kDrop,  // kSend, kPush, kMessage, kPlaced, kWritable: as if it had never been called
  kTruncateHeader,   // kMessage: well-formed, but half of its fields and TLVs are missing
  kTruncatePayload,  // kMessage, kPlaced: half of the payload is missing
  kReorder,          // kMessage: comes after the next one
};

// A fault that ends operations or the connection: once, at the `nth` (from 1) such call.
struct Strike {
  Call call = Call::kSend;
  uint64_t nth = 1;
  Action action = Action::kNothing;
};

// What any path may do at any time: programs notice nothing.
struct Plan {
  uint64_t seed = 1;
  uint32_t late_percent = 0;      // arrivals and pushed() reports held back
  uint32_t busy_percent = 0;      // send(), push(), export_run() say "no room now"
  uint32_t split_percent = 0;     // the payload of a push() goes in two pieces
  uint32_t spurious_percent = 0;  // writable() although nobody waits for room
  uint32_t most_turns = 4;        // of the context: how long something is held back at most

  // A bit of everything harmless.
  static Plan delayed(uint64_t seed) {
    return {.seed = seed,
            .late_percent = 25,
            .busy_percent = 15,
            .split_percent = 50,
            .spurious_percent = 10};
  }
};

std::string to_string(Call call);
std::string to_string(Action action);

// Reproducible chance: SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
// generators, OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // 0 .. bound - 1. Requires: bound > 0.
  uint64_t below(uint64_t bound) { return next() % bound; }
  bool percent(uint32_t chance) { return chance > 0 && below(100) < chance; }

 private:
  uint64_t state_;
};

}  // namespace sluice::fault

#endif  // SLUICE_FAULT_PLAN_H_
