// The requester's side of every QP and the passing of time: requests leave in order, are
// sent again when nothing answers, and complete in order.
#include <string.h>

#include "tests/verbs/fake_responder.h"

namespace sluice::verbs::fake {
namespace {

constexpr uint64_t kNever = UINT64_MAX;
// Waiting for ever (retry_cnt 7, rnr_retry 7) must not hang the test.
constexpr int kLeaps = 4096;

uint64_t later(uint64_t now, uint64_t ticks) { return ticks < kNever - now ? now + ticks : kNever; }

bool is_read(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
         opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

}  // namespace

uint64_t Fabric::delay() {
  switch (options.policy.order) {
    case FakePolicy::Order::kSlow: return options.policy.ticks;
    case FakePolicy::Order::kReordering: return random_() % (options.policy.ticks + 1);
    default: return 0;
  }
}

void Fabric::work() {
  if (working_) return;
  working_ = true;
  bool one_by_one = options.policy.order == FakePolicy::Order::kReordering;
  for (bool moved = true; moved;) {
    moved = false;
    std::vector<uint32_t> numbers;
    for (auto& [number, qp] : busy_) numbers.push_back(number);
    if (one_by_one) std::shuffle(numbers.begin(), numbers.end(), random_);
    for (uint32_t number : numbers) {
      for (bool again = true; again;) {
        auto found = busy_.find(number);
        again = found != busy_.end() && step(*found->second);
        moved |= again;
        if (one_by_one) break;
      }
    }
  }
  working_ = false;
}

void Fabric::tick() {
  ++now_;
  work();
  late_events();
}

void Fabric::advance(uint64_t ticks) {
  for (uint64_t i = 0; i < ticks; ++i) tick();
}

bool Fabric::step(Qp& qp) {
  if (qp.base.state != IBV_QPS_RTS || gone(qp.base.context)) return false;
  return finish_first(qp) || send_next(qp);
}

bool Fabric::finish_first(Qp& qp) {
  if (qp.in_flight == 0 || qp.sends.front().due > now_) return false;
  if (qp.sends.front().from_peer && !answer_arrives(qp)) {
    lost(qp, qp.sends.front());
    return true;
  }
  SendWork work = std::move(qp.sends.front());
  qp.sends.pop_front();
  --qp.in_flight;
  ibv_wc_status status = work.status;
  const uint8_t* from = work.answer.data();
  for (const ibv_sge& sge : work.sges) {
    if (status != IBV_WC_SUCCESS || work.answer.empty()) break;
    if (!local_access(qp, sge, true, "answer of a READ or an atomic")) {
      status = IBV_WC_LOC_PROT_ERR;
    } else if (sge.length > 0) {
      uint8_t* to = local_bytes(sge.lkey, sge.addr);
      if (to != nullptr) ::memcpy(to, from, sge.length);
      from += sge.length;
    }
  }
  if (qp.sends.empty()) busy_.erase(qp.base.qp_num);
  complete_send(qp, work, status);
  if (status != IBV_WC_SUCCESS) to_error(qp);
  return true;
}

bool Fabric::may_send(const Qp& qp, const SendWork& work) const {
  size_t reads = 0;
  for (size_t i = 0; i < qp.in_flight; ++i) reads += is_read(qp.sends[i].wr.opcode) ? 1 : 0;
  if (reads == 0) return true;
  if ((work.wr.send_flags & IBV_SEND_FENCE) != 0) return false;
  return !is_read(work.wr.opcode) || reads < qp.attributes.max_rd_atomic;
}

bool Fabric::send_next(Qp& qp) {
  if (qp.stopped || qp.in_flight >= qp.sends.size()) return false;
  SendWork& work = qp.sends[qp.in_flight];
  if (work.due > now_ || !may_send(qp, work)) return false;
  execute(qp, work);
  return true;
}

// What its own adapter finds wrong with a request before anything is sent.
ibv_wc_status Fabric::check_locally(Qp& qp, SendWork& work) {
  bool reads = is_read(work.wr.opcode);
  if (reads && qp.attributes.max_rd_atomic == 0) {
    misuse("a READ or an atomic with max_rd_atomic 0");
    return IBV_WC_LOC_QP_OP_ERR;
  }
  uint64_t length = 0;
  for (const ibv_sge& sge : work.sges) length += sge.length;
  if (length > contexts_.find(qp.base.context)->device->options.max_msg_sz) {
    misuse("a message above max_msg_sz");
    return IBV_WC_LOC_LEN_ERR;
  }
  if ((work.wr.send_flags & IBV_SEND_INLINE) != 0) return IBV_WC_SUCCESS;
  for (const ibv_sge& sge : work.sges) {
    if (!local_access(qp, sge, reads, "send queue")) return IBV_WC_LOC_PROT_ERR;
  }
  return IBV_WC_SUCCESS;
}

void Fabric::execute(Qp& qp, SendWork& work) {
  if (!work.fated) {
    auto fate = faults.work_fate(work.wr.opcode);
    work.fated = true;
    work.planned = fate.status;
    work.execute_first = fate.executed;
    work.unsaid = fate.unsaid;
    if (fate.undone > 0) {
      work.due = later(now_, fate.undone);
      return;
    }
  }
  if (!work.execute_first) return answered(qp, work, work.planned);
  if (work.wr.opcode == IBV_WR_BIND_MW || work.wr.opcode == IBV_WR_LOCAL_INV) {
    ibv_wc_status done = work.wr.opcode == IBV_WR_BIND_MW ? bind_window(qp, work.wr)
                                                          : invalidate(qp, work.wr.invalidate_rkey);
    return answered(qp, work, work.planned != IBV_WC_SUCCESS ? work.planned : done);
  }
  ibv_wc_status local = check_locally(qp, work);
  if (local != IBV_WC_SUCCESS) return answered(qp, work, local);
  Qp* peer = responder_of(qp);
  if (peer == nullptr || !request_arrives(qp)) return lost(qp, work);
  Responder responder(*this, qp, *peer, work);
  ibv_wc_status told = responder.serve();
  if (qp.base.state != IBV_QPS_RTS)
    return;  // a QP that is its own peer, or an overrun of a shared CQ: flushed
  if (responder.not_ready()) return not_ready(qp, work);
  work.from_peer = true;
  answered(qp, work, work.planned != IBV_WC_SUCCESS ? work.planned : told);
}

void Fabric::answered(Qp& qp, SendWork& work, ibv_wc_status status) {
  work.status = status;
  work.due = later(now_ + delay(), work.unsaid);
  if (status != IBV_WC_SUCCESS) qp.stopped = true;
  ++qp.in_flight;
}

// Nothing comes back: sent again after a while, or given up after the last while.
void Fabric::lost(Qp& qp, SendWork& work) {
  bool waits_for_answer = qp.in_flight > 0 && &work == &qp.sends.front();
  bool for_ever = qp.attributes.retry_cnt == 7 || faults.link == FakeFaults::Link::kStuck;
  ++retransmissions;
  uint64_t timeout = now_ + std::max<uint64_t>(1, options.retry_ticks);
  work.due = timeout;
  if (for_ever || ++work.losses <= qp.attributes.retry_cnt) return;
  work.from_peer = false;
  if (!waits_for_answer) answered(qp, work, IBV_WC_RETRY_EXC_ERR);
  work.status = IBV_WC_RETRY_EXC_ERR;
  work.due = timeout;
  qp.stopped = true;
}

void Fabric::not_ready(Qp& qp, SendWork& work) {
  ++rnr_events;
  work.due = now_ + std::max<uint64_t>(1, options.rnr_ticks);
  if (qp.attributes.rnr_retry == 7 || ++work.not_ready <= qp.attributes.rnr_retry) return;
  answered(qp, work, IBV_WC_RNR_RETRY_EXC_ERR);
}

// Packets find their way by GID and QP number; a QP that expects another peer, another
// sequence number, or nothing at all drops them in silence.
Qp* Fabric::responder_of(Qp& qp) {
  auto found = by_number_.find(qp.attributes.dest_qp_num);
  if (found == by_number_.end()) return nullptr;
  Qp& peer = *found->second;
  bool ready = peer.base.state == IBV_QPS_RTR || peer.base.state == IBV_QPS_RTS;
  const Device* device = contexts_.find(peer.base.context)->device;
  bool there = device == device_of(qp.attributes.ah_attr.grh.dgid) && !device->removed;
  bool expects = peer.attributes.dest_qp_num == qp.base.qp_num &&
                 peer.attributes.rq_psn == qp.attributes.sq_psn;
  return ready && there && expects ? &peer : nullptr;
}

bool Fabric::request_arrives(const Qp& qp) {
  if (faults.link == FakeFaults::Link::kCut || faults.link == FakeFaults::Link::kStuck)
    return false;
  if (faults.cut_qps.contains(qp.base.qp_num) || faults.cut_qps.contains(qp.attributes.dest_qp_num))
    return false;
  const Device* device = contexts_.find(qp.base.context)->device;
  if (device->options.port_state != IBV_PORT_ACTIVE) return false;
  return options.policy.order != FakePolicy::Order::kLossy ||
         random_() % 1000 >= options.policy.loss_per_mille;
}

bool Fabric::answer_arrives(const Qp& qp) {
  return faults.link != FakeFaults::Link::kAnswersLost && request_arrives(qp);
}

// The next moment at which anything can move; kNever: nothing will.
uint64_t Fabric::next_due() const {
  uint64_t next = kNever;
  for (const auto& [number, qp] : busy_) {
    if (qp->base.state != IBV_QPS_RTS) continue;
    if (qp->in_flight > 0) next = std::min(next, qp->sends.front().due);
    if (!qp->stopped && qp->in_flight < qp->sends.size()) {
      uint64_t due = qp->sends[qp->in_flight].due;
      if (due > now_) next = std::min(next, due);
    }
  }
  return next;
}

// A post while somebody sleeps: the poster may never call again, and time passes all the
// same. An honest fabric has nothing under way then but what no time will mend.
void Fabric::serve_sleepers() {
  if (options.policy.order == FakePolicy::Order::kHonest) return;
  cqs_.each([this](Cq& cq) {
    if (cq.asleep) sleep_until_arrival(cq);
  });
}

void Fabric::sleep_until_arrival(Cq& cq) {
  for (int i = 0; i < kLeaps && cq.entries.empty(); ++i) {
    uint64_t due = next_due();
    if (due == kNever) return;
    now_ = std::max(now_, due);
    work();
    late_events();
  }
}

}  // namespace sluice::verbs::fake
