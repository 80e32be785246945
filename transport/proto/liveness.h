// Whether the peer is there and the connection is used: pings, silence, the idle limit.
#ifndef SLUICE_PROTO_LIVENESS_H_
#define SLUICE_PROTO_LIVENESS_H_

#include <cstdint>
#include <utility>

#include <sluice/proto/connection.h>
#include <sluice/proto/control_queue.h>

namespace sluice::proto {

// Thread: the context's. Blocks: never.
class Liveness {
 public:
  Liveness(Connection& connection, ControlQueue& control)
      : connection_(connection), control_(control) {}

  // The connection begins.
  void start();
  // Asks a peer that says nothing whether it makes progress, while something is `waiting` for it.
  // Returns when to look again.
  Instant check_silence(Instant now, bool waiting);
  // Closes a connection that neither end has used since the last look and where nothing is
  // `in_use`. Returns when to look again.
  Instant check_idle(Instant now, bool in_use);
  void on_ping(const wire::Ping& ping);

  bool peer_silent() const {
    // Heard since, and the timer not yet there: not silent.
    return silent_ && connection_.last_heard < ping_sent_;
  }
  // Once for each time that the peer fell silent: whoever waits has a look at peer_silent().
  bool take_news() { return std::exchange(news_, false); }

 private:
  Instant ask(Instant now);

  Connection& connection_;
  ControlQueue& control_;
  Instant silence_due_ = kNever;  // when check_silence() asked to be called; kNever: not at all
  Instant ping_sent_{};
  uint64_t ping_nonce_ = 0;
  bool ping_out_ = false;
  bool silent_ = false;
  bool news_ = false;
  Instant idle_due_ = kNever;  // when check_idle() looks again
  uint64_t uses_seen_ = 0;     // messages and operations when it last looked
  uint64_t pings_ = 0;         // of either end: they are no use
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_LIVENESS_H_
