// How two processes meet on a TCP connection: HELLO both ways, then the client says
// which path it chose. Used by tcp:// and, for every path, by sluice://. Knows no
// sessions.
//
//   client                          server
//   HELLO            ->
//                    <-             HELLO            (or BYE{code}, closed)
//   DONE{id = path}  ->                              (or BYE{code}, closed)
//
// Then the connection is a data endpoint (Path::kTcp) or watches over another path. If it is a
// further stream of one, the server says at last that it has taken it:
//
//                    <-             DONE{id = path}  (or BYE{code}, closed)
#ifndef SLUICE_TCP_GREETING_H_
#define SLUICE_TCP_GREETING_H_

#include <cstdint>
#include <span>
#include <string>

#include <sluice/api/address.h>
#include <sluice/api/receipt.h>
#include <sluice/api/task.h>
#include <sluice/base/result.h>
#include <sluice/proto/connection_ticket.h>
#include <sluice/runtime/awaits.h>
#include <sluice/runtime/context_core.h>
#include <sluice/tcp/socket.h>
#include <sluice/wire/messages.h>

namespace sluice::tcp {

// A connection whose ends know each other. Owns the descriptor, which is non-blocking and
// watched by nobody; no byte beyond the greeting has been read from it.
class Greeting {
 public:
  Greeting() = default;
  Greeting(Descriptor fd, const wire::Hello& ours, const wire::Hello& peer, uint16_t version)
      : ours(ours), peer(peer), version(version), fd_(std::move(fd)) {}

  wire::Hello ours;                // as sent
  wire::Hello peer;                // as received
  uint16_t version = 0;            // the one both speak
  Path chosen = Path::kNone;       // kNone on a client that has not chosen yet
  proto::ConnectionTicket ticket;  // of the listener

  int fd() const { return fd_.value(); }
  // The caller owns the descriptor from now on.
  int release_fd() { return fd_.release(); }
  Descriptor take_fd() { return std::move(fd_); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  std::string local_name() const { return "tcp://" + local_address(fd_.value()).to_string(); }
  PeerIdentity peer_identity() const {
    return PeerIdentity::of_address(*peer_address(fd_.value()).get());
  }
  std::string peer_name() const { return "tcp://" + peer_address(fd_.value()).to_string(); }

 private:
  Descriptor fd_;
};

// HELLO as one may be told over that connection: to a peer of another machine without our identity.
wire::Hello hello_towards(int fd, wire::Hello ours);

// Client: connects to the first address of the name that answers, sends `ours`, waits
// for the peer's HELLO. Blocks: until then or the deadline; progresses the context.
// Errors: kUnreachable (name, refused, reset), kTimedOut, kUnsupported (versions),
// kCorrupt (the peer does not speak sluice), or the code the peer refuses us with.
Result<Greeting> greet(ContextCore& context, const Address& address, const wire::Hello& ours,
                       Instant deadline);
// The same without blocking. kCancelled: the awaits were ended. Requires: `awaits` and `address`
// outlive the task.
Task<Result<Greeting>> start_greet(Awaits& awaits, const Address& address, wire::Hello ours,
                                   Instant deadline);
// Client: a further stream of a connection, by the token in `ours`. Done when the server has taken
// it. `asked` becomes true when it may have: from then on the deadline does not count. It outlives
// the task. Errors, beside those of greet(): kCorrupt.
Task<Result<Greeting>> start_join(Awaits& awaits, const Address& address, wire::Hello ours,
                                  Instant deadline, bool& asked);
// Server: it has. False: the peer is gone.
bool confirm_join(const Greeting& greeting);
// Client: tells the peer. Errors: kUnreachable.
Status choose(Greeting& greeting, Path path);

// Says why, then closes. Best effort, and without waiting: of what came at most 1 MiB is dropped.
void refuse(Descriptor fd, Code code);

// One look at what has arrived of a greeting's next message, without taking a byte
// that is not its own: nothing is kept between looks.
struct Glimpse {
  enum class State : uint8_t { kIncomplete, kComplete, kEnded };
  State state = State::kIncomplete;
  Status why;                         // kEnded
  wire::Header common;                // kComplete
  std::span<const std::byte> header;  // kComplete: in the caller's scratch
};
// Longest message of a greeting: HELLO with TLVs of later versions.
inline constexpr size_t kMaxGreetingBytes = wire::kMaxHeaderBytes;
Glimpse take_message(int fd, std::span<std::byte> scratch);
// The status of a peer that closed inside a message.
Status cut_off();

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_GREETING_H_
