// The connections of one provider: those that endpoints hold, and those that a program has left
// and whose last messages still go out. Knows no path.
#ifndef SLUICE_PROTO_CONNECTION_SET_H_
#define SLUICE_PROTO_CONNECTION_SET_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <sluice/base/clock.h>
#include <sluice/proto/session_set.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::proto {

// Link: has closed(), true once it has given its connection away.
template <typename Link, typename Connection>
class ConnectionSet {
 public:
  struct Held {
    std::shared_ptr<Session> session;
    Link* link;  // owned by the session
  };
  struct Leaving {
    std::unique_ptr<Connection> connection;
    Instant expires;
  };

  explicit ConnectionSet(Instant now) : sessions_(now) {}

  // The endpoint of a new connection, with the decorator (or null) in between.
  std::shared_ptr<EndpointCore> open(std::unique_ptr<Link> link, LinkDecorator* decorator,
                                     SessionParts parts) {
    Link* raw = link.get();
    std::shared_ptr<Session> session = sessions_.open(std::move(link), decorator, std::move(parts));
    held_.push_back({session, raw});
    return session;
  }
  const std::vector<Held>& held() const { return held_; }
  SessionSet& sessions() { return sessions_; }
  const SessionSet& sessions() const { return sessions_; }

  // What was posted on it still goes out, until `expires`.
  void linger(std::unique_ptr<Connection> connection, Instant expires) {
    leaving_.push_back({std::move(connection), expires});
  }
  const std::vector<Leaving>& leaving() const { return leaving_; }
  // Ends those that are `over`, or late; returns how many.
  template <typename Over>
  size_t see_off(Instant now, Over over) {
    return std::erase_if(leaving_, [&](Leaving& leaving) {
      return over(*leaving.connection) || leaving.expires <= now;
    });
  }
  // Forgets those whose endpoint is closed and has nothing more to say.
  void forget_closed() {
    std::erase_if(
        held_, [](const Held& held) { return held.link->closed() && !held.session->has_work(); });
  }

  bool in_use() const { return !held_.empty() || !leaving_.empty() || sessions_.size() > 0; }
  Instant next_timeout() const {
    Instant next = sessions_.next_timeout();
    for (const Leaving& leaving : leaving_) next = std::min(next, leaving.expires);
    return next;
  }
  // The provider goes away: every endpoint ends, and its connection lingers.
  void detach_all() {
    sessions_.detach_all();
    held_.clear();
  }
  void drop_leaving() { leaving_.clear(); }

 private:
  std::vector<Held> held_;
  std::vector<Leaving> leaving_;
  SessionSet sessions_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_CONNECTION_SET_H_
