#include <sluice/proto/session_set.h>

#include <algorithm>
#include <variant>

#include <sluice/base/counters.h>

namespace sluice::proto {
namespace {

// Timers that were compared with another one, or fired.
Counter timers_looked_at("session.timers_looked_at");

// Of one turn: how long sessions are progressed, and how long their timers are looked after, before
// the rest waits for the next turn.
constexpr Duration kSessionsTime = std::chrono::milliseconds(1);

}  // namespace

SessionSet::~SessionSet() { detach_all(); }

void SessionSet::detach_all() {
  for (auto& [session, owner] : sessions_) session->detach();
  sessions_.clear();
  active_.clear();
  next_active_ = 0;
  timers_.clear();
  next_timeout_ = kNever;
}

std::shared_ptr<Session> SessionSet::open(AnyLink link, LinkDecorator* decorator,
                                          SessionParts parts) {
  if (decorator != nullptr) {
    parts.link =
        std::visit([&](auto& kind) { return AnyLink(decorator->decorate(std::move(kind))); }, link);
  } else {
    parts.link = std::move(link);
  }
  parts.host = this;
  auto session = std::make_shared<Session>(std::move(parts));
  add(session);
  return session;
}

void SessionSet::add(std::shared_ptr<Session> session) {
  Session* key = session.get();
  sessions_[key] = std::move(session);
  // Room for all of them, and for as many that have run already: activate() never allocates.
  if (active_.capacity() < 2 * sessions_.size()) {
    active_.reserve(4 * sessions_.size());
    timers_.reserve(2 * sessions_.size());
  }
  activate(*key);
}

void SessionSet::activate(Session& session) noexcept {
  if (session.marked_active) return;
  session.marked_active = true;
  active_.push_back(&session);
}

// A completion may call Context::progress(): the nested run goes on with the sessions that this one
// has not run yet.
size_t SessionSet::run(Instant now) {
  if (now >= next_timeout_) fire_timers(now);
  active_.erase(active_.begin(), active_.begin() + static_cast<ptrdiff_t>(next_active_));
  next_active_ = 0;
  if (active_.empty()) return 0;
  size_t work = 0, turns = active_.size();
  const Instant start = turns > 1 ? exact_now() : Instant{};
  for (bool first = true; turns > 0 && next_active_ < active_.size(); --turns, first = false) {
    // The rest run first in the next turn.
    if (!first && exact_now() - start >= kSessionsTime) break;
    Session* session = active_[next_active_++];
    session->marked_active = false;
    work += session->progress(now);
    if (session->next_timeout() != session->timer_due) set_timer(*session, session->next_timeout());
    // The map may have changed under a callback. A session that activated itself while it
    // ended is in active_ and goes with the next round. A session that is being called is kept.
    if (session->state() == EndpointState::kClosed && !session->has_work()) {
      if (session->in_call()) activate(*session);
      if (!session->marked_active && !session->has_leftovers()) forget(session);
    } else if (session->has_work()) {
      activate(*session);
    }
  }
  return work;
}

void SessionSet::fire_timers(Instant now) {
  const Instant start = exact_now();
  while (!timers_.empty() && timers_[0].when <= now) {
    Session* session = timers_[0].session;
    session->handle_timeout(now);
    timers_looked_at.add();
    // Whoever wants to be called again at once is called in the next turn.
    set_timer(*session, std::max(session->next_timeout(), now + Duration(1)));
    if (exact_now() - start >= kSessionsTime) break;
  }
}

void SessionSet::set_timer(Session& session, Instant when) {
  if (session.timer_due == kNever && when != kNever) {
    timers_.push_back({});
    move_timer(timers_.size() - 1, {when, &session});
  } else if (when != kNever) {
    move_timer(session.timer_place, {when, &session});
  } else if (session.timer_due != kNever) {
    const Timer last = timers_.back();
    timers_.pop_back();
    if (last.session != &session) move_timer(session.timer_place, last);
  }
  session.timer_due = when;
  next_timeout_ = timers_.empty() ? kNever : timers_[0].when;
}

// Puts a timer into the place of another, or of none, and from there to where it belongs.
void SessionSet::move_timer(size_t place, Timer timer) {
  uint64_t steps = 1;
  for (; place > 0 && timer.when < timers_[(place - 1) / 2].when; place = (place - 1) / 2, ++steps)
    place_timer(place, timers_[(place - 1) / 2]);
  for (size_t child = 2 * place + 1; child < timers_.size(); child = 2 * place + 1, ++steps) {
    if (child + 1 < timers_.size() && timers_[child + 1].when < timers_[child].when) ++child;
    if (timers_[child].when >= timer.when) break;
    place_timer(place, timers_[child]);
    place = child;
  }
  place_timer(place, timer);
  timers_looked_at.add(steps);
}

void SessionSet::forget(Session* session) {
  set_timer(*session, kNever);
  sessions_.erase(session);
}

bool SessionSet::has_unsent() const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [](const auto& entry) { return entry.first->has_unsent(); });
}

void SessionSet::abort_all(const Status& why) {
  for (auto& [session, owner] : sessions_) session->abort(why);
}

}  // namespace sluice::proto
