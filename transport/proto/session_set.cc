#include <sluice/proto/session_set.h>

#include <algorithm>
#include <variant>

namespace sluice::proto {
namespace {

// Of one turn: how long sessions are progressed before the rest waits for the next turn.
constexpr Duration kSessionsTime = std::chrono::milliseconds(1);

}  // namespace

SessionSet::~SessionSet() { detach_all(); }

void SessionSet::detach_all() {
  for (auto& [session, owner] : sessions_) session->detach();
  sessions_.clear();
  active_.clear();
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
  // Room for all of them at once: activate() and run() never allocate.
  if (active_.capacity() < sessions_.size() || running_.capacity() < sessions_.size()) {
    active_.reserve(2 * sessions_.size());
    running_.reserve(2 * sessions_.size());
  }
  activate(*key);
}

void SessionSet::activate(Session& session) noexcept {
  if (session.marked_active) return;
  session.marked_active = true;
  active_.push_back(&session);
}

size_t SessionSet::run(Instant now) {
  if (now >= next_timeout_) fire_timers(now);
  if (active_.empty()) return 0;
  size_t work = 0;
  running_.swap(active_);
  const Instant start = running_.size() > 1 ? exact_now() : Instant{};
  for (size_t i = 0; i < running_.size(); ++i) {
    if (i > 0 && exact_now() - start >= kSessionsTime) {
      // Their turn comes first the next time; they are still marked.
      active_.insert(active_.begin(), running_.begin() + static_cast<ptrdiff_t>(i), running_.end());
      break;
    }
    Session* session = running_[i];
    session->marked_active = false;
    work += session->progress(now);
    next_timeout_ = std::min(next_timeout_, session->next_timeout());
    // The map may have changed under a callback. A session that activated itself while it
    // ended is in active_ and goes with the next round.
    if (session->state() == EndpointState::kClosed && !session->has_work()) {
      if (!session->marked_active && !session->has_leftovers()) sessions_.erase(session);
    } else if (session->has_work()) {
      activate(*session);
    }
  }
  running_.clear();
  return work;
}

void SessionSet::fire_timers(Instant now) {
  next_timeout_ = kNever;
  for (auto& [session, owner] : sessions_) {
    if (session->next_timeout() <= now) session->handle_timeout(now);
    next_timeout_ = std::min(next_timeout_, session->next_timeout());
  }
}

bool SessionSet::has_unsent() const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [](const auto& entry) { return entry.first->has_unsent(); });
}

void SessionSet::abort_all(const Status& why) {
  for (auto& [session, owner] : sessions_) session->abort(why);
}

}  // namespace sluice::proto
