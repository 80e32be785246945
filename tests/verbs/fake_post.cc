// Posting: what is refused at once, and what is taken over into the queues.
#include <errno.h>
#include <string.h>

#include "tests/verbs/fake_fabric.h"

namespace sluice::verbs::fake {
namespace {

bool is_atomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
bool carries_data(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE ||
         opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV;
}
bool is_local(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV;
}

}  // namespace

int Fabric::check_send(const Qp& qp, const ibv_send_wr& wr) {
  auto wrong = [this](const char* what, int error) {
    misuse(std::string("post_send: ") + what);
    return error;
  };
  const ibv_qp_cap& cap = qp.initial.cap;
  if (qp.base.state != IBV_QPS_RTS && qp.base.state != IBV_QPS_ERR)
    return wrong("the QP is not ready to send", EINVAL);
  if (qp.sends_posted - qp.sends_retired >= cap.max_send_wr)
    return wrong("the send queue is full", ENOMEM);
  bool known = is_atomic(wr.opcode) || carries_data(wr.opcode) || is_local(wr.opcode) ||
               wr.opcode == IBV_WR_RDMA_READ;
  if (!known) return wrong("no such opcode", EINVAL);
  if (is_local(wr.opcode)) return 0;
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > cap.max_send_sge)
    return wrong("more sges than the QP has", EINVAL);
  uint64_t length = 0;
  for (int i = 0; i < wr.num_sge; ++i) length += wr.sg_list[i].length;
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    if (!carries_data(wr.opcode)) return wrong("inline without data to send", EINVAL);
    if (length > cap.max_inline_data)
      return wrong("more inline data than the QP has room for", EINVAL);
  }
  if (is_atomic(wr.opcode)) {
    if (length != 8) return wrong("an atomic's result is 8 bytes", EINVAL);
    if ((wr.wr.atomic.remote_addr & 7) != 0)
      return wrong("an atomic's address is a multiple of 8", EINVAL);
  }
  return 0;
}

bool Fabric::capture_inline(const Qp&, SendWork& work) {
  if ((work.wr.send_flags & IBV_SEND_INLINE) == 0) return false;
  for (const ibv_sge& sge : work.sges) {
    const auto* from = reinterpret_cast<const uint8_t*>(sge.addr);
    work.inline_data.insert(work.inline_data.end(), from, from + sge.length);
  }
  return true;
}

int Fabric::post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
  Qp* found = qps_.find(qp);
  if (found == nullptr) return misuse("post_send: no such QP"), EINVAL;
  int error = gone(qp->context) ? EIO : 0;
  uint64_t posted = 0;
  for (ibv_send_wr* wr = list; wr != nullptr; wr = wr->next, ++posted) {
    if (error == 0) error = check_send(*found, *wr);
    if (error == 0) error = faults.request_error();
    if (error != 0) {
      *bad = wr;
      break;
    }
    SendWork work;
    work.wr = *wr;
    if (wr->opcode == IBV_WR_BIND_MW && mws_.find(wr->bind_mw.mw) != nullptr)
      work.wr.invalidate_rkey = wr->bind_mw.mw->rkey;
    if (!is_local(wr->opcode)) work.sges.assign(wr->sg_list, wr->sg_list + wr->num_sge);
    capture_inline(*found, work);
    work.index = found->sends_posted++;
    work.signaled = found->initial.sq_sig_all != 0 || (wr->send_flags & IBV_SEND_SIGNALED) != 0;
    work.due = now_ + delay();
    found->sends.push_back(std::move(work));
  }
  largest_send_list = std::max(largest_send_list, posted);
  if (!found->sends.empty()) {
    if (qp->state == IBV_QPS_ERR)
      flush(*found);
    else
      busy_[qp->qp_num] = found;
  }
  this->work();
  serve_sleepers();
  return error;
}

int Fabric::check_receive(const Qp& qp, const ibv_recv_wr& wr) {
  auto wrong = [this](const char* what, int error) {
    misuse(std::string("post_recv: ") + what);
    return error;
  };
  const ibv_qp_cap& cap = qp.initial.cap;
  if (qp.base.state == IBV_QPS_RESET) return wrong("the QP is in RESET", EINVAL);
  if (qp.receives_posted - qp.receives_retired >= cap.max_recv_wr)
    return wrong("the receive queue is full", ENOMEM);
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > cap.max_recv_sge)
    return wrong("more sges than the QP has", EINVAL);
  // Only noted here: the error comes when the receive is used.
  for (int i = 0; i < wr.num_sge; ++i) (void)local_access(qp, wr.sg_list[i], true, "post_recv");
  return 0;
}

int Fabric::post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) {
  Qp* found = qps_.find(qp);
  if (found == nullptr) return misuse("post_recv: no such QP"), EINVAL;
  int error = gone(qp->context) ? EIO : 0;
  for (ibv_recv_wr* wr = list; wr != nullptr; wr = wr->next) {
    if (error == 0) error = check_receive(*found, *wr);
    if (error != 0) {
      *bad = wr;
      break;
    }
    found->receives.push_back(
        {wr->wr_id, {wr->sg_list, wr->sg_list + wr->num_sge}, found->receives_posted++});
  }
  if (qp->state == IBV_QPS_ERR) flush(*found);
  work();
  serve_sleepers();
  return error;
}

}  // namespace sluice::verbs::fake
