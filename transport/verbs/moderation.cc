#include <sluice/verbs/moderation.h>

#include <algorithm>
#include <charconv>

namespace sluice::verbs {
namespace {

// What an event may be late by.
constexpr uint16_t kLongestModerationUs = 1000;
// DIM's: DIM_NEVENTS, and what it takes for a difference (include/linux/dim.h).
constexpr uint64_t kWindowEvents = 64;
constexpr double kSignificant = 0.1;
// Fewer with an event, and there is nothing to gather.
constexpr double kWorthGathering = 2;
constexpr uint32_t kLoneOnEnd = 2;
// Far above any period: what comes after it belongs to nothing before.
constexpr Duration kPause = std::chrono::milliseconds(1);
constexpr uint32_t kLongestRest = 64;

}  // namespace

std::optional<ModerationWish> moderation_wish(std::string_view text) {
  if (text == "auto") return ModerationWish{.automatic = true, .fixed = {}};
  Moderation moderation;
  const char* end = text.data() + text.size();
  auto [slash, wrong_count] = std::from_chars(text.data(), end, moderation.count);
  if (wrong_count != std::errc() || slash == end || *slash != '/') return std::nullopt;
  auto [last, wrong_period] = std::from_chars(slash + 1, end, moderation.period_us);
  if (wrong_period != std::errc() || last != end) return std::nullopt;
  bool sane = moderation.count > 0 && moderation.period_us > 0 &&
              moderation.period_us <= kLongestModerationUs;
  return sane ? std::optional(ModerationWish{.automatic = false, .fixed = moderation})
              : std::nullopt;
}

std::optional<Moderation> EventModerator::before_sleep(const EventTotals& totals, Instant now) {
  if (!begun_) {
    begun_ = true;
    came_at_ = window_began_ = now;
  }
  if (sparse(totals, now)) return drop();
  if (totals.events - window_.events < kWindowEvents) return std::nullopt;
  // A clock that stood still gives rates that are all alike.
  const double seconds = std::max(std::chrono::duration<double>(now - window_began_).count(), 1e-9);
  const auto events = static_cast<double>(totals.events - window_.events);
  const auto completions = static_cast<double>(totals.completions - window_.completions);
  const Rates rates{
      .bytes = static_cast<double>(totals.bytes - window_.bytes) / seconds,
      .completions = completions / seconds,
      .per_event = completions / events,
  };
  window_ = totals;
  window_began_ = now;
  return judge(rates);
}

// Nothing came for a while, or what comes comes alone.
bool EventModerator::sparse(const EventTotals& totals, Instant now) {
  const bool announced = totals.events != last_.events;
  const uint64_t came = totals.completions - last_.completions;
  const bool paused = now - came_at_ >= kPause;
  last_ = totals;
  if (came > 0) came_at_ = now;
  if (announced || came > 1) lone_ = came <= 1 ? lone_ + 1 : 0;
  return profile_ > 0 && ((came <= 1 && paused) || lone_ >= kLoneOnEnd);
}

std::optional<Moderation> EventModerator::drop() {
  // A try that ended so has failed, too.
  if (state_ == State::kRaised) rest();
  window_ = last_;
  window_began_ = came_at_;
  return to(0, State::kUnknown);
}

std::optional<Moderation> EventModerator::to(size_t profile, State state) {
  state_ = state;
  if (profile == profile_) return std::nullopt;
  profile_ = profile;
  return kProfiles[profile];
}

void EventModerator::rest() {
  rest_ = next_rest_;
  next_rest_ = std::min(2 * next_rest_, kLongestRest);
}

int EventModerator::change(double now, double before) {
  if (now > before * (1 + kSignificant)) return 1;
  return now < before * (1 - kSignificant) ? -1 : 0;
}

// As net_dim compares: bytes, and where they are the same, how many completions brought them.
int EventModerator::throughput_change(const Rates& now, const Rates& before) {
  const int bytes = change(now.bytes, before.bytes);
  return bytes != 0 ? bytes : change(now.completions, before.completions);
}

std::optional<Moderation> EventModerator::judge(const Rates& now) {
  if (now.per_event < kWorthGathering) return profile_ > 0 ? drop() : to(0, State::kUnknown);
  const size_t top = kProfiles.size() - 1;
  if (state_ == State::kRaised) {
    if (throughput_change(now, before_) < 0 || change(now.per_event, before_.per_event) <= 0) {
      rest();
      return to(profile_ - 1, State::kSettled);  // before_ is of that one
    }
    next_rest_ = 1;
    before_ = now;
    return profile_ == top ? to(top, State::kSettled) : to(profile_ + 1, State::kRaised);
  }
  if (state_ == State::kLowered) {
    if (throughput_change(now, before_) < 0 || change(now.per_event, before_.per_event) < 0) {
      rest();
      return to(profile_ + 1, State::kSettled);
    }
    before_ = now;
    return profile_ == 0 ? to(0, State::kSettled) : to(profile_ - 1, State::kLowered);
  }
  return judge_settled(now);
}

std::optional<Moderation> EventModerator::judge_settled(const Rates& now) {
  if (rest_ > 0) {
    --rest_;
    return std::nullopt;
  }
  int moved = 1;  // without anything to compare with, up
  if (state_ == State::kSettled) {
    moved = throughput_change(now, before_);
    if (moved == 0) moved = change(now.per_event, before_.per_event);
    if (moved == 0) return std::nullopt;
  }
  before_ = now;
  if (moved > 0 && profile_ + 1 < kProfiles.size()) return to(profile_ + 1, State::kRaised);
  if (moved < 0 && profile_ > 0) return to(profile_ - 1, State::kLowered);
  return to(profile_, State::kSettled);
}

}  // namespace sluice::verbs
