// What arrives here was chosen by the peer.
#include <sluice/proto/want_table.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <sluice/base/counters.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

// Requests that each connection may have waiting before its peer's account is charged, so that an
// honest connection goes on while another one of the same peer has filled the account.
constexpr uint32_t kOwnWants = 64;

Counter wants_refused("session.wants_refused_table_full");

}  // namespace

void WantTable::set_handler(WantHandler* handler) {
  handler_ = handler;
  if (handler == nullptr) return;
  std::vector<Early> early;
  for (auto& [token, want] : early_) early.push_back(std::move(want));
  early_.clear();
  std::sort(early.begin(), early.end(),
            [](const Early& a, const Early& b) { return a.order < b.order; });
  for (Early& want : early) {
    want.request.key = want.key;
    handler->on_want(endpoint_, want.request);
  }
}

Result<OperationId> WantTable::post_supply(uint64_t token, const Tensor& tensor,
                                           const PostOptions& options) {
  SLUICE_RETURN_IF_ERROR(connection_.check_connected());
  SLUICE_TRY(Operation * op, operations_.take(OperationKind::kSupply, options));
  op->level = Level::kConsumed;
  op->peer_id = token;
  op->total = tensor.size_bytes();
  op->completion.receipt.bytes = op->total;
  op->tensors.emplace_back(tensor);
  operations_.index_by_peer_id(op);
  end_one();
  OperationId id = op->id;
  if (!transfer_.start_supply(op, token)) sends_.start_or_queue(op);
  return id;
}

Status WantTable::refuse(uint64_t token, Code code) {
  SLUICE_RETURN_IF_ERROR(connection_.check_connected());
  end_one();
  transfer_.drop_want_windows(token);
  control_.send_done(token, code, 0);
  return Status();
}

Status WantTable::on_want(const wire::Want& want) {
  const wire::KeyWant about = want.about.key();
  if (about.key_id >= kMaxKeyIds) return corrupt("WANT with a key id of 65536 or more");
  if (want.segment_count > 0) SLUICE_RETURN_IF_ERROR(transfer_.check_want_windows(want));
  WantRequest request;
  request.token = want.id;
  request.key_id = about.key_id;
  request.key = want.key;
  request.step = about.step;
  request.into = want.into;
  if (want.has_layout) request.layout = want.layout;
  const bool placed = take_place();
  if (placed && want.segment_count > 0) transfer_.keep_want_windows(want);
  SLUICE_RETURN_IF_ERROR(pass_on(request, placed));
  for (size_t i = 0; i < want.following.size() && !connection_.over(); ++i) {
    request.token = want.following[i];
    ++request.step;
    SLUICE_RETURN_IF_ERROR(pass_on(request, take_place()));
  }
  return Status();
}

Status WantTable::pass_on(const WantRequest& request, bool placed) {
  if (!placed) {
    wants_refused.add();
    control_.send_done(request.token, Code::kTryAgain, 0);
    return Status();
  }
  if (handler_ == nullptr) return keep_early(request);
  handler_->on_want(endpoint_, request);
  return Status();
}

bool WantTable::take_place() {
  if (waiting_ >= connection_.options.want_limit) return false;
  if (waiting_ >= kOwnWants && !connection_.account->charge(PeerResource::kWants).ok())
    return false;
  ++waiting_;
  return true;
}

// A request of the peer is answered, refused or given up.
void WantTable::end_one() {
  if (waiting_ == 0) return;
  if (--waiting_ >= kOwnWants) connection_.account->refund(PeerResource::kWants);
}

Status WantTable::keep_early(const WantRequest& request) {
  auto [place, added] = early_.try_emplace(request.token);
  if (!added) return corrupt("two WANTs at once with one id");
  place->second = {.order = early_order_++, .request = request, .key = std::string(request.key)};
  return Status();
}

void WantTable::on_given_up(uint64_t token) {
  if (handler_ != nullptr && handler_->on_want_cancelled(endpoint_, token)) end_one();
  if (early_.erase(token) > 0) end_one();
  transfer_.on_want_given_up(token);
}

void WantTable::clear() {
  early_.clear();
  while (waiting_ > 0) end_one();
}

void WantTable::tell_closed(const Status& why) {
  if (WantHandler* handler = std::exchange(handler_, nullptr))
    handler->on_endpoint_closed(endpoint_, why);
}

}  // namespace sluice::proto
