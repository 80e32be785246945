// How two identifiers become a connection and cease to be one: REQ, REP, RTU, REJ, DREQ,
// DREP. QPs stay the program's: no event changes their state.
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "tests/verbs/fake_fabric.h"

namespace sluice::verbs::fake {
namespace {

// Private data of each message that a program may use, and its whole field (rdma_connect(3),
// rdma_accept(3), rdma_reject(3); specification 12.6).
constexpr size_t kRequestData = 56;
constexpr size_t kReplyData = 196;
constexpr size_t kRejectData = 148;
// Reject reasons (specification 12.6.7.2).
constexpr int kInvalidServiceId = 8;
constexpr int kConsumerReject = 28;
// Local ACK timeout that the kernel assumes for RoCE: 4.096 us * 2^19.
constexpr uint8_t kAckTimeout = 19;

bool may_end(CmState state) {
  return state == CmState::kConnected || state == CmState::kReplyReceived ||
         state == CmState::kReplySent;
}

}  // namespace

int Fabric::listen(rdma_cm_id* id, int backlog) {
  Id* found = id_of(id, "listen");
  if (found == nullptr || (found->state != CmState::kBound && found->state != CmState::kIdle))
    return EINVAL;
  if (found->port == 0) found->port = free_port();
  found->backlog = backlog > 0 ? backlog : 1024;
  found->state = CmState::kListening;
  return 0;
}

int Fabric::connect(rdma_cm_id* id, rdma_conn_param* p) {
  Id* found = id_of(id, "connect");
  if (found == nullptr || found->state != CmState::kRouteResolved) return EINVAL;
  if (p->private_data_len > kRequestData) return EINVAL;
  if (found->device->removed) return ENODEV;
  found->qp_number = p->qp_num;
  found->responder_resources = p->responder_resources;
  found->initiator_depth = p->initiator_depth;
  found->retry_count = std::min<uint8_t>(p->retry_count, 7);
  found->rnr_retry_count = std::min<uint8_t>(p->rnr_retry_count, 7);
  found->starting_psn = next_psn_ = (next_psn_ + 7) & 0xffffff;
  found->state = CmState::kRequestSent;
  if (faults.link == FakeFaults::Link::kCut) {
    post_event(*found, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
    return 0;
  }
  const sockaddr_in& to = id->route.addr.dst_sin;
  Id* listener = nullptr;
  ids_.each([&](Id& other) {
    const in_addr bound = other.base.route.addr.src_sin.sin_addr;
    bool here = bound.s_addr == INADDR_ANY || bound.s_addr == to.sin_addr.s_addr;
    if (other.state == CmState::kListening && here && other.port == ntohs(to.sin_port))
      listener = &other;
  });
  size_t waiting = ids_.count([&](const Id& other) { return other.listener == listener; });
  if (listener == nullptr || waiting >= static_cast<size_t>(listener->backlog)) {
    post_event(*found, RDMA_CM_EVENT_REJECTED, kInvalidServiceId);
    return 0;
  }
  request_at(*listener, *found, *p);
  return 0;
}

// The passive identifier: the program's once it has fetched the event.
void Fabric::request_at(Id& listener, Id& active, const rdma_conn_param& p) {
  auto made = std::make_unique<Id>();
  made->channel = listener.channel;
  made->base = listener.base;
  Id* passive = ids_.add(std::move(made));
  passive->listener = &listener;
  passive->port = listener.port;
  passive->state = CmState::kRequestReceived;
  sockaddr_in local = active.base.route.addr.dst_sin;
  take_device(*passive, *device_for(reinterpret_cast<sockaddr*>(&local)), local);
  passive->base.route.addr.dst_sin = active.base.route.addr.src_sin;
  passive->base.route.addr.addr.ibaddr.dgid = active.base.route.addr.addr.ibaddr.sgid;
  passive->peer = &active;
  active.peer = passive;
  passive->starting_psn = next_psn_ = (next_psn_ + 7) & 0xffffff;
  passive->remote_psn = active.starting_psn;
  passive->remote_qp_number = active.qp_number;
  // What one side can serve is what the other may start.
  passive->responder_resources = active.initiator_depth;
  passive->initiator_depth = active.responder_resources;
  passive->retry_count = active.retry_count;
  passive->rnr_retry_count = active.rnr_retry_count;

  CmEvent& event = new_event(*passive, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
  event.base.listen_id = &listener.base;
  event.counted_on = &listener;
  rdma_conn_param& told = event.base.param.conn;
  told = p;
  told.responder_resources = passive->responder_resources;
  told.initiator_depth = passive->initiator_depth;
  put_private_data(event, p.private_data, p.private_data_len, kRequestData);
}

int Fabric::accept(rdma_cm_id* id, rdma_conn_param* p) {
  Id* found = id_of(id, "accept");
  if (found == nullptr || found->state != CmState::kRequestReceived) return EINVAL;
  if (p != nullptr && p->private_data_len > kReplyData) return EINVAL;
  if (found->device->removed) return ENODEV;
  Id* active = found->peer;
  rdma_conn_param chosen{};
  if (p != nullptr) {
    chosen = *p;
  } else {
    chosen.responder_resources = found->responder_resources;
    chosen.initiator_depth = found->initiator_depth;
  }
  found->qp_number = chosen.qp_num;
  found->responder_resources = chosen.responder_resources;
  found->initiator_depth = chosen.initiator_depth;
  found->state = CmState::kReplySent;
  if (active == nullptr || faults.link == FakeFaults::Link::kCut) {
    post_event(*found, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
    return 0;
  }
  active->remote_psn = found->starting_psn;
  active->remote_qp_number = found->qp_number;
  active->responder_resources = chosen.initiator_depth;
  active->initiator_depth = chosen.responder_resources;
  active->rnr_retry_count = std::min<uint8_t>(chosen.rnr_retry_count, 7);
  active->state = CmState::kReplyReceived;
  CmEvent& event = new_event(*active, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
  rdma_conn_param& told = event.base.param.conn;
  told = chosen;
  told.responder_resources = chosen.initiator_depth;
  told.initiator_depth = chosen.responder_resources;
  put_private_data(event, chosen.private_data, chosen.private_data_len, kReplyData);
  return 0;
}

int Fabric::establish(rdma_cm_id* id) {
  Id* found = id_of(id, "establish");
  if (found == nullptr || found->state != CmState::kReplyReceived) return EINVAL;
  found->state = CmState::kConnected;
  if (found->peer == nullptr || faults.link == FakeFaults::Link::kCut) return 0;
  found->peer->state = CmState::kConnected;
  post_event(*found->peer, RDMA_CM_EVENT_ESTABLISHED, 0);
  return 0;
}

int Fabric::reject(rdma_cm_id* id, const void* data, uint8_t length) {
  Id* found = id_of(id, "reject");
  if (found == nullptr ||
      (found->state != CmState::kRequestReceived && found->state != CmState::kReplyReceived))
    return EINVAL;
  if (length > kRejectData) return EINVAL;
  found->state = CmState::kEnded;
  Id* peer = found->peer;
  if (peer == nullptr) return 0;
  peer->state = CmState::kEnded;
  peer->peer = found->peer = nullptr;
  CmEvent& event = new_event(*peer, RDMA_CM_EVENT_REJECTED, kConsumerReject);
  put_private_data(event, data, length, kRejectData);
  return 0;
}

// The one who asks hears DISCONNECTED when the other has answered, with a disconnect of
// its own or by destroying its identifier.
int Fabric::disconnect(rdma_cm_id* id) {
  Id* found = id_of(id, "disconnect");
  if (found == nullptr) return EINVAL;
  if (found->state == CmState::kDisconnectReceived) return end_connection(*found), 0;
  if (!may_end(found->state)) return EINVAL;
  Id* peer = found->peer;
  bool reached = peer != nullptr && faults.link != FakeFaults::Link::kCut;
  found->state = CmState::kDisconnectSent;
  if (!reached) {
    post_event(*found, RDMA_CM_EVENT_DISCONNECTED, -ETIMEDOUT);
    post_event(*found, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    found->state = CmState::kEnded;
    return 0;
  }
  if (peer->state == CmState::kDisconnectSent) {
    end_connection(*found);
    return 0;
  }
  peer->state = CmState::kDisconnectReceived;
  post_event(*peer, RDMA_CM_EVENT_DISCONNECTED, 0);
  return 0;
}

// The second of the two has spoken.
void Fabric::end_connection(Id& id) {
  Id* peer = id.peer;
  bool both_asked = id.state == CmState::kDisconnectSent;
  id.state = CmState::kEnded;
  id.peer = nullptr;
  if (both_asked) post_event(id, RDMA_CM_EVENT_DISCONNECTED, 0);
  post_event(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
  if (peer == nullptr) return;
  peer->state = CmState::kEnded;
  peer->peer = nullptr;
  post_event(*peer, RDMA_CM_EVENT_DISCONNECTED, 0);
  post_event(*peer, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
}

// An identifier goes: what its peer hears of it.
void Fabric::leave_peer(Id& id) {
  Id* peer = id.peer;
  if (peer == nullptr) return;
  peer->peer = nullptr;
  if (faults.link == FakeFaults::Link::kCut) return;
  switch (peer->state) {
    case CmState::kConnected:
      peer->state = CmState::kDisconnectReceived;
      post_event(*peer, RDMA_CM_EVENT_DISCONNECTED, 0);
      break;
    case CmState::kDisconnectSent:
      peer->state = CmState::kEnded;
      post_event(*peer, RDMA_CM_EVENT_DISCONNECTED, 0);
      post_event(*peer, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
      break;
    case CmState::kRequestSent:
    case CmState::kRequestReceived:
    case CmState::kReplySent:
    case CmState::kReplyReceived:
      peer->state = CmState::kEnded;
      post_event(*peer, RDMA_CM_EVENT_REJECTED, kConsumerReject);
      break;
    default: break;
  }
}

void Fabric::disconnect_all() {
  ids_.each([this](Id& id) {
    if (!may_end(id.state)) return;
    id.state = CmState::kDisconnectReceived;
    post_event(id, RDMA_CM_EVENT_DISCONNECTED, 0);
  });
}

// rdma_init_qp_attr(3), for RoCE.
int Fabric::init_qp_attr(rdma_cm_id* id, ibv_qp_attr* a, int* mask) {
  Id* found = id_of(id, "init_qp_attr");
  if (found == nullptr || found->device == nullptr) return EINVAL;
  bool known_peer = found->state == CmState::kRequestReceived ||
                    found->state == CmState::kReplySent ||
                    found->state == CmState::kReplyReceived || found->state == CmState::kConnected;
  ibv_qp_state wanted = a->qp_state;
  if (wanted != IBV_QPS_INIT && !known_peer) return EINVAL;
  *a = {};
  a->qp_state = wanted;
  switch (wanted) {
    case IBV_QPS_INIT:
      *mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
      a->port_num = 1;
      // Before there is a connection the kernel gives no rights at all.
      a->qp_access_flags = known_peer ? IBV_ACCESS_REMOTE_WRITE : 0;
      if (known_peer && found->responder_resources > 0)
        a->qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
      return 0;
    case IBV_QPS_RTR: return fill_receive(*found, *a, *mask);
    case IBV_QPS_RTS:
      *mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
              IBV_QP_MAX_QP_RD_ATOMIC;
      a->sq_psn = found->remote_psn;
      a->timeout = kAckTimeout;
      a->retry_cnt = found->retry_count;
      a->rnr_retry = found->rnr_retry_count;
      a->max_rd_atomic = found->initiator_depth;
      return 0;
    default: return EINVAL;
  }
}

int Fabric::fill_receive(const Id& id, ibv_qp_attr& a, int& mask) {
  const rdma_ib_addr& address = id.base.route.addr.addr.ibaddr;
  const Device* far = device_of(address.dgid);
  if (far == nullptr) return EINVAL;
  mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  a.path_mtu = std::min(id.device->options.active_mtu, far->options.active_mtu);
  a.dest_qp_num = id.remote_qp_number;
  a.rq_psn = id.starting_psn;
  a.max_dest_rd_atomic = id.responder_resources;
  a.ah_attr.is_global = 1;
  a.ah_attr.port_num = 1;
  a.ah_attr.grh.dgid = address.dgid;
  a.ah_attr.grh.hop_limit = 64;
  const auto& gids = id.device->options.gids;
  for (size_t i = 0; i < gids.size(); ++i) {
    if (::memcmp(gids[i].value.data(), address.sgid.raw, sizeof(address.sgid.raw)) != 0) continue;
    a.ah_attr.grh.sgid_index = static_cast<uint8_t>(i);
    if (gids[i].type == IBV_GID_TYPE_ROCE_V2) break;
  }
  return 0;
}

}  // namespace sluice::verbs::fake
