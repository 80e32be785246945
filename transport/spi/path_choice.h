// How a path takes part in sluice://: two processes have greeted over TCP and know each other's
// HELLO; the caller meets the listener by the path, tells it by TCP, and the listener pairs the two
// by their token.
#ifndef SLUICE_SPI_PATH_CHOICE_H_
#define SLUICE_SPI_PATH_CHOICE_H_

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include <sluice/api/address.h>
#include <sluice/api/context.h>
#include <sluice/api/receipt.h>
#include <sluice/api/task.h>
#include <sluice/base/counters.h>
#include <sluice/base/result.h>
#include <sluice/wire/messages.h>

namespace sluice {

namespace proto {
struct SessionOptions;
}

// A peer that was met by a path has this long to say so on its TCP connection.
inline constexpr Duration kPairingLimit = std::chrono::seconds(5);
// A context that looks so long after a limit was not looking: what it waits for may lie in a
// socket. Then the limit is so much later.
inline constexpr Duration kLateLook = std::chrono::milliseconds(500);
// Does that for `all`, whose limits are `expires`, the earliest first.
template <typename Entries>
void put_off_missed_limits(Entries& all, Instant now) {
  if (all.empty() || now - all.front().expires < kLateLook) return;
  for (auto& entry : all) entry.expires = std::max(entry.expires, now + kLateLook);
}

// One connect() of sluice://, as a path sees it.
struct PathAttempt {
  const ConnectOptions& options;
  const proto::SessionOptions& session;
  Instant deadline;         // of connect()
  int fd;                   // the TCP connection, for its two addresses alone
  const std::string& host;  // the peer's, as TCP reached it
  const wire::Hello& ours;
  const wire::Hello& peer;
  std::string why_not;  // of the paths that were tried before: "not shm: ..."

  // What was tried and failed leaves at least half of the time to the next path.
  Instant limit(Instant now) const {
    return std::min(deadline, after(now, std::max<Duration>(options.timeout / 2,
                                                            std::chrono::milliseconds(1))));
  }
};

// A peer that was met by a path, and is no endpoint yet.
class MetPeer {
 public:
  virtual ~MetPeer() = default;
  // What the kernel says of it, where it does.
  virtual void introduce(PeerIntroduction&) const {}
  // The peer needs no word by TCP: it has met us already.
  virtual bool is_settled() const { return false; }
  // Once. Errors: kUnsupported (it lacks what `require` asks for).
  virtual Result<std::shared_ptr<EndpointCore>> make_endpoint(const Requirements& require,
                                                              const proto::SessionOptions& session,
                                                              std::string reason) = 0;
};

// The listener's side, beside one listener of sluice://. Thread: the context's.
class PathListener {
 public:
  virtual ~PathListener() = default;
  // Says in the HELLO of a new greeting, over the TCP connection `fd`, where it listens.
  virtual void announce(int fd, wire::Hello& ours) = 0;
  // The peer that was met with this token, or null.
  virtual std::unique_ptr<MetPeer> take_by(const wire::Uuid&) { return nullptr; }
  // Null; or where peers need no pairing, the next of them.
  virtual std::shared_ptr<EndpointCore> accept() { return nullptr; }
  virtual bool pairs() const { return true; }
};

// One path in one context. Thread: the context's.
class PathChoice {
 public:
  virtual ~PathChoice() = default;
  // Meets the peer, which proves both directions; takes until attempt.limit() at most. Errors:
  // kUnsupported: not this path, for the reason in the detail (empty: say nothing); others end the
  // connect(). Requires: `attempt` outlives the task.
  virtual Task<Result<std::unique_ptr<MetPeer>>> meet(const PathAttempt& attempt) = 0;
  // Why, of a path that was taken: at the caller, at the listener.
  virtual std::string_view why_met() const = 0;
  virtual std::string_view why_paired() const = 0;
  // A listener with these options serves this path; else `why_not` says why, if there is something
  // to say.
  virtual bool serves(const ListenOptions& options, std::string& why_not) const = 0;
  // Null, with a line in the log, where it cannot be.
  virtual Result<std::unique_ptr<PathListener>> listen(const Address& address,
                                                       const ListenOptions& options) = 0;
  // What rules this path out, from both HELLOs alone; empty: nothing, or it is not known.
  virtual std::string obstacle(const wire::Hello&, const wire::Hello&) const { return ""; }
  virtual Counter& chosen() = 0;  // counts
};

}  // namespace sluice

#endif  // SLUICE_SPI_PATH_CHOICE_H_
