// Completion queues and their channels: arming, events, overruns, and what a completion
// says.
#include <errno.h>

#include "tests/verbs/fake_fabric.h"

namespace sluice::verbs::fake {
namespace {

ibv_wc_opcode opcode_of(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
    case IBV_WR_LOCAL_INV: return IBV_WC_LOCAL_INV;
    case IBV_WR_BIND_MW: return IBV_WC_BIND_MW;
    default: return IBV_WC_SEND;
  }
}

// On an error only wr_id, status, qp_num and vendor_err mean anything (ibv_poll_cq(3)).
void spoil(ibv_wc& completion) {
  completion.opcode = static_cast<ibv_wc_opcode>(0xa5);
  completion.byte_len = 0xdeadbeef;
  completion.imm_data = 0xdeadbeef;
  completion.src_qp = 0xdead;
  completion.wc_flags = IBV_WC_WITH_IMM | IBV_WC_GRH;
  completion.vendor_err = 0x80 + static_cast<uint32_t>(completion.status);
}

}  // namespace

ibv_comp_channel* Fabric::create_comp_channel(ibv_context* context) {
  Context* found = context_of(context, "create_comp_channel");
  if (found == nullptr || found->device->removed) return errno = EIO, nullptr;
  auto channel = std::make_unique<Channel>();
  channel->base.context = context;
  channel->base.fd = channel->signal.fd();
  return &channels_.add(std::move(channel))->base;
}

int Fabric::destroy_comp_channel(ibv_comp_channel* channel) {
  if (channels_.find(channel) == nullptr)
    return misuse("destroy_comp_channel: no such channel, or destroyed before"), EINVAL;
  bool removed = gone(channel->context);
  if (channel->refcnt > 0 && !removed)
    return misuse("destroy_comp_channel: CQs still use it"), EBUSY;
  cqs_.each([&](Cq& cq) {
    if (cq.base.channel == channel) cq.base.channel = nullptr;
  });
  channels_.remove(channel);
  return removed ? EIO : 0;
}

ibv_cq* Fabric::create_cq(ibv_context* context, int entries, void* cq_context,
                          ibv_comp_channel* channel) {
  Context* found = context_of(context, "create_cq");
  if (found == nullptr) return errno = EINVAL, nullptr;
  if (found->device->removed) return errno = EIO, nullptr;
  const FakeDeviceOptions& limits = found->device->options;
  if (channel != nullptr && channels_.find(channel) == nullptr)
    return misuse("create_cq: no such channel"), errno = EINVAL, nullptr;
  if (entries <= 0 || entries > limits.max_cqe) return errno = EINVAL, nullptr;
  auto of_device = [&](const Cq& cq) { return cq.base.context->device == context->device; };
  if (cqs_.count(of_device) >= static_cast<size_t>(limits.max_cq)) return errno = ENOMEM, nullptr;
  auto cq = std::make_unique<Cq>();
  cq->base.context = context;
  cq->base.channel = channel;
  cq->base.cq_context = cq_context;
  cq->base.cqe = entries;
  if (channel != nullptr) ++channel->refcnt;
  return &cqs_.add(std::move(cq))->base;
}

int Fabric::destroy_cq(ibv_cq* cq) {
  Cq* found = cqs_.find(cq);
  if (found == nullptr) return misuse("destroy_cq: no such CQ, or destroyed before"), EINVAL;
  bool removed = gone(cq->context);
  if (!removed) {
    if (qps_.count([&](const Qp& qp) { return qp.base.send_cq == cq || qp.base.recv_cq == cq; }) >
        0) {
      return misuse("destroy_cq: QPs still use it"), EBUSY;
    }
    if (found->unacknowledged > 0)
      return misuse("destroy_cq: would hang, completion events are not acknowledged"), EBUSY;
    if (found->async_unacknowledged > 0)
      return misuse("destroy_cq: would hang, an asynchronous event is not acknowledged"), EBUSY;
  }
  if (Channel* channel = channels_.find(cq->channel)) {
    --channel->base.refcnt;
    std::erase_if(channel->events, [&](const Channel::Event& event) { return event.cq == cq; });
    show_events(*channel);
  }
  if (Context* context = contexts_.find(cq->context)) {
    std::erase_if(context->events, [&](const ibv_async_event& e) {
      return e.event_type == IBV_EVENT_CQ_ERR && e.element.cq == cq;
    });
    show_events(*context);
  }
  cqs_.remove(cq);
  return removed ? EIO : 0;
}

int Fabric::modify_cq(ibv_cq* cq, uint16_t count, uint16_t period_us) {
  if (cqs_.find(cq) == nullptr) return misuse("modify_cq: no such CQ"), EINVAL;
  if (gone(cq->context)) return EIO;
  if (!contexts_.find(cq->context)->device->options.moderation) return EOPNOTSUPP;
  moderations.emplace_back(count, period_us);
  return 0;
}

int Fabric::req_notify_cq(ibv_cq* cq) {
  Cq* found = cqs_.find(cq);
  if (found == nullptr) return misuse("req_notify_cq: no such CQ"), EINVAL;
  if (gone(cq->context)) return EIO;
  found->armed = true;
  return 0;
}

int Fabric::cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  Channel* found = channels_.find(channel);
  if (found == nullptr) return misuse("cq_event: no such channel"), EINVAL;
  if (gone(channel->context)) return EIO;
  tick();
  if (found->events.empty() || found->events.front().due > now_) {
    if (found->signal.blocking())
      misuse("cq_event: would block, the channel's fd is not O_NONBLOCK");
    return EAGAIN;
  }
  Cq* source = cqs_.find(found->events.front().cq);
  found->events.pop_front();
  ++source->unacknowledged;
  *cq = &source->base;
  *cq_context = source->base.cq_context;
  show_events(*found);
  return 0;
}

void Fabric::ack_cq_events(ibv_cq* cq, unsigned count) {
  Cq* found = cqs_.find(cq);
  if (found == nullptr) return misuse("ack_cq_events: no such CQ");
  if (found->unacknowledged < count) misuse("ack_cq_events: more than were taken");
  found->unacknowledged -= std::min<uint64_t>(count, found->unacknowledged);
}

int Fabric::poll_cq(ibv_cq* cq, int entries, ibv_wc* completions) {
  Cq* found = cqs_.find(cq);
  if (found == nullptr) return misuse("poll_cq: no such CQ"), -EINVAL;
  if (gone(cq->context)) return -EIO;
  tick();
  int limit = options.poll_limit > 0 ? std::min(entries, options.poll_limit) : entries;
  int taken = 0;
  while (taken < limit && !found->entries.empty()) {
    Cq::Entry& entry = found->entries.front();
    uint64_t& retired = entry.receive ? entry.qp->receives_retired : entry.qp->sends_retired;
    retired = std::max(retired, entry.index + 1);
    completions[taken++] = entry.completion;
    found->entries.pop_front();
  }
  found->asleep = taken == 0 && found->armed && options.sleeping_advances;
  if (found->asleep) sleep_until_arrival(*found);
  return taken;
}

void Fabric::show_events(Channel& channel) {
  channel.signal.show(!channel.events.empty() && channel.events.front().due <= now_);
}

// One event for each arming, and only for what arrives after it.
void Fabric::notify(Cq& cq) {
  Channel* channel = channels_.find(cq.base.channel);
  if (!cq.armed || channel == nullptr) return;
  cq.armed = false;
  if (faults.lose_cq_events > 0) {
    --faults.lose_cq_events;
    return;
  }
  late_ |= faults.late_cq_events > 0;
  channel->events.push_back({&cq.base, now_ + faults.late_cq_events});
  show_events(*channel);
}

void Fabric::late_events() {
  if (late_) channels_.each([this](Channel& channel) { show_events(channel); });
}

void Fabric::add_entry(Cq& cq, const Cq::Entry& entry) {
  if (cq.overrun) return;
  if (cq.entries.size() >= static_cast<size_t>(cq.base.cqe)) return overrun(cq);
  cq.entries.push_back(entry);
  cq.asleep = false;
  notify(cq);
}

void Fabric::complete(Cq& cq, Cq::Entry entry) {
  ibv_wc& completion = entry.completion;
  completion.qp_num = entry.qp->base.qp_num;
  if (completion.status != IBV_WC_SUCCESS) spoil(completion);
  bool twice = faults.change_completion(entry.receive, completion);
  add_entry(cq, entry);
  if (twice) add_entry(cq, entry);
}

// An overrun queue is unusable, and with it every QP that reports to it (ibv_poll_cq(3)).
void Fabric::overrun(Cq& cq) {
  misuse("CQ overrun: more completions than its " + std::to_string(cq.base.cqe) + " entries");
  cq.overrun = true;
  raise_cq(&cq.base, IBV_EVENT_CQ_ERR);
  for (auto& [number, qp] : by_number_) {
    if (qp->base.send_cq != &cq.base && qp->base.recv_cq != &cq.base) continue;
    raise_qp(number, IBV_EVENT_QP_FATAL);
    to_error(*qp);
  }
}

void Fabric::complete_send(Qp& qp, const SendWork& work, ibv_wc_status status) {
  if (status == IBV_WC_SUCCESS && !work.signaled) return;
  ibv_wc completion{};
  completion.wr_id = work.wr.wr_id;
  completion.status = status;
  completion.opcode = opcode_of(work.wr.opcode);
  for (const ibv_sge& sge : work.sges) completion.byte_len += sge.length;
  complete(*cqs_.find(qp.base.send_cq), {completion, &qp, false, work.index});
}

void Fabric::complete_receive(Qp& qp, const ReceiveWork& work, ibv_wc completion) {
  completion.wr_id = work.wr_id;
  complete(*cqs_.find(qp.base.recv_cq), {completion, &qp, true, work.index});
}

}  // namespace sluice::verbs::fake
