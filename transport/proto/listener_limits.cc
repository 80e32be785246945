#include <sluice/proto/listener_limits.h>

#include <limits>
#include <utility>

#include <sluice/base/counters.h>

namespace sluice::proto {
namespace {

constexpr const char* kOrigin = "proto/listener_limits";

Counter refused_full("listener.refused_full");
Counter refused_by_program("listener.refused_by_program");

uint64_t or_any(uint32_t limit) { return limit > 0 ? limit : std::numeric_limits<uint64_t>::max(); }

}  // namespace

ListenerLimits::ListenerLimits(ContextCore& context, const ListenOptions& options,
                               std::string address)
    : context_(context),
      most_(or_any(options.max_connections)),
      most_by_peer_(or_any(options.max_connections_by_address)),
      accept_(options.accept),
      address_(std::move(address)) {}

Result<ConnectionTicket> ListenerLimits::admit(const PeerIdentity& identity,
                                               const PeerIntroduction& who) {
  SLUICE_TRY(ConnectionTicket ticket, admit_further(identity));
  SLUICE_RETURN_IF_ERROR(ask(who));
  return ticket;
}

Result<ConnectionTicket> ListenerLimits::admit_further(const PeerIdentity& identity) {
  if (open_->all >= most_) {
    return refuse(Code::kTryAgain,
                  "peer " + identity.to_string() + ": all " + std::to_string(most_) +
                      " connections of the listener are open (ListenOptions::max_connections)",
                  refused_full.name());
  }
  auto found = open_->by_peer.find(identity);
  if (found != open_->by_peer.end() && found->second >= most_by_peer_) {
    return refuse(Code::kTryAgain,
                  "peer " + identity.to_string() + " has " + std::to_string(found->second) +
                      " connections, as many as ListenOptions::max_connections_by_address says",
                  refused_full.name());
  }
  std::shared_ptr<PeerAccount> account = context_.peer_accounts().open(identity);
  // Counts and logs its refusal itself.
  SLUICE_RETURN_IF_ERROR(account->charge(PeerResource::kConnections));
  PeerCharge charge(std::move(account), PeerResource::kConnections);
  return ConnectionTicket(open_, identity, std::move(charge));
}

Status ListenerLimits::ask(const PeerIntroduction& who) {
  if (!accept_ || accept_(who)) return Status();
  return refuse(Code::kAccessDenied,
                "peer " + std::string(who.address) + ": ListenOptions::accept said no",
                refused_by_program.name());
}

bool ListenerLimits::let_in(Session& session, PeerIntroduction who) {
  const EndpointInfo info = session.info();
  who.path = info.path.path;
  who.address = info.peer;
  who.incarnation = info.peer_incarnation;
  who.said_process_id = info.peer_pid;
  session.hold({});  // of a listener below us: it is counted once
  Result<ConnectionTicket> ticket = admit(session.peer_account()->identity(), who);
  if (ticket.ok()) {
    session.hold(std::move(ticket).value());
    return true;
  }
  turn_away(session, ticket.status());
  return false;
}

void ListenerLimits::turn_away(Session& session, const Status& why) {
  Instant& oldest = farewells_[next_farewell_];
  const bool patient = context_.now() - oldest >= kFarewellTime;
  if (patient) {
    oldest = context_.now();
    next_farewell_ = (next_farewell_ + 1) % farewells_.size();
  }
  session.turn_away(why, patient);
}

Status ListenerLimits::refuse(Code code, const std::string& text, const char* counter_name) {
  (code == Code::kTryAgain ? refused_full : refused_by_program).add();
  log_.log(LogLevel::kWarning, address_ + " refused " + text +
                                   " (further refusals are counted in " + counter_name + ")");
  return Status(code, Scope::kEndpoint, kOrigin, text);
}

}  // namespace sluice::proto
