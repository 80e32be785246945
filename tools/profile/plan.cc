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

// Of a view nothing but the notice crosses.
uint64_t bytes_to_send(const Event& event) { return event.view != 0 ? 0 : event.bytes; }

// A recorded end of a connection.
struct End {
  uint32_t player = 0;
  const recording::Connection* connection = nullptr;
  std::vector<const Event*> sent, received;
  uint32_t line = UINT32_MAX;
};

class Planner {
 public:
  explicit Planner(uint64_t most_ns) : most_ns_(most_ns) {}
  Result<Plan> run(const std::vector<Recording>& recordings);

 private:
  Status gather(const std::vector<Recording>& recordings);
  void join_ends();
  void join(size_t a, size_t b);
  void choose_part();
  void choose_messages();
  void choose_of(const std::vector<const Event*>& sent, const std::vector<const Event*>& received);
  void write_steps();
  bool in_part(const Event& event) const { return event.at_ns >= from_ && event.at_ns < until_; }

  const uint64_t most_ns_;
  uint64_t from_ = UINT64_MAX, until_ = 0;
  Plan plan_;
  std::vector<const ContextRecording*> contexts_;  // of the players that are recorded
  std::vector<End> ends_;
  std::map<std::pair<uint32_t, uint32_t>, size_t> end_of_;  // by player and connection
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
      for (const auto& [id, connection] : context.connections) {
        end_of_[{player, id}] = ends_.size();
        ends_.push_back({.player = player, .connection = &connection, .sent = {}, .received = {}});
      }
      for (const Event& event : context.events) {
        End& end = ends_[end_of_[{player, event.connection}]];
        (event.kind == EventKind::kSent ? end.sent : end.received).push_back(&event);
        from_ = std::min(from_, event.at_ns);
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

// The beginning differs from the rest: memory is touched for the first time. A tenth of the
// messages and not of the time, since programs compute for long before the first one.
void Planner::choose_part() {
  plan_.recorded_ns = until_ - from_;
  if (plan_.recorded_ns <= most_ns_) return;
  std::vector<uint64_t> times;
  for (const ContextRecording* context : contexts_)
    for (const Event& event : context->events) times.push_back(event.at_ns);
  const auto tenth = times.begin() + static_cast<ptrdiff_t>(times.size() / 10);
  std::nth_element(times.begin(), tenth, times.end());
  from_ = std::min(*tenth, until_ - most_ns_);
  until_ = from_ + most_ns_;
}

void Planner::choose_of(const std::vector<const Event*>& sent,
                        const std::vector<const Event*>& received) {
  const size_t both = std::min(sent.size(), received.size());
  plan_.unmatched += sent.size() + received.size() - 2 * both;
  for (size_t i = 0; i < both; ++i) {
    if (!in_part(*sent[i])) continue;
    chosen_[sent[i]] = chosen_[received[i]] = bytes_to_send(*sent[i]);
  }
}

void Planner::choose_messages() {
  std::map<uint32_t, std::vector<const End*>> lines;
  for (const End& end : ends_)
    if (end.line != UINT32_MAX) lines[end.line].push_back(&end);
  for (const auto& [line, ends] : lines) {
    if (ends.size() == 2) {
      choose_of(ends[0]->sent, ends[1]->received);
      choose_of(ends[1]->sent, ends[0]->received);
      continue;
    }
    for (const auto* events : {&ends[0]->sent, &ends[0]->received})
      for (const Event* event : *events)
        if (in_part(*event)) chosen_[event] = bytes_to_send(*event);
  }
}

void Planner::write_steps() {
  for (uint32_t player = 0; player < contexts_.size(); ++player) {
    Step next;
    uint64_t waited = 0;
    bool after_view = false;
    const Event* before = nullptr;  // the last one with the peer that was not recorded
    for (const Event& event : contexts_[player]->events) {
      if (event.at_ns >= from_) {
        next.computed_ns += event.computed_ns;
        next.paused_ns += event.paused_ns;
        waited += event.polled_ns + event.slept_ns;
        // Copies out of a view. Of a message the replay makes the copies itself.
        if (after_view) next.computed_ns += event.moved_ns;
      }
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

Result<Plan> Planner::run(const std::vector<Recording>& recordings) {
  if (recordings.empty()) return invalid("name the FILE of a recording");
  SLUICE_RETURN_IF_ERROR(gather(recordings));
  join_ends();
  choose_part();
  plan_.span_ns = until_ - from_;
  choose_messages();
  write_steps();
  if (plan_.messages == 0) {
    return invalid(
        "no message was recorded at both of its ends; give the recordings of all processes of a "
        "run");
  }
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
