// Fetches of kLatest: a question to each endpoint, which step there is, then the fetch of the
// newest. And the answers to such questions of peers.
#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/exchange/exchange.h>
#include <sluice/spi/endpoint_core.h>
#include <sluice/wire/messages.h>

#include "transport/exchange/records.h"

namespace sluice {

using internal::FetchRecord;
using internal::KeyEntry;
using internal::PeerEntry;
using internal::PublicationRecord;
using internal::WaitingWant;
using internal::WantList;
using wire::kNewestStep;
using wire::kNextStep;

static_assert(kLatest == kNewestStep && kLastStep == kNextStep - 1);

namespace {

constexpr const char* kOrigin = "exchange";

// What a peer told; kLatest: nothing that can be used. The bytes are the peer's: read once.
uint64_t told_step(const Completion& completion) {
  if (!completion.status.ok() || !completion.tensor) return kLatest;
  const TensorDescriptor& layout = completion.tensor.descriptor();
  if (layout.dtype() != uint64 || completion.tensor.size_bytes() != sizeof(uint64_t))
    return kLatest;
  uint64_t step;
  std::memcpy(&step, completion.tensor.data(), sizeof(step));
  return step <= kLastStep ? step : kLatest;
}

}  // namespace

void Exchange::fail(FetchRecord* record, Status why) {
  Completion failed;
  failed.status = std::move(why);
  finish(record, std::move(failed));
}

void Exchange::refuse_latest(FetchRecord* record) {
  fail(record, Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                      "the peer is of an older version, which cannot tell the latest step of '" +
                          record->entry->name + "'; upgrade it, or fetch a step by its number"));
}

// One endpoint, and nothing of our own: its answer can wait until there is a step. Several are
// asked for what they have now, or the first to answer would win with an old step.
void Exchange::start_latest(FetchRecord* record) {
  size_t able = 0, older = 0;
  for (const auto& peer : peers_) {
    const bool asked = record->from == nullptr || record->from == peer->core.get();
    if (!asked || !may_supply(peer.get(), record->entry, kLatest)) continue;
    if (peer->can_tell()) ++able;
    if (!peer->tells_latest) ++older;
  }
  const bool own = record->from == nullptr && record->entry->newest() != nullptr;
  if (able == 0 && older > 0 && !own) return refuse_latest(record);
  ask_which(record, able == 1 && !own ? kNextStep : kNewestStep);
  if (record->asks.empty()) choose_latest(record, record->status);
}

void Exchange::ask_which(FetchRecord* record, uint64_t question) {
  record->step = question;
  record->best = nullptr;
  record->status = Status();
  for (size_t i = 0; i < peers_.size(); ++i) {
    PeerEntry* peer = peers_[i].get();
    if (record->from == nullptr || record->from == peer->core.get()) ask(record, peer);
  }
}

// `from` is null if its endpoint has left the exchange.
void Exchange::on_latest_answer(FetchRecord* record, PeerEntry* from, Completion&& completion) {
  if (record->step <= kLastStep) {
    const Status& status = completion.status;
    if (status.ok()) {
      if (from != nullptr) {
        record->entry->home = from;
        record->entry->home_serial = from->serial;
      }
      return finish(record, std::move(completion));
    }
    // Retired while it was fetched, or its publisher is gone and others may have it.
    const bool retired = status.code() == Code::kWrongState && status.scope() == Scope::kOperation;
    const bool gone = from == nullptr || status.code() == Code::kUnreachable ||
                      from->core->state() != EndpointState::kConnected;
    const bool others = record->from == nullptr && peers_.size() > 1;
    if (!record->cancelled && (retired || (gone && others))) return start_latest(record);
    return fail(record, record->explain(status, from != nullptr ? from->core.get() : nullptr));
  }
  const uint64_t told = told_step(completion);
  if (told != kLatest && from != nullptr && (record->best == nullptr || told > record->best_step)) {
    record->best = from;
    record->best_serial = from->serial;
    record->best_step = told;
  }
  if (!record->asks.empty()) {
    // The first to publish is taken. The others' requests end by progress.
    if (record->best != nullptr && record->step == kNextStep) record->cancel_asks();
    return;
  }
  if (record->step == kNextStep && completion.status.ok() && told == kLatest) {
    return fail(record, Status(Code::kCorrupt, Scope::kOperation, kOrigin,
                               "the peer was asked for the latest step of '" + record->entry->name +
                                   "' and did not answer with one; upgrade it"));
  }
  const EndpointCore* asked = from != nullptr ? from->core.get() : nullptr;
  choose_latest(record, completion.status.ok() ? completion.status
                                               : record->explain(completion.status, asked));
}

// All that were asked have answered; `last` is what one of them ended with.
void Exchange::choose_latest(FetchRecord* record, Status last) {
  if (record->cancelled) {
    return fail(record,
                Status(Code::kCancelled, Scope::kOperation, kOrigin, "cancelled by the caller"));
  }
  PublicationRecord* own = record->from == nullptr ? record->entry->newest() : nullptr;
  const bool gone = record->best != nullptr &&
                    (record->best->serial != record->best_serial || !record->best->can_tell());
  if (gone) return start_latest(record);
  if (record->best != nullptr && (own == nullptr || record->best_step > own->step)) {
    record->step = record->best_step;
    ask(record, record->best);
    if (record->asks.empty()) fail(record, Status(record->status));
    return;
  }
  if (own != nullptr) return deliver_local(record, own);
  if (record->step == kNewestStep) {
    ask_which(record, kNextStep);
    if (!record->asks.empty()) return;
  }
  const Status why = record->status.ok() ? last : record->status;
  if (!why.ok()) return fail(record, why);
  if (record->from != nullptr) {
    return fail(record, Status(Code::kWrongState, Scope::kOperation, kOrigin,
                               record->quoted() + ": the endpoint to fetch from is closed; connect "
                                                  "again, and add() the new one"));
  }
  idle_until_ = std::min(idle_until_, record->deadline);  // until an endpoint is added
}

// A peer asks which step there is.
void Exchange::on_step_question(PeerEntry* peer, KeyEntry* entry, const WantRequest& request) {
  if (request.into) {
    (void)peer->core->refuse_want(request.token, Code::kInvalidArgument);
    return;
  }
  const PublicationRecord* newest = entry->newest();
  if (newest != nullptr || request.step == kNewestStep) {
    tell_step(peer, request.token, newest != nullptr ? newest->step : kNewestStep);
  } else {
    keep_waiting(peer, entry, request);
  }
}

// Something was published under the key, or a place became free.
void Exchange::answer_step_questions(KeyEntry* entry) {
  while (const WantList* list = entry->waiting.find(kNextStep)) {
    const PublicationRecord* newest = entry->newest();
    if (newest == nullptr) return;
    WaitingWant* want = list->first;
    PeerEntry* peer = want->peer;
    const uint64_t token = want->token;
    take_waiting(want);
    tell_step(peer, token, newest->step);
  }
}

void Exchange::tell_step(PeerEntry* peer, uint64_t token, uint64_t step) {
  Result<Buffer> word = context_.allocate({1}, uint64);
  Code code = word.code();
  if (word.ok()) {
    word->as<uint64_t>()[0] = step;
    PostOptions options;
    const Duration limit = options_.supply_timeout;
    options.deadline = limit > Duration(0) ? after(context_.now(), limit) : kNever;
    code = peer->core->post_supply(token, std::move(*word).freeze(), options).code();
  }
  if (code != Code::kOk) (void)peer->core->refuse_want(token, code);
}

}  // namespace sluice
