#include "tests/verbs/fake_responder.h"

#include <string.h>

#include <atomic>

namespace sluice::verbs::fake {
namespace {

bool writes(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool with_immediate(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

template <typename Span>
void copy(std::vector<Span> from, std::vector<Span> to) {
  size_t f = 0, t = 0;
  while (f < from.size() && t < to.size()) {
    uint64_t n = std::min(from[f].length, to[t].length);
    if (n > 0 && from[f].data != nullptr && to[t].data != nullptr)
      ::memmove(to[t].data, from[f].data, n);
    for (auto* span : {&from[f], &to[t]}) {
      if (span->data != nullptr) span->data += n;
      span->length -= n;
    }
    if (from[f].length == 0) ++f;
    if (t < to.size() && to[t].length == 0) ++t;
  }
}

}  // namespace

uint64_t Responder::length() const {
  uint64_t sum = 0;
  for (const ibv_sge& sge : work_.sges) sum += sge.length;
  return sum;
}

std::vector<Responder::Span> Responder::source() const {
  if ((work_.wr.send_flags & IBV_SEND_INLINE) != 0)
    return {{work_.inline_data.data(), work_.inline_data.size()}};
  std::vector<Span> spans;
  for (const ibv_sge& sge : work_.sges) {
    spans.push_back({fabric_.local_bytes(sge.lkey, sge.addr), sge.length});
  }
  return spans;
}

ibv_wc_status Responder::fail(ibv_wc_status told, ibv_event_type event) {
  fabric_.raise_qp(qp_.base.qp_num, event);
  fabric_.to_error(qp_);
  return told;
}

bool Responder::needs_receive() const {
  return work_.wr.opcode == IBV_WR_SEND || work_.wr.opcode == IBV_WR_SEND_WITH_INV ||
         with_immediate(work_.wr.opcode);
}

// Both ends must cut a message into packets of the same size.
bool Responder::wrong_packets() const {
  ibv_mtu theirs = requester_.attributes.path_mtu, ours = qp_.attributes.path_mtu;
  return theirs != ours && length() > (128u << std::min(theirs, ours));
}

ibv_wc_status Responder::serve() {
  if (qp_.base.state == IBV_QPS_RTR && !qp_.reported) {
    qp_.reported = true;
    fabric_.raise_qp(qp_.base.qp_num, IBV_EVENT_COMM_EST);
  }
  ibv_wr_opcode opcode = work_.wr.opcode;
  unsigned rights = qp_.attributes.qp_access_flags;
  unsigned needed = 0;
  if (writes(opcode))
    needed = IBV_ACCESS_REMOTE_WRITE;
  else if (opcode == IBV_WR_RDMA_READ)
    needed = IBV_ACCESS_REMOTE_READ;
  else if (!needs_receive())
    needed = IBV_ACCESS_REMOTE_ATOMIC;
  if ((rights & needed) != needed || wrong_packets())
    return fail(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  if (needs_receive() && qp_.receives.empty()) {
    not_ready_ = true;
    return IBV_WC_SUCCESS;
  }
  fabric_.bytes_carried += length();
  if (writes(opcode)) return write();
  if (opcode == IBV_WR_RDMA_READ) return read();
  if (needed == IBV_ACCESS_REMOTE_ATOMIC) return atomic();
  return receive(true);
}

ibv_wc_status Responder::write() {
  uint64_t bytes = length();
  const auto& target = work_.wr.wr.rdma;
  if (bytes > 0 && !fabric_.remote_access(qp_, target.rkey, target.remote_addr, bytes,
                                          IBV_ACCESS_REMOTE_WRITE)) {
    return fail(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  }
  if (bytes > 0) {
    uint8_t* to = fabric_.remote_bytes(target.rkey, target.remote_addr);
    copy(source(), std::vector<Span>{{to, bytes}});
  }
  return with_immediate(work_.wr.opcode) ? receive(false) : IBV_WC_SUCCESS;
}

size_t Responder::reads_under_way() const {
  size_t n = 1;
  for (size_t i = 0; i < requester_.in_flight; ++i) n += requester_.sends[i].answer.empty() ? 0 : 1;
  return n;
}

ibv_wc_status Responder::read() {
  uint64_t bytes = length();
  const auto& target = work_.wr.wr.rdma;
  if (reads_under_way() > qp_.attributes.max_dest_rd_atomic)
    return fail(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  if (bytes == 0) return IBV_WC_SUCCESS;
  if (!fabric_.remote_access(qp_, target.rkey, target.remote_addr, bytes, IBV_ACCESS_REMOTE_READ)) {
    return fail(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  }
  work_.answer.resize(bytes);
  uint8_t* from = fabric_.remote_bytes(target.rkey, target.remote_addr);
  copy(std::vector<Span>{{from, bytes}}, std::vector<Span>{{work_.answer.data(), bytes}});
  return IBV_WC_SUCCESS;
}

ibv_wc_status Responder::atomic() {
  const auto& target = work_.wr.wr.atomic;
  bool able =
      fabric_.contexts_.find(qp_.base.context)->device->options.atomic_cap != IBV_ATOMIC_NONE;
  if (!able || reads_under_way() > qp_.attributes.max_dest_rd_atomic ||
      (target.remote_addr & 7) != 0) {
    return fail(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  }
  if (!fabric_.remote_access(qp_, target.rkey, target.remote_addr, 8, IBV_ACCESS_REMOTE_ATOMIC)) {
    return fail(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  }
  uint64_t old = 0;
  if (uint8_t* bytes = fabric_.remote_bytes(target.rkey, target.remote_addr)) {
    std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(bytes));
    if (work_.wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      old = word.fetch_add(target.compare_add);
    } else {
      old = target.compare_add;
      (void)word.compare_exchange_strong(old, target.swap);
    }
  }
  work_.answer.resize(sizeof(old));
  ::memcpy(work_.answer.data(), &old, sizeof(old));
  return IBV_WC_SUCCESS;
}

ibv_wc_status Responder::fail_receive(const ReceiveWork& taken, ibv_wc_status status,
                                      ibv_wc_status told) {
  ibv_wc completion{};
  completion.status = status;
  fabric_.complete_receive(qp_, taken, completion);
  fabric_.to_error(qp_);
  return told;
}

ibv_wc_status Responder::receive(bool place) {
  ReceiveWork taken = std::move(qp_.receives.front());
  qp_.receives.pop_front();
  ibv_wc_status planned = fabric_.faults.receive_fate();
  if (planned != IBV_WC_SUCCESS) return fail_receive(taken, planned, IBV_WC_REM_OP_ERR);
  uint64_t bytes = length();
  std::vector<Span> from = source();
  std::vector<uint8_t> rewritten;
  if (FakeFaults::Rewrite rewrite = place ? fabric_.faults.message_rewrite() : nullptr) {
    rewritten.resize(bytes);
    copy(std::move(from), std::vector<Span>{{rewritten.data(), rewritten.size()}});
    rewrite(rewritten);
    bytes = rewritten.size();
    from = {{rewritten.data(), rewritten.size()}};
  }
  if (place) {
    uint64_t room = 0;
    for (const ibv_sge& sge : taken.sges) room += sge.length;
    if (room < bytes) {
      fabric_.raise_qp(qp_.base.qp_num, IBV_EVENT_QP_REQ_ERR);
      return fail_receive(taken, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
    }
    std::vector<Span> to;
    for (const ibv_sge& sge : taken.sges) {
      if (!fabric_.local_access(qp_, sge, true, "receive"))
        return fail_receive(taken, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
      to.push_back({fabric_.local_bytes(sge.lkey, sge.addr), sge.length});
    }
    copy(std::move(from), std::move(to));
  }
  ibv_wc completion{};
  completion.status = IBV_WC_SUCCESS;
  completion.opcode = place ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  completion.byte_len = static_cast<uint32_t>(bytes);
  completion.src_qp = requester_.base.qp_num;
  if (with_immediate(work_.wr.opcode)) {
    completion.wc_flags = IBV_WC_WITH_IMM;
    completion.imm_data = work_.wr.imm_data;
  } else if (work_.wr.opcode == IBV_WR_SEND_WITH_INV) {
    if (fabric_.invalidate(qp_, work_.wr.invalidate_rkey) != IBV_WC_SUCCESS) {
      fabric_.raise_qp(qp_.base.qp_num, IBV_EVENT_QP_ACCESS_ERR);
      return fail_receive(taken, IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_ACCESS_ERR);
    }
    completion.wc_flags = IBV_WC_WITH_INV;
    completion.invalidated_rkey = work_.wr.invalidate_rkey;
  }
  fabric_.complete_receive(qp_, taken, completion);
  return IBV_WC_SUCCESS;
}

}  // namespace sluice::verbs::fake
