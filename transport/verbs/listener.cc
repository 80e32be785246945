// Who accepts: connections that are still greeting or wait to be taken, and queue pairs that join
// one of them.
#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/spi/path_choice.h>
#include <sluice/verbs/provider.h>

namespace sluice::verbs {
namespace {

// A peer has this long from its request to its HELLO.
constexpr Duration kGreetingLimit = std::chrono::seconds(5);

Counter half_open_dropped("verbs.half_open_dropped");

struct IdentityHash {
  size_t operator()(const PeerIdentity& identity) const { return identity.hash(); }
};

}  // namespace

Result<std::unique_ptr<VerbsListener>> VerbsListener::open(VerbsProvider& owner, CmHub& hub,
                                                           SocketAddress address, int backlog,
                                                           const wire::Hello& ours,
                                                           Duration patience) {
  std::unique_ptr<VerbsListener> made(new VerbsListener(owner, hub, ours, patience));
  auto* client = static_cast<CmClient*>(made.get());
  if (int e = hub.api().create_id(hub.channel(), &made->id_, client); e != 0)
    return cm_error("no listening id", e);
  if (int e = hub.api().bind_addr(made->id_, address.get()); e != 0)
    return cm_error("cannot listen at " + name_of(address.get()), e);
  if (int e = hub.api().listen(made->id_, backlog); e != 0)
    return cm_error("cannot listen at " + name_of(address.get()), e);
  owner.listeners_.push_back(made.get());
  owner.note_use();
  return made;
}

VerbsListener::~VerbsListener() { let_go(); }

void VerbsListener::let_go() {
  if (owner_ == nullptr) return;
  std::erase(owner_->listeners_, this);
  owner_->note_use();
  owner_ = nullptr;
  waiting_.clear();
  if (id_ == nullptr) return;
  id_->context = nullptr;  // if destroying fails, later events find no client
  (void)hub_.api().destroy_id(id_);
}

uint16_t VerbsListener::port() const { return deaf_ ? 0 : hub_.api().source_port(id_); }

void VerbsListener::on_cm_event(const CmEvent& event) noexcept {
  // Of a listener at one address; the identifier stays without a device, also when that is back.
  if (event.type == RDMA_CM_EVENT_DEVICE_REMOVAL && event.id == id_ && !deaf_) {
    deaf_ = true;
    log(LogLevel::kWarning, "the RDMA device of the listener at " +
                                name_of(&id_->route.addr.src_addr) +
                                " was removed, and nobody can connect there by RDMA; listen again "
                                "when the device is back");
  }
  if (event.type != RDMA_CM_EVENT_CONNECT_REQUEST) return;
  if (std::optional<LaneToken> token = Connection::lane_asked_of(event))
    return accept_lane(*token, event);
  if (waiting_.size() >= kMostWaiting) {
    half_open_dropped.add();
    if (!make_room(Connection::requester_of(event))) return Connection::refuse(hub_, event);
  }
  auto accepted = Connection::accept(hub_, *owner_, event, ours_);
  if (!accepted.ok()) {
    refused_.log(LogLevel::kWarning,
                 "an RDMA connection was refused: " + accepted.status().to_string());
    owner_->drop_unused_devices();
    return;
  }
  waiting_.push_back({std::move(accepted).value(), after(now(), kGreetingLimit)});
}

// Ends a connection of the machine that has most: its oldest that still greets, else its oldest
// that waits. False: all of them wait, and the newcomer is of that machine.
bool VerbsListener::make_room(const PeerIdentity& newcomer) {
  std::unordered_map<PeerIdentity, size_t, IdentityHash> held;
  for (const Waiting& each : waiting_) ++held[each.connection->peer_identity()];
  const auto most = std::max_element(
      held.begin(), held.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  auto oldest = [&](bool greeted) {
    return std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& each) {
      return (each.connection->state() == Connection::State::kReady) == greeted &&
             each.connection->peer_identity() == most->first;
    });
  };
  auto victim = oldest(false);
  if (victim == waiting_.end()) {
    if (most->first == newcomer) return false;
    victim = oldest(true);
  }
  waiting_.erase(victim);
  return true;
}

// For a connection that is still greeting; nobody else may add a queue pair.
void VerbsListener::accept_lane(const LaneToken& token, const CmEvent& request) {
  auto whole = std::find_if(waiting_.begin(), waiting_.end(),
                            [&](const Waiting& each) { return each.connection->has_token(token); });
  if (whole == waiting_.end()) {
    refused_.log(LogLevel::kWarning,
                 "an RDMA queue pair was refused: it is for no connection that waits for one");
    return Connection::refuse_lane(hub_, request);
  }
  Status joined = whole->connection->accept_lane(request);
  if (!joined.ok())
    refused_.log(LogLevel::kWarning, "an RDMA queue pair was refused: " + joined.to_string());
}

size_t VerbsListener::progress(Instant now) {
  size_t work = 0;
  // Nobody has looked for long: what a limit waits for may have come unseen.
  const bool missed = std::any_of(waiting_.begin(), waiting_.end(), [now](const Waiting& each) {
    return now - each.expires >= kLateLook;
  });
  for (Waiting& each : waiting_) {
    work += each.connection->step(now);
    if (missed) each.expires = std::max(each.expires, after(now, kLateLook));
    if (each.connection->state() == Connection::State::kReady && !each.greeted) {
      each.greeted = true;
      each.expires = after(now, patience_);
    }
  }
  std::erase_if(waiting_, [&](const Waiting& each) {
    const bool over = each.connection->state() == Connection::State::kEnded;
    const bool late = each.expires <= now;
    if (over)
      lost_.log(LogLevel::kWarning, "lost the peer " + each.connection->peer_name() +
                                        " in its greeting: " + each.connection->why().to_string());
    if (late) half_open_dropped.add();
    return over || late;
  });
  return work;
}

std::unique_ptr<Connection> VerbsListener::take_if(
    const std::function<bool(const Waiting&)>& wanted) {
  auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& each) {
    return each.connection->state() == Connection::State::kReady && wanted(each);
  });
  if (found == waiting_.end()) return nullptr;
  std::unique_ptr<Connection> connection = std::move(found->connection);
  waiting_.erase(found);
  return connection;
}

std::unique_ptr<Connection> VerbsListener::take() {
  return take_if([](const Waiting&) { return true; });
}

std::unique_ptr<Connection> VerbsListener::take_by(const wire::Uuid& token) {
  return take_if([&](const Waiting& each) { return each.connection->peer().token == token; });
}

void VerbsListener::device_failed(const DeviceEvent& event, const Status& why) {
  for (Waiting& each : waiting_) {
    if (each.connection->concerned_by(event)) each.connection->fail(why);
  }
}

bool VerbsListener::arm() {
  bool quiet = true;
  for (Waiting& each : waiting_) quiet = each.connection->arm() && quiet;
  return quiet;
}

Instant VerbsListener::next_timeout() const {
  Instant next = kNever;
  for (const Waiting& each : waiting_) next = std::min(next, each.expires);
  return next;
}

}  // namespace sluice::verbs
