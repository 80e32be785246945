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
  ibv_send_wr* listed = begin_request(pieces);
  if (listed == nullptr) {
    if (record.temporary != nullptr) (void)api_.dereg_mr(record.temporary);
    return failure_.why;
  }
  ibv_sge* const places = listed->sg_list;
  *listed = request;
  listed->sg_list = places;
  std::copy_n(request.sg_list, pieces, places);
  this->record(head_) = record;
  end_request(*listed);
  return Status();
}

// The place of the next request in the list, with sg_list and num_sge: the rest is to be filled in
// there, and so is record(head_). Then end_request(). Null: what was there was refused, and the
// connection is of no use.
ibv_send_wr* QueuePair::begin_request(size_t pieces) {
  if (listed_ == list_.size() || listed_pieces_ + pieces > list_pieces_.size()) {
    if (!flush().ok()) return nullptr;
  }
  ibv_send_wr& request = list_[listed_];
  request.sg_list = list_pieces_.data() + listed_pieces_;
  request.num_sge = static_cast<int>(pieces);
  return &request;
}

void QueuePair::end_request(ibv_send_wr& request) {
  request.wr_id = head_;
  if ((request.send_flags & IBV_SEND_SIGNALED) == 0 && ++unsignaled_ >= kSignalEvery)
    request.send_flags |= IBV_SEND_SIGNALED;
  if ((request.send_flags & IBV_SEND_SIGNALED) != 0) unsignaled_ = 0;
  listed_pieces_ += static_cast<size_t>(request.num_sge);
  ++listed_;
  ++head_;
}

// Requires: some are listed.
Status QueuePair::ring_doorbell() {
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
    const Record dropped = std::exchange(record(sequence), Record{.over = true});
    if (dropped.temporary != nullptr) (void)api_.dereg_mr(dropped.temporary);
  }
  head_ = first;
}

void QueuePair::drop_list() {
  take_back(head_ - std::exchange(listed_, 0));
  listed_pieces_ = 0;
}

}  // namespace sluice::verbs
