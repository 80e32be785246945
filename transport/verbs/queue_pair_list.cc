// How requests reach the device: they wait in a list that goes out by one call, with one
// doorbell. A message sends the list off at once, itself at its end; what moves memory or
// changes windows waits for the next message, for the end of the step, or for a full list.
#include <algorithm>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/verbs/queue_pair.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/queue_pair";

Counter doorbells("verbs.doorbells");

}  // namespace

// Requires: a free request. Owns record.temporary, also on failure; then the connection is of no
// use.
Status QueuePair::post(const ibv_send_wr& request, const Record& record) {
  const auto pieces = static_cast<size_t>(request.num_sge);
  if (listed_ == list_.size() || listed_pieces_ + pieces > list_pieces_.size()) {
    if (Status flushed = flush(); !flushed.ok()) {
      if (record.temporary != nullptr) (void)api_.dereg_mr(record.temporary);
      return flushed;
    }
  }
  ibv_send_wr& listed = list_[listed_++];
  listed = request;
  listed.wr_id = head_;
  listed.sg_list = list_pieces_.data() + listed_pieces_;
  std::copy_n(request.sg_list, pieces, listed.sg_list);
  listed_pieces_ += pieces;
  if ((listed.send_flags & IBV_SEND_SIGNALED) == 0 && ++unsignaled_ >= kSignalEvery)
    listed.send_flags |= IBV_SEND_SIGNALED;
  if ((listed.send_flags & IBV_SEND_SIGNALED) != 0) unsignaled_ = 0;
  records_[head_ % depth_] = record;
  ++head_;
  return Status();
}

Status QueuePair::flush() {
  if (listed_ == 0) return Status();
  const size_t count = std::exchange(listed_, 0);
  listed_pieces_ = 0;
  for (size_t i = 0; i < count; ++i) list_[i].next = i + 1 < count ? &list_[i + 1] : nullptr;
  ibv_send_wr* bad = nullptr;
  int error = api_.post_send(qp_, list_.data(), &bad);
  doorbells.add();
  size_t posted = count;
  if (error != 0) {
    posted = 0;
    while (posted < count && bad != nullptr && bad != &list_[posted]) ++posted;
    if (posted == count) posted = 0;  // it names none of ours
  }
  // Soft-RoCE looks a window up by the key that it has here when its bind is posted.
  for (size_t i = 0; i < posted; ++i) {
    if (list_[i].opcode == IBV_WR_BIND_MW) list_[i].bind_mw.mw->rkey = list_[i].bind_mw.rkey;
  }
  if (error == 0) return Status();
  take_back(head_ - (count - posted));
  Status why(Code::kInternal, Scope::kEndpoint, kOrigin, "the device refuses a request", error);
  fail(why);
  return why;
}

// The device never saw these: nothing comes back for them, and nothing is to be waited for.
void QueuePair::take_back(uint64_t first) {
  for (uint64_t sequence = first; sequence != head_; ++sequence) {
    Record record = std::exchange(records_[sequence % depth_], Record{.over = true});
    if (record.temporary != nullptr) (void)api_.dereg_mr(record.temporary);
  }
  head_ = first;
}

void QueuePair::drop_list() {
  take_back(head_ - std::exchange(listed_, 0));
  listed_pieces_ = 0;
}

}  // namespace sluice::verbs
