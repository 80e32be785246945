// Connections of a listener that still greet, or that nobody has accepted yet. Bounded in time
// here, in number by their listener, which knows which may be ended.
#ifndef SLUICE_PROTO_HALF_OPEN_H_
#define SLUICE_PROTO_HALF_OPEN_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <sluice/base/clock.h>
#include <sluice/base/counters.h>
#include <sluice/base/log.h>

namespace sluice::proto {

// A peer has this long from its HELLO over SLP to that of the session.
inline constexpr Duration kGreetingLimit = std::chrono::seconds(5);
inline constexpr size_t kMostHalfOpen = 128;

// Connection: a DirectConnection with a State of kReady, kEnded, and others while it greets. Room
// is made among those with a place(), which is the peer's address.
template <typename Connection>
class HalfOpen {
 public:
  using Release = std::function<void(std::unique_ptr<Connection>)>;
  struct Entry {
    std::unique_ptr<Connection> connection;
    Instant expires;
    bool ready() const { return connection->state() == Connection::State::kReady; }
  };

  // `late` counts those that took too long; `release` takes those that have been stopped.
  HalfOpen(Counter& late, Release release) : late_(late), release_(std::move(release)) {}

  void add(std::unique_ptr<Connection> connection, Instant expires) {
    all_.push_back({std::move(connection), expires});
  }
  // The oldest that has greeted, or null.
  std::unique_ptr<Connection> take_ready() {
    auto ready = std::find_if(all_.begin(), all_.end(), [](const Entry& e) { return e.ready(); });
    return ready != all_.end() ? take(static_cast<size_t>(ready - all_.begin())) : nullptr;
  }
  std::unique_ptr<Connection> take(size_t i) {
    std::unique_ptr<Connection> connection = std::move(all_[i].connection);
    all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i));
    return connection;
  }
  void drop(size_t i) {
    std::unique_ptr<Connection> connection = take(i);
    connection->stop();
    release_(std::move(connection));
  }
  // Lets go of the oldest of the machine that has most of those that `may_go`, or of the oldest of
  // all if none has two: one that says HELLO and no more keeps out nobody but itself. False: of
  // none, since the newcomer's machine is that one.
  template <typename Address, typename MayGo>
  bool make_room(const Address& newcomer, MayGo may_go) {
    std::map<Address, size_t> held;
    for (const Entry& entry : all_) held[machine(entry)] += may_go(entry) ? 1 : 0;
    auto most = std::max_element(held.begin(), held.end(),
                                 [](const auto& a, const auto& b) { return a.second < b.second; });
    const bool greedy = most != held.end() && most->second > 1;
    if (greedy && most->first == machine_of(newcomer)) return false;
    auto oldest = std::find_if(all_.begin(), all_.end(), [&](const Entry& e) {
      return may_go(e) && (!greedy || machine(e) == most->first);
    });
    if (oldest == all_.end()) return false;
    drop(static_cast<size_t>(oldest - all_.begin()));
    return true;
  }
  void drop_all() {
    while (!all_.empty()) drop(all_.size() - 1);
  }
  // Drops those that have ended or are late; returns how many.
  size_t expire(Instant now) {
    size_t dropped = 0;
    for (size_t i = 0; i < all_.size();) {
      const Entry& entry = all_[i];
      bool over = entry.connection->state() == Connection::State::kEnded;
      bool late = !entry.ready() && entry.expires <= now;
      if (!over && !late) {
        ++i;
        continue;
      }
      if (over)
        lost_.log(LogLevel::kWarning,
                  "lost the peer " + entry.connection->peer_name() +
                      " in its greeting: " + entry.connection->failure().to_string());
      if (late) late_.add();
      drop(i);
      ++dropped;
    }
    return dropped;
  }
  Instant next_timeout() const {
    Instant next = kNever;
    for (const Entry& entry : all_) {
      if (!entry.ready()) next = std::min(next, entry.expires);
    }
    return next;
  }
  // Oldest first.
  const std::vector<Entry>& all() const { return all_; }

 private:
  static auto machine(const Entry& entry) { return machine_of(entry.connection->place().peer); }

  LogThrottle lost_;
  Counter& late_;
  Release release_;
  std::vector<Entry> all_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_HALF_OPEN_H_
