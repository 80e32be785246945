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
  binds_listed_ = binds_listed_ || request.opcode == IBV_WR_BIND_MW;
  std::copy_n(request.sg_list, pieces, places);
  this->record(head_) = record;
  end_request(*listed);
  return Status();
}

bool QueuePair::ring_doorbell() {
  const size_t count = std::exchange(listed_, 0);
  listed_pieces_ = 0;
  list_[count - 1].next = nullptr;
  ibv_send_wr* bad = nullptr;
  const int error = api_.post_send(qp_, list_.data(), &bad);
  doorbells.add();
  if (error != 0) [[unlikely]] {
    refused(count, bad, error);
  } else if (binds_listed_) {
    say_bound(count);
  }
  return error == 0;
}

// Soft-RoCE looks a window up by the key that it has here when its bind is posted.
void QueuePair::say_bound(size_t posted) {
  binds_listed_ = false;
  for (size_t i = 0; i < posted; ++i) {
    if (list_[i].opcode == IBV_WR_BIND_MW) list_[i].bind_mw.mw->rkey = list_[i].bind_mw.rkey;
  }
}

// Those before `bad` are posted.
void QueuePair::refused(size_t count, const ibv_send_wr* bad, int error) {
  size_t posted = 0;
  while (posted < count && bad != nullptr && bad != &list_[posted]) ++posted;
  if (posted == count) posted = 0;  // it names none of ours
  say_bound(posted);
  take_back(head_ - (count - posted));
  fail(Status(Code::kInternal, Scope::kEndpoint, kOrigin, "the device refuses a request", error));
}

// Whether one registration holds all of it: most memory is in few of them, so the last one that was
// found is looked at first, without the registrar's lock.
bool QueuePair::in_one_region(const std::byte* data, uint64_t length, ibv_sge& piece) {
  const auto start = reinterpret_cast<uint64_t>(data);
  const uint64_t removals = device_.registrar().removals();
  const bool found = start >= found_.start && start < found_.end && removals == found_.removals;
  if (!found && !find_region(start, removals)) return false;
  piece = {.addr = start, .length = static_cast<uint32_t>(length), .lkey = found_.key};
  return length <= found_.end - start;
}

bool QueuePair::find_region(uint64_t start, uint64_t removals) {
  const Registered found =
      device_.registrar().find(reinterpret_cast<const void*>(start), UINT64_MAX);
  if (found.mr == nullptr) return false;
  found_ = {
      .start = start, .end = start + found.length, .key = found.mr->lkey, .removals = removals};
  return true;
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
  binds_listed_ = false;
}

}  // namespace sluice::verbs
