// What every listener asks before it lets somebody in: its own limits of connections, those of the
// peer's account, and the program. Knows no path.
#ifndef SLUICE_PROTO_LISTENER_LIMITS_H_
#define SLUICE_PROTO_LISTENER_LIMITS_H_

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <sluice/base/log.h>
#include <sluice/proto/connection_ticket.h>
#include <sluice/proto/session.h>
#include <sluice/runtime/context_core.h>

namespace sluice::proto {

// Thread: the context's. Requires: the context outlives it; tickets may outlive both.
class ListenerLimits {
 public:
  // `address`: as the program listens, for texts.
  ListenerLimits(ContextCore& context, const ListenOptions& options, std::string address);
  // Once the port is known, if the system has chosen it.
  void set_address(std::string address) { address_ = std::move(address); }

  // Before the peer is answered. Errors: kTryAgain (a limit: the text names it), kAccessDenied
  // (ListenOptions::accept said no).
  Result<ConnectionTicket> admit(const PeerIdentity& identity, const PeerIntroduction& who);
  // A further connection of a peer that was admitted: as one more of it, but the program is not
  // asked. Errors: kTryAgain.
  Result<ConnectionTicket> admit_further(const PeerIdentity& identity);
  // The hook alone, about a path of a connection that has its ticket. Errors: kAccessDenied.
  Status ask(const PeerIntroduction& who);
  // Where the handshake is over before we are asked: admits the peer whose account a new session
  // has. False: it was told why, and the session is over. `who`: credentials, where the path has
  // them; the session knows the rest.
  bool let_in(Session& session, PeerIntroduction who = {});
  // Tells a connected peer that it is not taken, and why. The words reach the first few in a second
  // on every path; of a flood nothing is kept.
  void turn_away(Session& session, const Status& why);

  uint64_t open() const { return open_->all; }

 private:
  Status refuse(Code code, const std::string& text, const char* counter_name);

  ContextCore& context_;
  uint64_t most_;
  uint64_t most_by_peer_;
  std::function<bool(const PeerIntroduction&)> accept_;
  std::string address_;
  std::shared_ptr<OpenConnections> open_ = std::make_shared<OpenConnections>();
  LogThrottle log_;
  // When the last ones were given time to read why they are not taken: so many sessions linger at
  // most.
  std::array<Instant, 8> farewells_{};
  size_t next_farewell_ = 0;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_LISTENER_LIMITS_H_
