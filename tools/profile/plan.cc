#include "tools/profile/plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace sluice::tools::profile {
namespace {

using recording::ContextRecording;
using recording::Event;
using recording::EventKind;
using recording::Recording;

Status invalid(std::string why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, "profile", std::move(why));
}

// Between two bursts a program may compute for so many times as long as a part takes by itself; a
// replay that goes on for longer is one that nobody waits for.
constexpr uint64_t kLongestGap = 20;

// Of a view nothing but the notice crosses.
uint64_t bytes_to_send(const Event& event) { return event.view != 0 ? 0 : event.bytes; }

// A recorded end of a connection.
struct End {
  uint32_t player = 0;
  const recording::Connection* connection = nullptr;
  std::vector<const Event*> sent, received;
  uint32_t line = UINT32_MAX;
};

// A message that can be played: both ends, or the one at a peer of an end that is not here.
struct Message {
  const Event* first = nullptr;  // where it was sent, if that end is here
  const Event* second = nullptr;
  std::array<uint32_t, 2> players{};
};

class Planner {
 public:
  explicit Planner(uint64_t most_ns) : most_ns_(most_ns) {}
  Result<Plan> run(const std::vector<Recording>& recordings);

 private:
  Status gather(const std::vector<Recording>& recordings);
  void join_ends();
  void join(size_t a, size_t b);
  void match_messages();
  void match(const End& sender, const End& receiver);
  void choose_part();
  bool is_in_bursts(size_t first, size_t last) const;
  void write_steps();
  void leave_out_idle();
  Step done_before(const Event& event, uint64_t last_ns) const;

  const uint64_t most_ns_;
  uint64_t from_ = UINT64_MAX, until_ = 0;  // of the part
  Plan plan_;
  std::vector<const ContextRecording*> contexts_;  // of the players that are recorded
  std::vector<uint64_t> started_ns_;               // of their processes
  std::vector<End> ends_;
  std::map<std::pair<uint32_t, uint32_t>, size_t> end_of_;  // by player and connection
  std::vector<Message> messages_;                           // in their order of time
  std::map<const Event*, uint64_t> chosen_;                 // bytes to send
};

Status Planner::gather(const std::vector<Recording>& recordings) {
  std::set<std::tuple<uint64_t, uint64_t>> processes;
  for (const Recording& each : recordings) {
    const recording::FileHeader& header = each.header;
    if (!processes.insert({header.pid, header.started_ns}).second)
      return invalid(each.file + " is given twice; give each recording once");
    if (std::memcmp(header.host, recordings[0].header.host, sizeof(header.host)) != 0) {
      return invalid(each.file + " and " + recordings[0].file +
                     " are of different machines, or of one that was started anew between; give "
                     "recordings of one run on one machine");
    }
    for (const auto& [number, context] : each.contexts) {
      if (context.events.empty()) continue;
      const auto player = static_cast<uint32_t>(plan_.players.size());
      Player& made = plan_.players.emplace_back();
      made.name = std::string(header.program) + " " + std::to_string(header.pid);
      std::copy(std::begin(header.usable_cpus), std::end(header.usable_cpus),
                made.usable_cpus.begin());
      contexts_.push_back(&context);
      started_ns_.push_back(header.started_ns);
      for (const auto& [id, connection] : context.connections) {
        end_of_[{player, id}] = ends_.size();
        ends_.push_back({.player = player, .connection = &connection, .sent = {}, .received = {}});
      }
      for (const Event& event : context.events) {
        End& end = ends_[end_of_[{player, event.connection}]];
        (event.kind == EventKind::kSent ? end.sent : end.received).push_back(&event);
        from_ = std::min(from_, header.started_ns);
        until_ = std::max(until_, event.at_ns + 1);
      }
    }
  }
  if (contexts_.empty())
    return invalid("no message was recorded; record a program while it sends or fetches");
  return Status();
}

void Planner::join(size_t a, size_t b) {
  const auto line = static_cast<uint32_t>(plan_.lines.size());
  plan_.lines.push_back({.players = {ends_[a].player, ends_[b].player},
                         .path = static_cast<Path>(ends_[a].connection->path),
                         .name = ends_[a].connection->local});
  ends_[a].line = ends_[b].line = line;
}

// The ends of a connection have the same names, the other way round. Of several such connections
// the first of one end is the first of the other.
void Planner::join_ends() {
  using Names = std::tuple<uint32_t, std::string, std::string>;
  std::map<Names, std::vector<size_t>> waiting;
  for (size_t i = 0; i < ends_.size(); ++i) {
    const recording::Connection& own = *ends_[i].connection;
    std::vector<size_t>& others = waiting[{own.path, own.peer, own.local}];
    // A context that talks to itself is played as one that talks to somebody else.
    if (others.empty() || ends_[others.front()].player == ends_[i].player) {
      waiting[{own.path, own.local, own.peer}].push_back(i);
    } else {
      join(others.front(), i);
      others.erase(others.begin());
    }
  }
  // A peer for each player with connections of which the other end is not here.
  std::map<uint32_t, uint32_t> peers;
  for (End& end : ends_) {
    if (end.line != UINT32_MAX || (end.sent.empty() && end.received.empty())) continue;
    auto [peer, is_new] =
        peers.try_emplace(end.player, static_cast<uint32_t>(plan_.players.size()));
    if (is_new) {
      Player made{.name = "the peer of " + plan_.players[end.player].name, .recorded = false};
      made.usable_cpus = plan_.players[end.player].usable_cpus;
      plan_.players.push_back(std::move(made));
    }
    end.line = static_cast<uint32_t>(plan_.lines.size());
    plan_.lines.push_back({.players = {end.player, peer->second},
                           .path = static_cast<Path>(end.connection->path),
                           .name = end.connection->local});
  }
}

void Planner::match(const End& sender, const End& receiver) {
  const size_t both = std::min(sender.sent.size(), receiver.received.size());
  plan_.unmatched += sender.sent.size() + receiver.received.size() - 2 * both;
  for (size_t i = 0; i < both; ++i)
    messages_.push_back({.first = sender.sent[i],
                         .second = receiver.received[i],
                         .players = {sender.player, receiver.player}});
}

void Planner::match_messages() {
  std::map<uint32_t, std::vector<const End*>> lines;
  for (const End& end : ends_)
    if (end.line != UINT32_MAX) lines[end.line].push_back(&end);
  for (const auto& [line, ends] : lines) {
    if (ends.size() == 2) {
      match(*ends[0], *ends[1]);
      match(*ends[1], *ends[0]);
      continue;
    }
    const uint32_t player = ends[0]->player;
    for (const auto* events : {&ends[0]->sent, &ends[0]->received})
      for (const Event* event : *events)
        messages_.push_back({.first = event, .players = {player, player}});
  }
  std::stable_sort(messages_.begin(), messages_.end(), [](const Message& a, const Message& b) {
    return a.first->at_ns < b.first->at_ns;
  });
}

// The beginning differs from the rest: memory is touched for the first time. A tenth of the
// messages and not of the time, since programs compute for long before the first one. Where they
// come in bursts, as the tensors of a step do, the part has the computing between two of them.
void Planner::choose_part() {
  const uint64_t recorded_ns = until_ - from_;
  const size_t count = messages_.size();
  const auto at = [&](size_t i) { return messages_[i].first->at_ns; };
  size_t first = 0, last = count;  // of the part, and behind it
  if (recorded_ns > most_ns_) {
    first = count / 10;
    uint64_t end = at(first) + most_ns_;
    const auto go_on = [&] {
      while (last < count && at(last) < end) ++last;
    };
    last = first;
    go_on();
    if (is_in_bursts(first, last)) {
      end = at(last) + most_ns_;
      go_on();
    }
    while (last == count && first > 0 && until_ - at(first - 1) <= most_ns_) --first;
    from_ = at(first);
    until_ = std::min(until_, end);
  }
  plan_.recorded_ns = recorded_ns;
  plan_.span_ns = until_ - from_;
  for (size_t i = first; i < last; ++i) {
    const Message& message = messages_[i];
    const uint64_t bytes = bytes_to_send(*message.first);
    chosen_[message.first] = bytes;
    if (message.second != nullptr) chosen_[message.second] = bytes;
  }
}

// Whether one of the same processes goes on, but only after a gap that takes more than half of a
// part: one that a part may have missed. Where all are others, a run has ended and another begun.
bool Planner::is_in_bursts(size_t first, size_t last) const {
  if (last == messages_.size()) return false;
  const uint64_t gap = messages_[last].first->at_ns - messages_[last - 1].first->at_ns;
  if (gap <= most_ns_ / 2 || gap > kLongestGap * most_ns_) return false;
  std::set<uint32_t> players;
  for (size_t i = first; i < last; ++i)
    players.insert(messages_[i].players.begin(), messages_[i].players.end());
  return players.contains(messages_[last].players[0]) ||
         players.contains(messages_[last].players[1]);
}

// What was done between the event before, at `last_ns`, and this one, as far as it is in the part:
// a program computes right before it sends.
Step Planner::done_before(const Event& event, uint64_t last_ns) const {
  if (event.at_ns < from_) return Step();
  const uint64_t most = last_ns < from_ ? event.at_ns - from_ : UINT64_MAX;
  const uint64_t computed = std::min(event.computed_ns, most);
  return {.computed_ns = computed, .paused_ns = std::min(event.paused_ns, most - computed)};
}

void Planner::write_steps() {
  for (uint32_t player = 0; player < contexts_.size(); ++player) {
    Step next;
    // A process that was started when others had begun.
    uint64_t last_ns = started_ns_[player];
    if (last_ns > from_) next.paused_ns = last_ns - from_;
    uint64_t waited = 0;
    bool after_view = false;
    const Event* before = nullptr;  // the last one with the peer that was not recorded
    for (const Event& event : contexts_[player]->events) {
      const Step done = done_before(event, last_ns);
      next.computed_ns += done.computed_ns;
      next.paused_ns += done.paused_ns;
      if (event.at_ns >= from_) {
        waited += event.polled_ns + event.slept_ns;
        // Copies out of a view. Of a message the replay makes the copies itself.
        if (after_view) next.computed_ns += event.moved_ns;
      }
      last_ns = event.at_ns;
      after_view = event.view != 0;
      const auto chosen = chosen_.find(&event);
      if (chosen == chosen_.end()) continue;
      next.bytes = chosen->second;
      next.line = ends_[end_of_[{player, event.connection}]].line;
      next.send = event.kind == EventKind::kSent;
      plan_.players[player].steps.push_back(next);
      ++plan_.messages;
      plan_.bytes += next.bytes;
      Player& peer = plan_.players[plan_.lines[next.line].players[1]];
      if (!peer.recorded) {
        // It sent when its message came, or before if nobody waited for that. What it did until
        // then is not known: on this machine it took a processor, elsewhere none of ours.
        Step answer{.bytes = next.bytes, .line = next.line, .send = !next.send};
        if (answer.send && waited > 0 && before != nullptr) {
          const uint64_t since = event.at_ns - before->at_ns;
          const bool here = plan_.lines[next.line].path == Path::kShm;
          (here ? answer.computed_ns : answer.paused_ns) = since;
        }
        peer.steps.push_back(answer);
        ++plan_.messages;
        plan_.bytes += next.bytes;
        before = &event;
        waited = 0;
      }
      next = Step();
    }
  }
}

// Who has nothing to do in the part would take a process of the replay and some of its processor
// time, and the path of its connections says nothing about the others.
void Planner::leave_out_idle() {
  std::vector<Player> players;
  std::vector<Line> lines;
  std::vector<uint32_t> player_numbers(plan_.players.size());
  std::map<uint32_t, uint32_t> line_numbers;
  for (size_t i = 0; i < plan_.players.size(); ++i) {
    Player& player = plan_.players[i];
    if (player.steps.empty()) continue;
    player_numbers[i] = static_cast<uint32_t>(players.size());
    for (Step& step : player.steps) {
      const auto [number, is_new] =
          line_numbers.try_emplace(step.line, static_cast<uint32_t>(lines.size()));
      if (is_new) lines.push_back(plan_.lines[step.line]);
      step.line = number->second;
    }
    players.push_back(std::move(player));
  }
  for (Line& line : lines)
    for (uint32_t& player : line.players) player = player_numbers[player];
  plan_.players = std::move(players);
  plan_.lines = std::move(lines);
}

Result<Plan> Planner::run(const std::vector<Recording>& recordings) {
  if (recordings.empty()) return invalid("name the FILE of a recording");
  SLUICE_RETURN_IF_ERROR(gather(recordings));
  join_ends();
  match_messages();
  if (messages_.empty()) {
    return invalid(
        "both ends of each connection were recorded, and none of their messages at both: a process "
        "was killed before it wrote, or its recording was full; record anew, and let the program "
        "end by itself");
  }
  choose_part();
  write_steps();
  leave_out_idle();
  return std::move(plan_);
}

}  // namespace

Path Plan::path() const {
  for (Path path : {Path::kShm, Path::kVerbs}) {
    if (std::all_of(lines.begin(), lines.end(),
                    [&](const Line& line) { return line.path == path; }))
      return path;
  }
  return Path::kTcp;
}

Result<Plan> make_plan(const std::vector<recording::Recording>& recordings, uint64_t most_ns) {
  return Planner(most_ns).run(recordings);
}

}  // namespace sluice::tools::profile
