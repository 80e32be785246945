#include <sluice/verbs/connection.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/base/log.h>
#include <sluice/base/settings.h>
#include <sluice/runtime/identity.h>
#include <sluice/spi/eager.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/connection";

Counter connects("verbs.connects");
Counter accepts("verbs.accepts");
Counter refused("verbs.refused");
Counter lanes_joined("verbs.lanes_joined");
Counter lanes_refused("verbs.lanes_refused");

Status ended(Code code, const std::string& why, int error = 0) {
  return Status(code, Scope::kEndpoint, kOrigin, why, error);
}

}  // namespace

// What a REQ and a REP carry: enough to know that the other end is one of us, and what is
// to become of the queue pair. What an end of version 1.0 does not send is 0.
struct Connection::PrivateData {
  uint32_t magic = wire::kMagic;
  uint16_t min_version = wire::kMinVersion;
  uint16_t max_version = wire::kMaxVersion;
  uint8_t mtu = IBV_MTU_1024;  // of the sender's port; ibv_mtu
  uint8_t stripes = 0;         // REQ: asked for; REP: granted
  uint8_t lane = 0;            // 0: a connection; else its further queue pair of this number
  uint8_t zeros[1] = {};
  uint32_t proof_key = 0;  // iWARP: ProofPlace
  LaneToken token{};
  uint64_t proof_address = 0;

  // Without the stripes and what follows.
  static constexpr size_t kLeast = 16;
  // With what the queue pair has to say of itself.
  static PrivateData of(const QueuePair& queue);
  ProofPlace proof() const { return {.address = proof_address, .key = proof_key}; }
  // What the peer sent, or an error.
  static Result<PrivateData> decode(const CmEvent& event);
};

Connection::PrivateData Connection::PrivateData::of(const QueuePair& queue) {
  PrivateData data;
  data.mtu = queue.port_mtu();
  ProofPlace proof = queue.proof_place();
  data.proof_key = proof.key;
  data.proof_address = proof.address;
  return data;
}

Result<Connection::PrivateData> Connection::PrivateData::decode(const CmEvent& event) {
  PrivateData theirs;
  if (event.private_bytes < kLeast) return ended(Code::kCorrupt, "a peer that is not sluice");
  std::memcpy(&theirs, event.private_data.data(), std::min(event.private_bytes, sizeof(theirs)));
  if (theirs.magic != wire::kMagic) return ended(Code::kCorrupt, "a peer that is not sluice");
  if (theirs.mtu < IBV_MTU_256 || theirs.mtu > IBV_MTU_4096) {
    return ended(Code::kCorrupt, "a peer whose port has MTU code " + std::to_string(theirs.mtu));
  }
  return theirs;
}

uint32_t stripes_wanted() {
  const uint64_t wanted = setting_number("SLUICE_RDMA_QUEUE_PAIRS").value_or(1);
  return static_cast<uint32_t>(std::min<uint64_t>(wanted, kMostStripes));
}

Result<std::unique_ptr<Connection>> Connection::connect(CmHub& hub, DeviceTable& devices,
                                                        SocketAddress address,
                                                        const wire::Hello& ours, Instant deadline) {
  std::unique_ptr<Connection> made(new Connection(hub, devices, ours, true));
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now()).count();
  made->timeout_ms_ = static_cast<int>(std::clamp<int64_t>(left, 1, 60000));
  made->stripes_ = stripes_wanted();
  SLUICE_RETURN_IF_ERROR(made->resolve_to(address));
  connects.add();
  return made;
}

Status Connection::resolve_to(const SocketAddress& address) {
  address_ = address;
  if (int e = hub_.api().create_id(hub_.channel(), &id_, static_cast<CmClient*>(this)); e != 0)
    return cm_error("no connection id", e);
  if (int e = hub_.api().resolve_addr(id_, address_.get(), timeout_ms_); e != 0)
    return cm_error("no RDMA path to " + name_of(address_.get()), e);
  return Status();
}

Result<std::unique_ptr<Connection>> Connection::accept(CmHub& hub, DeviceTable& devices,
                                                       const CmEvent& request,
                                                       const wire::Hello& ours) {
  std::unique_ptr<Connection> made(new Connection(hub, devices, ours, false));
  made->id_ = request.id;
  made->id_->context = static_cast<CmClient*>(made.get());
  Status answered = made->respond(request);
  if (!answered.ok()) {
    refused.add();
    (void)hub.api().reject(made->id_, nullptr, 0);
    return answered;
  }
  accepts.add();
  return made;
}

Connection::~Connection() {
  lanes_.clear();
  if (queue_ != nullptr) queue_->stop();
  disconnect();
  queue_.reset();
  if (id_ == nullptr) return;
  id_->context = nullptr;  // if destroying fails, later events find no client
  (void)hub_.api().destroy_id(id_);
}

void Connection::disconnect() {
  bool was_up = state_ == State::kJoining || state_ == State::kGreeting || state_ == State::kReady;
  if (id_ != nullptr && was_up && !peer_gone_) (void)hub_.api().disconnect(id_);
  if (was_up) state_ = State::kEnded;
}

std::string Connection::local_name() const {
  return id_ != nullptr ? name_of(&id_->route.addr.src_addr) : "rdma:";
}
PeerIdentity Connection::peer_identity() const {
  const sockaddr nobody{};
  return PeerIdentity::of_address(id_ != nullptr ? id_->route.addr.dst_addr : nobody);
}

PeerIdentity Connection::requester_of(const CmEvent& request) {
  return PeerIdentity::of_address(request.id->route.addr.dst_addr);
}

std::string Connection::peer_name() const {
  return id_ != nullptr ? name_of(&id_->route.addr.dst_addr) : "rdma:";
}

void Connection::fail(Status why) {
  if (state_ == State::kEnded) return;
  why_ = std::move(why);
  bool met = state_ == State::kJoining || state_ == State::kGreeting;
  if (met && id_ != nullptr) (void)hub_.api().disconnect(id_);
  state_ = State::kEnded;
}

Status Connection::make_queue() {
  if (id_->verbs == nullptr || id_->verbs->device == nullptr)
    return ended(Code::kUnreachable, "no RDMA device reaches the peer");
  SLUICE_TRY(Device * device, devices_.device(id_->verbs->device->name));
  if (whole_ != nullptr &&
      (device != &whole_->queue_->device() || id_->port_num != whole_->id_->port_num)) {
    return ended(Code::kUnreachable,
                 "the queue pairs of one connection would lie on different RDMA ports");
  }
  if (device->limits().iwarp) stripes_ = 1;
  SLUICE_TRY(queue_,
             QueuePair::create(*device, id_->port_num,
                               whole_ != nullptr ? QueuePair::Use::kMoves : QueuePair::Use::kAll));
  return queue_->initialise(id_);
}

Status Connection::request() {
  SLUICE_RETURN_IF_ERROR(make_queue());
  const DeviceLimits& limits = queue_->device().limits();
  PrivateData data = PrivateData::of(*queue_);
  data.stripes = static_cast<uint8_t>(stripes_);
  data.lane = lane_;
  data.token = token_;
  rdma_conn_param parameters{};
  parameters.private_data = &data;
  parameters.private_data_len = sizeof(data);
  parameters.responder_resources = limits.reads_in;
  parameters.initiator_depth = limits.reads_out;
  parameters.flow_control = 1;
  parameters.retry_count = 6;
  parameters.rnr_retry_count = 3;
  parameters.qp_num = queue_->number();
  fault_point("verbs.request");
  if (int e = hub_.api().connect(id_, &parameters); e != 0)
    return cm_error("the connection cannot be asked for", e);
  return Status();
}

Status Connection::respond(const CmEvent& event) {
  SLUICE_TRY(PrivateData theirs, PrivateData::decode(event));
  if (theirs.stripes > kMostStripes) {
    return ended(Code::kCorrupt, "a peer that asks for " + std::to_string(theirs.stripes) +
                                     " queue pairs each way, of " + std::to_string(kMostStripes) +
                                     " at most");
  }
  if (whole_ == nullptr) stripes_ = std::max<uint32_t>(theirs.stripes, 1);
  SLUICE_RETURN_IF_ERROR(make_queue());
  SLUICE_RETURN_IF_ERROR(queue_->prove_at(theirs.proof()));
  SLUICE_RETURN_IF_ERROR(queue_->ready(id_, theirs.mtu));
  if (whole_ == nullptr && stripes_ > 1) {
    fill_random(token_);
    lanes_.resize(2 * (stripes_ - 1));
  }
  const DeviceLimits& limits = queue_->device().limits();
  PrivateData data = PrivateData::of(*queue_);
  data.stripes = static_cast<uint8_t>(stripes_);
  data.lane = lane_;
  data.token = token_;
  rdma_conn_param parameters{};
  parameters.private_data = &data;
  parameters.private_data_len = sizeof(data);
  parameters.responder_resources = std::min(event.responder_resources, limits.reads_in);
  parameters.initiator_depth = std::min(event.initiator_depth, limits.reads_out);
  parameters.flow_control = 1;
  parameters.rnr_retry_count = 3;
  parameters.qp_num = queue_->number();
  state_ = State::kConnecting;
  fault_point("verbs.respond");
  if (int e = hub_.api().accept(id_, &parameters); e != 0)
    return cm_error("the connection cannot be accepted", e);
  return Status();
}

// The passive end has answered, over iWARP, where the kernel has done the rest.
Status Connection::learn_of_peer(const CmEvent& established) {
  SLUICE_TRY(PrivateData theirs, PrivateData::decode(established));
  return queue_->prove_at(theirs.proof());
}

// The passive end has answered.
Status Connection::finish_connecting(const CmEvent& response) {
  SLUICE_TRY(PrivateData theirs, PrivateData::decode(response));
  SLUICE_RETURN_IF_ERROR(queue_->prove_at(theirs.proof()));
  SLUICE_RETURN_IF_ERROR(queue_->ready(id_, theirs.mtu));
  fault_point("verbs.establish");
  if (int e = hub_.api().establish(id_); e != 0)
    return cm_error("the connection cannot be finished", e);
  return join(theirs);
}

// The first queue pair is there: what was granted is asked for, all at once.
Status Connection::join(const PrivateData& theirs) {
  if (whole_ != nullptr) {
    if (theirs.lane == lane_ && theirs.token == token_) return Status();
    return ended(Code::kCorrupt,
                 "a peer that answers for another queue pair than it was asked for");
  }
  const uint32_t granted = std::max<uint32_t>(theirs.stripes, 1);
  if (granted > stripes_) {
    return ended(Code::kCorrupt, "a peer that gives " + std::to_string(granted) +
                                     " queue pairs each way, of " + std::to_string(stripes_) +
                                     " that were asked for");
  }
  stripes_ = granted;
  token_ = theirs.token;
  for (size_t number = 1; number <= 2 * (stripes_ - 1); ++number) {
    auto& lane = lanes_.emplace_back(new Connection(hub_, devices_, ours_, true));
    lane->become_lane(*this, static_cast<uint8_t>(number));
    lane->timeout_ms_ = timeout_ms_;
    SLUICE_RETURN_IF_ERROR(lane->resolve_to(address_));
  }
  return Status();
}

void Connection::become_lane(Connection& whole, uint8_t number) {
  whole_ = &whole;
  lane_ = number;
  token_ = whole.token_;
  stripes_ = whole.stripes_;
}

size_t Connection::step_joining() {
  size_t ready = 0;
  for (const auto& lane : lanes_) {
    if (lane->state_ == State::kReady) ++ready;
    if (lane->state_ != State::kEnded) continue;
    fail(Status(lane->why_.code(), Scope::kEndpoint, kOrigin,
                "queue pair " + std::to_string(lane->lane_) +
                    " of the connection: " + std::string(lane->why_.detail())));
    return 1;
  }
  if (peer_gone()) {
    fail(ended(Code::kUnreachable,
               "the peer ended the connection before all its queue pairs were there"));
    return 1;
  }
  if (ready < lanes_.size()) return 0;
  state_ = State::kGreeting;
  return 1;
}

std::optional<LaneToken> Connection::lane_asked_of(const CmEvent& request) {
  Result<PrivateData> theirs = PrivateData::decode(request);
  return theirs.ok() && theirs->lane != 0 ? std::optional(theirs->token) : std::nullopt;
}

void Connection::refuse_lane(CmHub& hub, const CmEvent& request) {
  lanes_refused.add();
  refuse(hub, request);
}

void Connection::refuse(CmHub& hub, const CmEvent& request) {
  (void)hub.api().reject(request.id, nullptr, 0);
  request.id->context = nullptr;  // the listener's
  (void)hub.api().destroy_id(request.id);
}

Status Connection::accept_lane(const CmEvent& request) {
  SLUICE_TRY(PrivateData theirs, PrivateData::decode(request));
  const bool due = state_ == State::kConnecting || state_ == State::kGreeting;
  if (!due || theirs.lane > lanes_.size() || lanes_[theirs.lane - 1u] != nullptr) {
    refuse_lane(hub_, request);
    return ended(Code::kCorrupt, "a peer that asks for queue pair " + std::to_string(theirs.lane) +
                                     " of a connection that has " + std::to_string(lanes_.size()) +
                                     " besides the first, each once");
  }
  std::unique_ptr<Connection> made(new Connection(hub_, devices_, ours_, false));
  made->become_lane(*this, theirs.lane);
  made->id_ = request.id;
  made->id_->context = static_cast<CmClient*>(made.get());
  if (Status answered = made->respond(request); !answered.ok()) {
    lanes_refused.add();
    (void)hub_.api().reject(made->id_, nullptr, 0);
    return answered;
  }
  lanes_joined.add();
  lanes_[theirs.lane - 1u] = std::move(made);
  return Status();
}

bool Connection::all_lanes_here() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
    return lane != nullptr && lane->state_ != State::kEnded;
  });
}

std::vector<QueuePair*> Connection::lanes_of(bool asked_by_active) const {
  std::vector<QueuePair*> queues;
  for (size_t i = asked_by_active ? 0 : 1; i < lanes_.size(); i += 2)
    queues.push_back(lanes_[i]->queue_.get());
  return queues;
}

bool Connection::lane_gone() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return lane != nullptr && lane->peer_gone_; });
}

bool Connection::concerned_by(const DeviceEvent& event) const {
  if (queue_ != nullptr && queue_->concerned_by(event)) return true;
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
    return lane != nullptr && lane->concerned_by(event);
  });
}

void Connection::on_cm_event(const CmEvent& event) noexcept {
  if (state_ == State::kEnded) return;
  Status next;
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (int e = hub_.api().resolve_route(id_, timeout_ms_); e != 0)
        next = cm_error("no RDMA route to the peer", e);
      break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      state_ = State::kConnecting;
      next = request();
      break;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      next = finish_connecting(event);
      if (next.ok())
        state_ = whole_ != nullptr ? State::kReady
                 : lanes_.empty()  ? State::kGreeting
                                   : State::kJoining;
      break;
    case RDMA_CM_EVENT_ESTABLISHED:
      if (state_ != State::kConnecting) break;
      if (active_) next = learn_of_peer(event);
      if (next.ok()) state_ = whole_ != nullptr ? State::kReady : State::kGreeting;
      break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
      next = cm_error("no RDMA path to the peer", event.status < 0 ? -event.status : EHOSTUNREACH);
      break;
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
      next = cm_error("the peer cannot be reached by RDMA", event.status < 0 ? -event.status : 0);
      break;
    case RDMA_CM_EVENT_REJECTED:
      // IB_CM_REJ_INVALID_SERVICE_ID: nobody listens. IB_CM_REJ_CONSUMER_DEFINED: it said no.
      next =
          event.status == 8
              ? ended(Code::kUnreachable, "nobody listens there by RDMA; start the listener first")
              : ended(Code::kUnreachable,
                      "the peer refuses the connection (reason " + std::to_string(event.status) +
                          "): it has as many waiting as it takes, or its log says why; try again "
                          "later");
      break;
    case RDMA_CM_EVENT_DISCONNECTED: peer_gone_ = true; break;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      peer_gone_ = true;
      next = state_ == State::kReady ? Status()
                                     : ended(Code::kUnreachable, "the RDMA device was removed");
      break;
    default: break;
  }
  if (next.ok()) return;
  // Once it is met its end is told as every end of the peer is.
  if (state_ == State::kReady)
    peer_gone_ = true;
  else
    fail(std::move(next));
}

void Connection::send_hello() {
  std::byte header[wire::kMaxHeaderBytes];
  size_t length = wire::encode(ours_, header);
  // As long as a slot: whatever lies between the two must let full packets through, or the
  // connection fails here and not with the first tensor.
  static constexpr std::array<std::byte, kEagerBytes> kProbe{};
  const ConstBytes probe(kProbe);
  hello_sent_ = queue_->send(ConstBytes(header, length), std::span(&probe, 1));
}

size_t Connection::step(Instant now) {
  if (state_ == State::kJoining) return step_joining();
  if (state_ != State::kGreeting) return 0;
  if (active_ && !hello_sent_) send_hello();
  size_t work = queue_->poll(*this, now, 1);
  if (state_ != State::kGreeting) return work + 1;
  if (queue_->failed()) {
    fail(queue_->failure().why);
  } else if (peer_gone_ && work == 0) {
    fail(ended(Code::kUnreachable, "the peer ended the connection before its HELLO"));
  }
  return state_ == State::kGreeting ? work : work + 1;
}

void Connection::on_message(ConstBytes message, Instant) {
  Result<wire::Header> common = wire::decode_header(message);
  Status status = common.status();
  if (status.ok() &&
      (common->type != wire::MessageType::kHello || common->header_bytes > message.size())) {
    status = ended(Code::kCorrupt, "a message before HELLO");
  }
  if (status.ok()) status = wire::decode(message.first(common->header_bytes), peer_);
  if (status.ok()) status = wire::negotiate(ours_, peer_).status();
  if (status.ok() && !all_lanes_here())
    status = ended(Code::kCorrupt, "a peer that greets before all its queue pairs have joined");
  if (!status.ok()) return fail(status);
  if (!active_) send_hello();
  state_ = State::kReady;
}

void Connection::on_notice(uint32_t, Instant) {
  fail(ended(Code::kCorrupt, "written bytes before HELLO"));
}

}  // namespace sluice::verbs
