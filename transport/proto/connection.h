// What the parts of a session share: the link, the time, the options, the counters, and whether the
// connection goes on. It decides nothing.
#ifndef SLUICE_PROTO_CONNECTION_H_
#define SLUICE_PROTO_CONNECTION_H_

#include <cstdint>
#include <memory>

#include <sluice/allocator/arena.h>
#include <sluice/api/endpoint.h>
#include <sluice/proto/session_options.h>
#include <sluice/runtime/peer_account.h>
#include <sluice/runtime/population.h>
#include <sluice/spi/link.h>

namespace sluice::proto {

class Session;

// Whoever drives sessions (SessionSet, the simulator).
class SessionHost {
 public:
  // The session has something for progress(). May be called again before that.
  virtual void activate(Session& session) noexcept = 0;
  // The time as of the host's last progress.
  virtual Instant now() const = 0;
  // The time itself: a host that was not progressed for long has an old now().
  virtual Instant exact_now() const { return now(); }
  // A deadline, counted from the time itself.
  virtual Instant from_now(Duration d) const { return after(exact_now(), d); }

 protected:
  ~SessionHost() = default;
};

// Ends the connection; whichever part finds that it must asks for that.
class ConnectionEnd {
 public:
  // The connection is of no use any more; what is outstanding ends at the next progress.
  virtual void fail_connection(const Status& why) = 0;

 protected:
  ~ConnectionEnd() = default;
};

// Thread: the context's. What it refers to outlives it.
struct Connection {
  Link& link;
  SessionHost& host;
  Session& session;
  ConnectionEnd& end;
  const LinkTraits traits;
  const std::shared_ptr<Arena> arena;
  // Makes large memory in turns; null: it is made in one piece.
  Population* const population;
  // Who is charged for what the peer makes us keep.
  const std::shared_ptr<PeerAccount> account;
  SessionOptions options;
  const uint64_t peer_features = 0;  // of its HELLO

  EndpointState state = EndpointState::kConnected;
  bool link_dead = false;  // the connection has failed: the link takes nothing more
  bool finished = false;   // nothing is outstanding any more, and the link is closed
  bool draining = false;   // kClosing: what was posted before still goes out
  uint32_t depth = 0;      // calls from the host or the link that are running
  Status close_reason;
  Instant last_heard{};           // of the peer
  Instant next_timeout = kNever;  // when handle_timeout() is due
  EndpointCounters counters{};

  bool peer_can(uint64_t feature) const { return (peer_features & feature) != 0; }
  bool over() const { return link_dead || finished; }
  Instant now() const { return host.now(); }
  Instant exact_now() const { return host.exact_now(); }
  Instant from_now(Duration d) const { return host.from_now(d); }
  // progress() is to be called.
  void activate() noexcept { host.activate(session); }
  // handle_timeout() is to be called then, at the latest.
  void arm_timeout(Instant when) {
    if (when >= next_timeout) return;
    next_timeout = when;
    activate();
  }
  void fail(const Status& why) { end.fail_connection(why); }
  // Errors: kWrongState.
  Status check_connected() const {
    return state == EndpointState::kConnected ? Status() : closed_status();
  }

 private:
  Status closed_status() const;
};

// While the host or the link calls.
struct RunningCall {
  explicit RunningCall(Connection& c) : connection(c) { ++connection.depth; }
  ~RunningCall() { --connection.depth; }
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;
  Connection& connection;
};

// Counts payload bytes that went by a way of this cost.
inline void count_copies(EndpointCounters& counters, uint64_t bytes, const CopyCost& cost) {
  counters.copied_bytes += bytes * cost.user;
  counters.kernel_copied_bytes += bytes * cost.kernel;
}

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_CONNECTION_H_
