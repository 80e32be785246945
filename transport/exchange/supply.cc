// What peers ask of the exchange: their rights, the keys they named, waiting requests and
// supplies. Peers choose the requests, so no request costs a scan over the others.
#include <algorithm>
#include <utility>

#include <sluice/allocator/device_storage.h>
#include <sluice/base/counters.h>
#include <sluice/exchange/exchange.h>
#include <sluice/runtime/peer_account.h>
#include <sluice/spi/endpoint_core.h>
#include <sluice/wire/messages.h>

#include "transport/exchange/records.h"

namespace sluice {

using internal::FetchRecord;
using internal::KeyEntry;
using internal::NamedKey;
using internal::PeerEntry;
using internal::PublicationRecord;
using internal::WaitingWant;
using internal::WantList;

namespace {

// Names that each endpoint may have before its peer's account is charged: an honest one goes
// on while another of the same peer has filled the account.
constexpr size_t kOwnKeys = 64;
// Records of requests that are kept for the next ones: a dataflow that waits for so many
// tensors at once allocates nothing.
constexpr size_t kMostSpares = 1024;

Counter wants_denied("exchange.wants_denied");
Counter wants_repeated("exchange.wants_repeated");

bool matches(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view pattern) {
    if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
    return name == pattern;
  });
}

}  // namespace

bool Exchange::may_supply(const PeerEntry* peer, const KeyEntry* entry, uint64_t step) const {
  if (peer->supplies_all) return true;
  if (step > kLastStep) step = kLatest;
  return matches(peer->rights.may_supply, entry->name) &&
         (!options_.allow || options_.allow(peer->info, {entry->name, step}, KeyAccess::kSupply));
}

// The key that the request names, or named before. Null: it is refused with `refusal`.
NamedKey* Exchange::name_key(PeerEntry* peer, const WantRequest& request, Code& refusal) {
  NamedKey* named = peer->peer_keys.find(request.key_id);
  if (request.key.empty()) {
    // Named to an exchange before us: the asker says the name with its next request.
    refusal = Code::kTryAgain;
    return named;
  }
  if (request.key.size() > kMaxKeyBytes) {
    refusal = Code::kInvalidArgument;
    return nullptr;
  }
  if (named == nullptr) {
    if (peer->names.size() >= kOwnKeys &&
        !peer->core->peer_account()->charge(PeerResource::kKeys).ok()) {
      refusal = Code::kTryAgain;
      return nullptr;
    }
    named = peer->names.emplace_back(std::make_unique<NamedKey>()).get();
    peer->peer_keys.insert(named, request.key_id);
  } else if (named->entry->name == request.key) {
    return named;
  } else {
    // The peer counts from the start again, or lies; what it wanted before still waits.
    --named->entry->named_by_peers;
    drop_if_unused(named->entry);
  }
  named->entry = find_or_make(request.key);
  ++named->entry->named_by_peers;
  named->may_want = matches(peer->rights.may_want, named->entry->name);
  return named;
}

void Exchange::forget_names(PeerEntry* peer) {
  for (auto& named : peer->names) {
    --named->entry->named_by_peers;
    drop_if_unused(named->entry);
  }
  const size_t names = peer->names.size();
  if (names > kOwnKeys) peer->core->peer_account()->refund(PeerResource::kKeys, names - kOwnKeys);
  peer->peer_keys.clear();
  peer->names.clear();
}

void Exchange::on_want(EndpointCore& endpoint, const WantRequest& request) noexcept {
  PeerEntry* peer = find_peer(endpoint);
  if (peer == nullptr) return;
  Code refusal{};
  const NamedKey* named = name_key(peer, request, refusal);
  if (named == nullptr) {
    (void)endpoint.refuse_want(request.token, refusal);
    return;
  }
  KeyEntry* entry = named->entry;
  const bool which = request.step > kLastStep;
  if (!named->may_want ||
      (options_.allow && !options_.allow(peer->info, {entry->name, which ? kLatest : request.step},
                                         KeyAccess::kWant))) {
    wants_denied.add();
    (void)endpoint.refuse_want(request.token, Code::kAccessDenied);
    return;
  }
  if (which) return on_step_question(peer, entry, request);
  for (PublicationRecord* record : entry->published) {
    if (record->step != request.step) continue;
    const bool fits = !request.into || request.layout.same_layout(record->tensor.descriptor());
    if (record->has_room()) {
      // The asker refuses an offer that does not fit, and knows from it what there is.
      supply(peer, request.token, request.into, record);
      return;
    }
    if (!fits) {
      (void)endpoint.refuse_want(request.token, Code::kInvalidArgument);
      return;
    }
  }
  if (entry->is_over(request.step)) {
    (void)endpoint.refuse_want(request.token, Code::kWrongState);
    return;
  }
  keep_waiting(peer, entry, request);
}

void Exchange::keep_waiting(PeerEntry* peer, KeyEntry* entry, const WantRequest& request) {
  if (peer->waiting.find(request.token) != nullptr) {
    wants_repeated.add();
    (void)peer->core->refuse_want(request.token, Code::kInvalidArgument);
    return;
  }
  if (spare_wants_.empty()) spare_wants_.push_back(std::make_unique<WaitingWant>());
  WaitingWant* want = spare_wants_.back().release();
  spare_wants_.pop_back();
  want->peer = peer;
  want->entry = entry;
  want->token = request.token;
  want->step = request.step;
  want->into = request.into;
  peer->waiting.insert(want, request.token);
  want->next_of_peer = peer->first_waiting;
  want->previous_of_peer = nullptr;
  if (peer->first_waiting != nullptr) peer->first_waiting->previous_of_peer = want;
  peer->first_waiting = want;
  WantList* list = entry->waiting.find_or_make(request.step, spare_steps_);
  want->list = list;
  want->next = nullptr;
  want->previous = list->last;
  (list->last != nullptr ? list->last->next : list->first) = want;
  list->last = want;
}

bool Exchange::on_want_cancelled(EndpointCore& endpoint, uint64_t token) noexcept {
  PeerEntry* peer = find_peer(endpoint);
  if (peer == nullptr) return false;
  WaitingWant* want = peer->waiting.find(token);
  if (want == nullptr) return false;
  take_waiting(want);
  return true;
}

// Out of its lists: `want` is gone.
void Exchange::take_waiting(WaitingWant* want) {
  std::unique_ptr<WaitingWant> owner(want);
  KeyEntry* entry = want->entry;
  WantList* list = want->list;
  (want->previous != nullptr ? want->previous->next : list->first) = want->next;
  (want->next != nullptr ? want->next->previous : list->last) = want->previous;
  if (list->first == nullptr) entry->waiting.end(list, want->step, spare_steps_, kMostSpares);
  PeerEntry* peer = want->peer;
  (want->previous_of_peer != nullptr ? want->previous_of_peer->next_of_peer : peer->first_waiting) =
      want->next_of_peer;
  if (want->next_of_peer != nullptr) want->next_of_peer->previous_of_peer = want->previous_of_peer;
  peer->waiting.remove(want);
  if (spare_wants_.size() < kMostSpares) spare_wants_.push_back(std::move(owner));
  drop_if_unused(entry);
}

void Exchange::forget_wants(PeerEntry* peer, bool answer) {
  while (WaitingWant* want = peer->first_waiting) {
    const uint64_t token = want->token;
    take_waiting(want);
    if (answer) (void)peer->core->refuse_want(token, Code::kTryAgain);
  }
}

// Supplies those who asked early, as many as there is room for: peers, then this program.
void Exchange::answer_waiting(PublicationRecord* record) {
  while (record->has_room()) {
    WantList* list = record->entry->waiting.find(record->step);
    if (list == nullptr) break;
    WaitingWant* want = list->first;
    PeerEntry* peer = want->peer;
    const uint64_t token = want->token;
    const bool into = want->into;
    take_waiting(want);
    supply(peer, token, into, record);  // also what does not fit: the asker learns what there is
  }
  KeyEntry* entry = record->entry;
  answer_step_questions(entry);
  if (entry->first_fetch == nullptr) return;
  // The last local reader ends the publication, and a coroutine may then recycle its record.
  const uint64_t step = record->step;
  use(entry);
  internal::FetchWalk walk(walks_, entry->first_fetch, &FetchRecord::next_of_key);
  while (FetchRecord* fetch = walk.next()) {
    if (fetch->step == step && fetch->from == nullptr) {
      deliver_locally(fetch);
    } else if (fetch->step == wire::kNextStep && fetch->from == nullptr) {
      if (PublicationRecord* newest = entry->newest()) deliver_local(fetch, newest);
    }
  }
  end_use(entry);
}

// The step has ended: requests that wait for it can never be answered.
void Exchange::refuse_waiting(KeyEntry* entry, uint64_t step) {
  while (WantList* list = entry->waiting.find(step)) {
    WaitingWant* want = list->first;
    EndpointCore& endpoint = *want->peer->core;
    const uint64_t token = want->token;
    take_waiting(want);
    (void)endpoint.refuse_want(token, Code::kWrongState);
  }
}

// One copy out of device memory does for all readers.
Status Exchange::copy_for_hosts(PublicationRecord* record) {
  if (record->host) return Status();
  SLUICE_TRY(record->host, copy_to_host(context_.arena(), record->tensor));
  return Status();
}

void Exchange::supply(PeerEntry* peer, uint64_t token, bool into, PublicationRecord* record) {
  ++record->loans;
  PostOptions options;
  options.sink = record;
  // A view is used in place: it is the reader's for longer than a transfer takes.
  const bool view = !into && peer->views;
  const Duration limit = view ? options_.view_timeout : options_.supply_timeout;
  options.deadline = limit > Duration(0) ? after(context_.now(), limit) : kNever;
  // A connection that has broken reaches nothing, and takes nothing.
  const bool by_host = record->tensor.in_device_memory() &&
                       peer->core->state() == EndpointState::kConnected &&
                       !peer->core->reaches(record->tensor);
  const Status ready = by_host ? copy_for_hosts(record) : Status();
  Result<OperationId> posted =
      ready.ok() ? peer->core->post_supply(token, by_host ? record->host : record->tensor, options)
                 : Result<OperationId>(ready);
  if (posted.ok()) return;
  --record->loans;
  (void)peer->core->refuse_want(token, posted.code());
}

}  // namespace sluice
