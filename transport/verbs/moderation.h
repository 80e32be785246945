// How many completions a device gathers before it raises an event, and a rule that finds it by
// what the events brought, in the manner of Linux's DIM (lib/dim,
// Documentation/networking/net_dim.rst). Numbers in, numbers out: knows no device and no clock.
#ifndef SLUICE_VERBS_MODERATION_H_
#define SLUICE_VERBS_MODERATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <sluice/base/clock.h>

namespace sluice::verbs {

// Completion event moderation (ibv_modify_cq(3)): an event that was asked for comes after
// `count` completions, or `period_us` after the first of them. Count 0: as the device is.
struct Moderation {
  uint16_t count = 0;
  uint16_t period_us = 0;
  bool operator==(const Moderation&) const = default;
};

// What $SLUICE_RDMA_MODERATION asks for: nothing, one setting for good, or what EventModerator
// finds.
struct ModerationWish {
  bool automatic = false;
  Moderation fixed;
  bool any() const { return automatic || fixed.count > 0; }
};
// Parses "auto" or "16/8" (completions, 1 to 65535; microseconds, 1 to 1000); none for another
// text.
std::optional<ModerationWish> moderation_wish(std::string_view text);

// Totals of one completion queue, since it was made.
struct EventTotals {
  uint64_t events = 0;       // sleeps that its events ended
  uint64_t completions = 0;  // with or without an event
  uint64_t bytes = 0;        // that they moved
};

// Chooses the moderation of one completion queue. 64 events are a window. A profile is kept if it
// brought a tenth more completions with each event than the one before it, and no fewer bytes or
// completions a second. Else the one before it is taken again, and the next try waits for twice as
// many windows each time. A settled queue tries again when its load changes.
//
// No message is delayed without a gain. If fewer than two completions come with an event, as in a
// ping-pong, nothing is tried. Two lone completions in a row, or one after a pause, end all
// moderation at once.
class EventModerator {
 public:
  // Reasoned, not measured (no device that moderates was at hand): the first is none at all. A wake
  // takes 20 to 60 us (docs/performance.md): a step shorter than 8 us shows no tenth beside it, and
  // a sleeper waits no more than about two wakes. At most half of the peer's 64 message slots
  // (queue_pair.h), so that the peer can go on meanwhile.
  static constexpr std::array<Moderation, 4> kProfiles = {{{1, 1}, {8, 8}, {16, 16}, {32, 32}}};

  // The waiter is about to sleep, and has taken what had come. What the queue is to be set to, if
  // that is another than before; first it is kProfiles[0]. Requires: totals and time that do not go
  // back. Cost: some ns.
  std::optional<Moderation> before_sleep(const EventTotals& totals, Instant now);
  size_t profile() const { return profile_; }

 private:
  // kUnknown: there is nothing to compare the next window with.
  enum class State : uint8_t { kUnknown, kSettled, kRaised, kLowered };
  struct Rates {
    double bytes = 0, completions = 0;  // per second
    double per_event = 0;               // completions
  };
  static int change(double now, double before);
  static int throughput_change(const Rates& now, const Rates& before);
  bool sparse(const EventTotals& totals, Instant now);
  std::optional<Moderation> to(size_t profile, State state);
  std::optional<Moderation> drop();
  std::optional<Moderation> judge(const Rates& now);
  std::optional<Moderation> judge_settled(const Rates& now);
  void rest();

  size_t profile_ = 0;
  State state_ = State::kUnknown;
  EventTotals last_, window_;           // at the last call; at the window's begin
  Instant came_at_{}, window_began_{};  // the last call that something came with
  bool begun_ = false;
  uint32_t lone_ = 0;  // events in a row with one completion, or none
  Rates before_;
  uint32_t rest_ = 0, next_rest_ = 1;  // windows in which nothing is tried; after the next vain try
};

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_MODERATION_H_
