#include <sluice/proto/liveness.h>

#include <algorithm>
#include <chrono>

#include <sluice/base/counters.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

Counter peers_silent("session.peers_silent");
Counter idle_closed("session.idle_closed");

// A host that comes this long after the time it was told was not looking: silence of
// the peer in that time proves nothing.
constexpr Duration kLatePoll = std::chrono::milliseconds(500);

}  // namespace

void Liveness::start() {
  connection_.last_heard = connection_.now();
  if (connection_.options.idle_limit == Duration(0)) return;
  idle_due_ = after(connection_.last_heard, connection_.options.idle_limit);
  connection_.arm_timeout(idle_due_);
}

Instant Liveness::check_silence(Instant now, bool waiting) {
  return silence_due_ = waiting && !connection_.link_dead ? ask(now) : kNever;
}

Instant Liveness::ask(Instant now) {
  const SessionOptions& options = connection_.options;
  Instant& heard = connection_.last_heard;
  if (silence_due_ != kNever && now - silence_due_ > kLatePoll) {
    heard = std::max(heard, now - options.ping_interval);
    if (ping_out_) ping_sent_ = now;
  }
  if (ping_out_ && heard >= ping_sent_) ping_out_ = false;
  if (!ping_out_) {
    silent_ = false;
    if (now - heard < options.ping_interval) return heard + options.ping_interval;
    ping_out_ = true;
    ping_sent_ = now;
    ++pings_;
    control_.send(wire::Ping{.nonce = ++ping_nonce_});
    return now + options.silent_after;
  }
  Duration quiet = now - ping_sent_;
  if (quiet < options.silent_after) return ping_sent_ + options.silent_after;
  if (!silent_) {
    silent_ = news_ = true;
    peers_silent.add();
    connection_.activate();
  }
  const bool limited = options.silence_limit > Duration(0);
  if (limited && quiet >= options.silence_limit) {
    connection_.fail(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                            "the peer has not called progress for longer than the silence limit; "
                            "connect again"));
    return kNever;
  }
  return std::min(limited ? ping_sent_ + options.silence_limit : kNever,
                  now + options.silent_after);
}

Instant Liveness::check_idle(Instant now, bool in_use) {
  if (connection_.options.idle_limit == Duration(0) || connection_.link_dead) return kNever;
  if (now < idle_due_) return idle_due_;
  const EndpointCounters& counters = connection_.counters;
  const uint64_t uses =
      counters.messages_sent + counters.messages_received + counters.posted - pings_;
  const bool used = uses != std::exchange(uses_seen_, uses);
  if (!used && !in_use) {
    idle_closed.add();
    connection_.fail(Status(Code::kTimedOut, Scope::kEndpoint, kOrigin,
                            "nobody used the connection for ListenOptions::idle_limit; connect "
                            "again when there is work"));
    return kNever;
  }
  return idle_due_ = after(now, connection_.options.idle_limit);
}

void Liveness::on_ping(const wire::Ping& ping) {
  pings_ += ping.reply ? 1 : 2;  // with our answer
  if (!ping.reply) control_.send(wire::Ping{.nonce = ping.nonce, .reply = true});
}

}  // namespace sluice::proto
