#include "tools/profile/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <sluice/tuning/knobs.h>

namespace sluice::tools::profile {
namespace {

// A round shorter than this says more of the machine than of the profile, so it is repeated.
constexpr double kShortestSeconds = 0.1;
constexpr uint32_t kMostRepeats = 200;
// A profile that takes so many times as long as the fastest in the first round is not played again.
constexpr double kHopeless = 2;
// A threshold is tried if so many of the messages go another way by it.
constexpr double kShareThatMatters = 0.05;
constexpr size_t kAutomatic = 2;

std::vector<Way> waiting_ways(const Tuning& tuning) {
  return {{"latency", "SLUICE_WAITING=spin", Waiting::kSpin, tuning},
          {"low-cpu", "SLUICE_WAITING=sleep", Waiting::kSleep, tuning},
          {"automatic", "SLUICE_WAITING=adaptive", Waiting::kAdaptive, tuning}};
}

// Rounds of all ways, in turn forwards and backwards, until they or the time are over.
Status play_rounds(const Plan& plan, const AdviseOptions& options, Answer& answer) {
  for (const Way& way : answer.ways) answer.rounds.push_back({.name = way.name});
  const Instant end = after(now(), Duration(static_cast<int64_t>(options.seconds * 1e9)));
  const double span = std::max(static_cast<double>(plan.span_ns) * 1e-9, 1e-4);
  // Spinning where there is no processor for it may take a hundred times as long.
  const auto limit = Duration(static_cast<int64_t>((10 + 10 * span) * 1e9));
  const auto repeats =
      static_cast<uint32_t>(std::clamp(kShortestSeconds / span, 1.0, double{kMostRepeats}));
  for (uint32_t round = 0; round < options.rounds; ++round) {
    if (round > 1 && now() >= end) break;
    double fastest = 1e9;
    for (size_t i = 0; i < answer.ways.size(); ++i) {
      const size_t turn = round % 2 == 0 ? i : answer.ways.size() - 1 - i;
      Rounds& rounds = answer.rounds[turn];
      if (rounds.dropped) continue;
      Result<Played> played = play(plan, answer.ways[turn], repeats, limit);
      const bool too_long = !played.ok() && played.code() == Code::kTimedOut;
      if (too_long && round == 0) {
        rounds.dropped = true;
        rounds.seconds.push_back(static_cast<double>(limit.count()) * 1e-9);
        rounds.cpu_seconds.push_back(rounds.seconds.back());
        continue;
      }
      SLUICE_TRY(Played one, std::move(played));
      rounds.seconds.push_back(one.seconds);
      rounds.cpu_seconds.push_back(one.cpu_seconds);
      fastest = std::min(fastest, one.seconds);
    }
    if (round > 0) continue;
    for (Rounds& rounds : answer.rounds)
      if (rounds.seconds[0] > kHopeless * fastest) rounds.dropped = true;
  }
  return Status();
}

double share_between(const Plan& plan, uint64_t a, uint64_t b) {
  uint64_t sends = 0, between = 0;
  for (const Player& player : plan.players) {
    for (const Step& step : player.steps) {
      if (!step.send) continue;
      ++sends;
      between += step.bytes > std::min(a, b) && step.bytes <= std::max(a, b) ? 1 : 0;
    }
  }
  return sends == 0 ? 0 : static_cast<double>(between) / static_cast<double>(sends);
}

// The threshold that decides how messages go by this path under this way of waiting.
const tuning::Knob* threshold_of(Path path, Waiting waiting) {
  if (path != Path::kShm) return tuning::find_knob("tcp_eager_bytes");
  return tuning::find_knob(waiting == Waiting::kSleep ? "shm_eager_sleeping_bytes"
                                                      : "shm_eager_bytes");
}

Result<Answer> ask_threshold(const Plan& plan, const Way& chosen, const AdviseOptions& options) {
  const tuning::Knob& knob = *threshold_of(plan.path(), chosen.waiting);
  Answer answer{.about = std::string(knob.name)};
  if (plan.path() == Path::kVerbs) {
    answer.not_asked = "over RDMA the largest eager message is fixed";
    return answer;
  }
  const uint64_t own = chosen.tuning.*knob.value;
  auto add = [&](uint64_t value) {
    Way way = chosen;
    way.name = tuning::value_text(knob, value);
    way.setting = fmt::format("SLUICE_TUNING={}={}", knob.name, value);
    way.tuning.*knob.value = value;
    answer.ways.push_back(std::move(way));
  };
  add(own);
  uint64_t before = own;
  for (uint64_t value = 256; value <= knob.most; value *= 4) {
    if (share_between(plan, own, value) < kShareThatMatters) continue;
    if (before != own && share_between(plan, before, value) < kShareThatMatters) continue;
    add(value);
    before = value;
  }
  if (answer.ways.size() == 1) {
    answer.not_asked = fmt::format("fewer than {:.0f} % of the messages would go another way",
                                   kShareThatMatters * 100);
    return answer;
  }
  SLUICE_RETURN_IF_ERROR(play_rounds(plan, options, answer));
  answer.choice = choose_value(answer.rounds);
  return answer;
}

Result<Answer> ask_moderation(const Plan& plan, const Way& chosen, const AdviseOptions& options) {
  Answer answer{.about = "SLUICE_RDMA_MODERATION"};
  if (plan.path() != Path::kVerbs || chosen.waiting == Waiting::kSpin) {
    answer.not_asked = plan.path() != Path::kVerbs
                           ? "it concerns connections over RDMA, and the replay has none"
                           : "it concerns those who sleep";
    return answer;
  }
  for (const char* moderation : {"", "auto", "16/16"}) {
    Way way = chosen;
    way.moderation = moderation;
    way.name = way.moderation.empty() ? "off" : way.moderation;
    way.setting = "SLUICE_RDMA_MODERATION=" + way.moderation;
    answer.ways.push_back(std::move(way));
  }
  SLUICE_RETURN_IF_ERROR(play_rounds(plan, options, answer));
  answer.choice = choose_value(answer.rounds);
  return answer;
}

}  // namespace

std::vector<std::string> Advice::settings() const {
  std::vector<std::string> set;
  if (waiting.choice.index != kAutomatic) set.push_back(waiting.ways[waiting.choice.index].setting);
  for (const Answer& answer : thresholds)
    if (answer.not_asked.empty() && answer.choice.index != 0)
      set.push_back(answer.ways[answer.choice.index].setting);
  return set;
}

uint64_t part_ns(const AdviseOptions& options) {
  return static_cast<uint64_t>(std::max(0.05, options.seconds / (3 * options.rounds)) * 1e9);
}

Result<Advice> advise(const Plan& plan, const Tuning& recorded, const AdviseOptions& options) {
  Advice advice;
  advice.waiting.about = "waiting";
  advice.waiting.ways = waiting_ways(recorded);
  SLUICE_RETURN_IF_ERROR(play_rounds(plan, options, advice.waiting));
  advice.waiting.choice = choose(advice.waiting.rounds, kAutomatic);
  const Way& chosen = advice.waiting.ways[advice.waiting.choice.index];
  for (auto* ask : {&ask_threshold, &ask_moderation}) {
    SLUICE_TRY(Answer answer, ask(plan, chosen, options));
    advice.thresholds.push_back(std::move(answer));
  }
  const auto foreign = std::find_if(plan.lines.begin(), plan.lines.end(), [&](const Line& line) {
    return line.path != plan.path() && line.path != Path::kShm;
  });
  if (foreign != plan.lines.end()) {
    advice.remarks.push_back(
        fmt::format("the program used {}, and the replay TCP on this machine: what is said of "
                    "waiting holds as far as the two wake alike",
                    to_string(foreign->path)));
  }
  return advice;
}

}  // namespace sluice::tools::profile
