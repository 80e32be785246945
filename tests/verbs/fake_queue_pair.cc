// Queue pairs: creation, the state machine with its mandatory attributes, flushing.
#include <errno.h>
#include <string.h>

#include "tests/verbs/fake_fabric.h"

namespace sluice::verbs::fake {
namespace {

// Attributes of RC transitions that must and may be given (specification 11.2.5.2, the
// kernel's qp_state_table).
struct Transition {
  ibv_qp_state from, to;
  int required, optional;
};
constexpr int kInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, kInit, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, kInit},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER |
         IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE |
         IBV_QP_MIN_RNR_TIMER},
};

const char* name_of(ibv_qp_state state) {
  constexpr const char* names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return state <= IBV_QPS_ERR ? names[state] : "?";
}

}  // namespace

ibv_qp* Fabric::create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  if (pds_.find(pd) == nullptr) return misuse("create_qp: no such PD"), errno = EINVAL, nullptr;
  if (gone(pd->context)) return errno = EIO, nullptr;
  const FakeDeviceOptions& limits = contexts_.find(pd->context)->device->options;
  const ibv_qp_cap& cap = attributes->cap;
  if (cqs_.find(attributes->send_cq) == nullptr || cqs_.find(attributes->recv_cq) == nullptr) {
    return misuse("create_qp: no such CQ"), errno = EINVAL, nullptr;
  }
  auto most = static_cast<uint32_t>(limits.max_qp_wr);
  auto sges = static_cast<uint32_t>(limits.max_sge);
  if (cap.max_send_wr > most || cap.max_recv_wr > most || cap.max_send_sge > sges ||
      cap.max_recv_sge > sges || cap.max_inline_data > limits.max_inline_data ||
      attributes->qp_type != IBV_QPT_RC || attributes->srq != nullptr) {
    return errno = EINVAL, nullptr;
  }
  auto of_device = [&](const Qp& qp) { return qp.base.context->device == pd->context->device; };
  if (qps_.count(of_device) >= static_cast<size_t>(limits.max_qp)) return errno = ENOMEM, nullptr;

  auto qp = std::make_unique<Qp>();
  qp->base.context = pd->context;
  qp->base.qp_context = attributes->qp_context;
  qp->base.pd = pd;
  qp->base.send_cq = attributes->send_cq;
  qp->base.recv_cq = attributes->recv_cq;
  qp->base.qp_num = next_qp_number_++;
  qp->base.state = IBV_QPS_RESET;
  qp->base.qp_type = IBV_QPT_RC;
  qp->initial = *attributes;
  Qp* added = qps_.add(std::move(qp));
  by_number_[added->base.qp_num] = added;
  return &added->base;
}

int Fabric::destroy_qp(ibv_qp* qp) {
  Qp* found = qps_.find(qp);
  if (found == nullptr) return misuse("destroy_qp: no such QP, or destroyed before"), EINVAL;
  bool removed = gone(qp->context);
  if (found->async_unacknowledged > 0 && !removed) {
    return misuse("destroy_qp: would hang, an asynchronous event is not acknowledged"), EBUSY;
  }
  for (ibv_cq* cq : {qp->send_cq, qp->recv_cq}) {
    if (Cq* queue = cqs_.find(cq))
      std::erase_if(queue->entries, [&](const Cq::Entry& entry) { return entry.qp == found; });
  }
  mws_.each([&](Mw& mw) {
    if (mw.qp == found) release_window(mw);
  });
  if (Context* context = contexts_.find(qp->context)) {
    std::erase_if(context->events, [&](const ibv_async_event& event) {
      bool of_port =
          event.event_type >= IBV_EVENT_DEVICE_FATAL && event.event_type <= IBV_EVENT_SM_CHANGE;
      return !of_port && event.element.qp == qp;
    });
    show_events(*context);
  }
  by_number_.erase(qp->qp_num);
  busy_.erase(qp->qp_num);
  qps_.remove(qp);
  return removed ? EIO : 0;
}

int Fabric::check_transition(const Qp& qp, const ibv_qp_attr& attributes, int mask,
                             ibv_qp_state next) {
  ibv_qp_state current = qp.base.state;
  auto wrong = [&](const std::string& why) {
    misuse(std::string("modify_qp from ") + name_of(current) + " to " + name_of(next) + ": " + why);
    return EINVAL;
  };
  if ((mask & IBV_QP_CUR_STATE) != 0 && attributes.cur_qp_state != current)
    return wrong("cur_qp_state differs");
  int given = mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
  if (next == IBV_QPS_RESET || next == IBV_QPS_ERR)
    return given == 0 ? 0 : wrong("takes no attributes");
  for (const Transition& transition : kTransitions) {
    if (transition.from != current || transition.to != next) continue;
    if ((given & transition.required) != transition.required)
      return wrong("mandatory attributes are missing");
    if ((given & ~(transition.required | transition.optional)) != 0)
      return wrong("attributes that it does not take");
    return 0;
  }
  return wrong("no such transition");
}

int Fabric::check_values(const Device& device, const ibv_qp_attr& a, int mask) {
  const FakeDeviceOptions& limits = device.options;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && a.pkey_index != 0) return EINVAL;
  if ((mask & IBV_QP_PORT) != 0 && a.port_num != 1) return EINVAL;
  if ((mask & IBV_QP_PATH_MTU) != 0 && (a.path_mtu < IBV_MTU_256 || a.path_mtu > limits.active_mtu))
    return EINVAL;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && a.max_rd_atomic > limits.max_qp_init_rd_atom)
    return EINVAL;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && a.max_dest_rd_atomic > limits.max_qp_rd_atom)
    return EINVAL;
  if ((mask & IBV_QP_RETRY_CNT) != 0 && a.retry_cnt > 7) return EINVAL;
  if ((mask & IBV_QP_RNR_RETRY) != 0 && a.rnr_retry > 7) return EINVAL;
  if ((mask & IBV_QP_TIMEOUT) != 0 && a.timeout > 31) return EINVAL;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && a.min_rnr_timer > 31) return EINVAL;
  if ((mask & IBV_QP_RETRY_CNT) != 0 && a.retry_cnt == 7)
    misuse("modify_qp: retry_cnt 7, a dead peer is never reported");
  if ((mask & IBV_QP_RNR_RETRY) != 0 && a.rnr_retry == 7)
    misuse("modify_qp: rnr_retry 7, waits for ever");
  if ((mask & IBV_QP_AV) != 0) {
    const ibv_ah_attr& ah = a.ah_attr;
    if (ah.port_num != 1) return EINVAL;
    bool ethernet = limits.link_layer == IBV_LINK_LAYER_ETHERNET;
    if (ethernet && ah.is_global == 0) return EINVAL;  // RoCE has no other address
    if (ah.is_global != 0 && (ah.grh.sgid_index >= limits.gids.size() ||
                              limits.gids[ah.grh.sgid_index].value == FakeGid{}.value)) {
      return EINVAL;
    }
  }
  return 0;
}

int Fabric::modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  Qp* found = qps_.find(qp);
  if (found == nullptr) return misuse("modify_qp: no such QP"), EINVAL;
  if (gone(qp->context)) return EIO;
  ibv_qp_state next = (mask & IBV_QP_STATE) != 0 ? attributes->qp_state : qp->state;
  int error = check_transition(*found, *attributes, mask, next);
  if (error == 0) error = check_values(*contexts_.find(qp->context)->device, *attributes, mask);
  if (error != 0) return error;
  apply(*found, *attributes, mask);
  if (next == IBV_QPS_ERR) {
    to_error(*found);
  } else if (next == IBV_QPS_RESET) {
    reset(*found);
  }
  qp->state = next;
  work();  // peers may have waited for it
  return 0;
}

void Fabric::apply(Qp& qp, const ibv_qp_attr& a, int mask) {
  ibv_qp_attr& own = qp.attributes;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) own.pkey_index = a.pkey_index;
  if ((mask & IBV_QP_PORT) != 0) own.port_num = a.port_num;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) own.qp_access_flags = a.qp_access_flags;
  if ((mask & IBV_QP_AV) != 0) own.ah_attr = a.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0) own.path_mtu = a.path_mtu;
  if ((mask & IBV_QP_DEST_QPN) != 0) own.dest_qp_num = a.dest_qp_num;
  if ((mask & IBV_QP_RQ_PSN) != 0) own.rq_psn = a.rq_psn & 0xffffff;
  if ((mask & IBV_QP_SQ_PSN) != 0) own.sq_psn = a.sq_psn & 0xffffff;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) own.max_dest_rd_atomic = a.max_dest_rd_atomic;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) own.max_rd_atomic = a.max_rd_atomic;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) own.min_rnr_timer = a.min_rnr_timer;
  if ((mask & IBV_QP_TIMEOUT) != 0) own.timeout = a.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) own.retry_cnt = a.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) own.rnr_retry = a.rnr_retry;
}

int Fabric::query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int, ibv_qp_init_attr* initial) {
  Qp* found = qps_.find(qp);
  if (found == nullptr) return misuse("query_qp: no such QP"), EINVAL;
  if (gone(qp->context)) return EIO;
  *attributes = found->attributes;
  attributes->qp_state = attributes->cur_qp_state = found->base.state;
  attributes->cap = found->initial.cap;
  if (initial != nullptr) *initial = found->initial;
  return 0;
}

// Everything queued vanishes, completions included.
void Fabric::reset(Qp& qp) {
  qp.sends.clear();
  qp.receives.clear();
  qp.in_flight = 0;
  qp.stopped = false;
  qp.sends_retired = qp.sends_posted;
  qp.receives_retired = qp.receives_posted;
  qp.attributes = {};
  busy_.erase(qp.base.qp_num);
  for (ibv_cq* cq : {qp.base.send_cq, qp.base.recv_cq}) {
    std::erase_if(cqs_.find(cq)->entries, [&](const Cq::Entry& entry) { return entry.qp == &qp; });
  }
}

void Fabric::to_error(Qp& qp) {
  qp.base.state = IBV_QPS_ERR;
  flush(qp);
}

// Whether a request that was already sent took effect, its flush does not tell.
void Fabric::flush(Qp& qp) {
  if (faults.never_flush) return;
  while (!qp.sends.empty()) {
    SendWork work = std::move(qp.sends.front());
    qp.sends.pop_front();
    complete_send(qp, work, IBV_WC_WR_FLUSH_ERR);
  }
  qp.in_flight = 0;
  busy_.erase(qp.base.qp_num);
  while (!qp.receives.empty()) {
    ReceiveWork work = std::move(qp.receives.front());
    qp.receives.pop_front();
    ibv_wc completion{};
    completion.status = IBV_WC_WR_FLUSH_ERR;
    complete_receive(qp, work, completion);
  }
}

}  // namespace sluice::verbs::fake
