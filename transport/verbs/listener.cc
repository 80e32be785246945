// Who accepts: connections that are still greeting, and queue pairs that join one of them.
#include <algorithm>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/verbs/provider.h>

namespace sluice::verbs {
namespace {

// A peer has this long from its request to its HELLO.
constexpr Duration kGreetingLimit = std::chrono::seconds(5);
constexpr size_t kMostHalfOpen = 128;

Counter half_open_dropped("verbs.half_open_dropped");

}  // namespace

Result<std::unique_ptr<VerbsListener>> VerbsListener::open(VerbsProvider& owner, CmHub& hub,
                                                           SocketAddress address, int backlog,
                                                           const wire::Hello& ours) {
  std::unique_ptr<VerbsListener> made(new VerbsListener(owner, hub, ours));
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
  half_open_.clear();
  if (id_ != nullptr) (void)hub_.api().destroy_id(id_);
}

uint16_t VerbsListener::port() const { return hub_.api().source_port(id_); }

void VerbsListener::on_cm_event(const CmEvent& event) noexcept {
  if (event.type != RDMA_CM_EVENT_CONNECT_REQUEST) return;
  if (std::optional<LaneToken> token = Connection::lane_asked_of(event))
    return accept_lane(*token, event);
  if (half_open_.size() >= kMostHalfOpen) {
    half_open_dropped.add();
    half_open_.erase(half_open_.begin());
  }
  auto accepted = Connection::accept(hub_, *owner_, event, ours_);
  if (!accepted.ok()) {
    refused_.log(LogLevel::kWarning,
                 "an RDMA connection was refused: " + accepted.status().to_string());
    owner_->drop_unused_devices();
    return;
  }
  half_open_.push_back({std::move(accepted).value(), after(now(), kGreetingLimit)});
}

// For a connection that is still greeting; nobody else may add a queue pair.
void VerbsListener::accept_lane(const LaneToken& token, const CmEvent& request) {
  auto whole = std::find_if(half_open_.begin(), half_open_.end(), [&](const HalfOpen& half) {
    return half.connection->has_token(token);
  });
  if (whole == half_open_.end()) {
    refused_.log(LogLevel::kWarning,
                 "an RDMA queue pair was refused: it is for no connection that waits for one");
    return Connection::refuse(hub_, request);
  }
  Status joined = whole->connection->accept_lane(request);
  if (!joined.ok())
    refused_.log(LogLevel::kWarning, "an RDMA queue pair was refused: " + joined.to_string());
}

size_t VerbsListener::progress(Instant now) {
  size_t work = 0;
  for (HalfOpen& half : half_open_) work += half.connection->step(now);
  std::erase_if(half_open_, [&](const HalfOpen& half) {
    bool over = half.connection->state() == Connection::State::kEnded;
    bool late = half.expires <= now && half.connection->state() != Connection::State::kReady;
    if (over)
      lost_.log(LogLevel::kWarning, "lost the peer " + half.connection->peer_name() +
                                        " in its greeting: " + half.connection->why().to_string());
    if (late) half_open_dropped.add();
    return over || late;
  });
  return work;
}

std::unique_ptr<Connection> VerbsListener::take() {
  for (auto half = half_open_.begin(); half != half_open_.end(); ++half) {
    if (half->connection->state() != Connection::State::kReady) continue;
    std::unique_ptr<Connection> ready = std::move(half->connection);
    half_open_.erase(half);
    return ready;
  }
  return nullptr;
}

void VerbsListener::device_failed(const DeviceEvent& event, const Status& why) {
  for (HalfOpen& half : half_open_) {
    if (half.connection->concerned_by(event)) half.connection->fail(why);
  }
}

bool VerbsListener::arm() {
  bool quiet = true;
  for (HalfOpen& half : half_open_) quiet = half.connection->arm() && quiet;
  return quiet;
}

Instant VerbsListener::next_timeout() const {
  Instant next = kNever;
  for (const HalfOpen& half : half_open_) next = std::min(next, half.expires);
  return next;
}

}  // namespace sluice::verbs
