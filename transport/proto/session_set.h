// The sessions of one backend in one context: which need progress, which timers run.
#ifndef SLUICE_PROTO_SESSION_SET_H_
#define SLUICE_PROTO_SESSION_SET_H_

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sluice/proto/session.h>
#include <sluice/spi/link_decorator.h>

namespace sluice::proto {

// Timers are a heap: those of others cost a session nothing when its own is due.
// Not final: tests put their own time behind exact_now() and from_now().
class SessionSet : public SessionHost {
 public:
  explicit SessionSet(Instant now) : now_(now) {}
  virtual ~SessionSet();

  void add(std::shared_ptr<Session> session);
  // The session of a new connection over `link`, with the decorator (or null) in between.
  std::shared_ptr<Session> open(AnyLink link, LinkDecorator* decorator, SessionParts parts);
  // Progresses the sessions that have work, fires timers, lets go of closed ones. An idle
  // session costs nothing here.
  size_t progress(Instant now) {
    now_ = now;
    if (!has_work() && now < next_timeout_) [[likely]]
      return 0;
    return run(now);
  }
  // True if a session waits for progress().
  bool has_work() const { return next_active_ < active_.size(); }
  // Cost: looks at every session.
  bool has_unsent() const;
  Instant next_timeout() const { return next_timeout_; }
  // Every endpoint ends; the completions come with the next progress().
  void abort_all(const Status& why);
  // Every endpoint ends at once and nothing is delivered: the backend is going away. A
  // program may keep handles longer: they find the endpoints closed.
  void detach_all();
  size_t size() const { return sessions_.size(); }

  void activate(Session& session) noexcept override;
  Instant now() const override { return now_; }
  Instant exact_now() const override { return sluice::now(); }
  Instant from_now(Duration d) const override { return sluice::from_now(d); }

 private:
  struct Timer {
    Instant when;
    Session* session;
  };
  size_t run(Instant now);
  void fire_timers(Instant now);
  void set_timer(Session& session, Instant when);
  void place_timer(size_t place, Timer timer) {
    timers_[place] = timer;
    timer.session->timer_place = place;
  }
  void move_timer(size_t place, Timer timer);
  void forget(Session* session);

  std::unordered_map<Session*, std::shared_ptr<Session>> sessions_;
  std::vector<Session*> active_;
  size_t next_active_ = 0;     // the next to run; those before it have run
  std::vector<Timer> timers_;  // a heap, the earliest first
  Instant now_;
  Instant next_timeout_ = kNever;  // of timers_
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_SESSION_SET_H_
