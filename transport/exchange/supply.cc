// What peers ask of the exchange: who may, which keys they named, who waits, who is
// supplied. Every request was chosen by a peer: one of them costs no scan over the others.
#include <algorithm>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/exchange/exchange.h>

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

Counter wants_denied("exchange.wants_denied");
Counter wants_repeated("exchange.wants_repeated");

bool matches(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view pattern) {
    if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
    return name == pattern;
  });
}

}  // namespace

bool Exchange::allowed(const PeerEntry* peer, const KeyEntry* entry, uint64_t step, KeyAccess access) const {
  const bool listed = matches(access == KeyAccess::kWant ? peer->rights.may_want : peer->rights.may_supply, entry->name);
  return listed && (!options_.allow || options_.allow(peer->info, {entry->name, step}, access));
}

// The key that the request names, or named before. Null: it is refused with `refusal`.
NamedKey* Exchange::name_key(PeerEntry* peer, const WantRequest& request, Code& refusal) {
  auto found = peer->peer_keys.find(request.key_id);
  if (request.key.empty()) {
    // Named to an exchange before us: the asker says the name with its next request.
    refusal = Code::kTryAgain;
    return found != peer->peer_keys.end() ? &found->second : nullptr;
  }
  if (request.key.size() > kMaxKeyBytes) {
    refusal = Code::kInvalidArgument;
    return nullptr;
  }
  if (found == peer->peer_keys.end()) {
    if (peer->peer_keys.size() >= kOwnKeys && !peer->core->peer_account()->charge(PeerResource::kKeys).ok()) {
      refusal = Code::kTryAgain;
      return nullptr;
    }
    found = peer->peer_keys.try_emplace(request.key_id).first;
  } else if (found->second.entry->name == request.key) {
    return &found->second;
  } else {
    // The peer counts from the start again, or lies; what it wanted before still waits.
    --found->second.entry->named_by_peers;
    drop_if_unused(found->second.entry);
  }
  NamedKey& named = found->second;
  named.entry = find_or_make(request.key);
  ++named.entry->named_by_peers;
  named.may_want = matches(peer->rights.may_want, named.entry->name);
  return &named;
}

void Exchange::forget_names(PeerEntry* peer) {
  for (auto& [id, named] : peer->peer_keys) {
    --named.entry->named_by_peers;
    drop_if_unused(named.entry);
  }
  const size_t names = peer->peer_keys.size();
  if (names > kOwnKeys) peer->core->peer_account()->refund(PeerResource::kKeys, names - kOwnKeys);
  peer->peer_keys.clear();
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
  if (!named->may_want || (options_.allow && !options_.allow(peer->info, {entry->name, request.step}, KeyAccess::kWant))) {
    wants_denied.add();
    (void)endpoint.refuse_want(request.token, Code::kAccessDenied);
    return;
  }
  for (PublicationRecord* record : entry->published) {
    if (record->step != request.step) continue;
    if (request.into && !request.layout.same_layout(record->tensor.descriptor())) {
      (void)endpoint.refuse_want(request.token, Code::kInvalidArgument);
      return;
    }
    if (record->has_room()) {
      supply(peer, request.token, request.into, record);
      return;
    }
  }
  if (entry->is_over(request.step)) {
    (void)endpoint.refuse_want(request.token, Code::kWrongState);
    return;
  }
  auto [place, added] = peer->waiting.try_emplace(request.token);
  if (!added) {
    wants_repeated.add();
    (void)endpoint.refuse_want(request.token, Code::kInvalidArgument);
    return;
  }
  WaitingWant& want = place->second;
  want = {.peer = peer, .entry = entry, .token = request.token, .step = request.step, .into = request.into, .layout = request.layout};
  WantList& list = entry->waiting[request.step];
  want.previous = list.last;
  (list.last != nullptr ? list.last->next : list.first) = &want;
  list.last = &want;
}

bool Exchange::on_want_cancelled(EndpointCore& endpoint, uint64_t token) noexcept {
  PeerEntry* peer = find_peer(endpoint);
  if (peer == nullptr) return false;
  auto found = peer->waiting.find(token);
  if (found == peer->waiting.end()) return false;
  take_waiting(&found->second);
  return true;
}

// Out of its list and its table: `want` is gone.
void Exchange::take_waiting(WaitingWant* want) {
  KeyEntry* entry = want->entry;
  auto list = entry->waiting.find(want->step);
  (want->previous != nullptr ? want->previous->next : list->second.first) = want->next;
  (want->next != nullptr ? want->next->previous : list->second.last) = want->previous;
  if (list->second.first == nullptr) entry->waiting.erase(list);
  want->peer->waiting.erase(want->token);
  drop_if_unused(entry);
}

void Exchange::forget_wants(PeerEntry* peer, bool answer) {
  while (!peer->waiting.empty()) {
    WaitingWant* want = &peer->waiting.begin()->second;
    const uint64_t token = want->token;
    take_waiting(want);
    if (answer) (void)peer->core->refuse_want(token, Code::kTryAgain);
  }
}

// Supplies those who asked early, as many as there is room for: peers, then this program.
void Exchange::answer_waiting(PublicationRecord* record) {
  while (record->has_room()) {
    auto list = record->entry->waiting.find(record->step);
    if (list == record->entry->waiting.end()) break;
    WaitingWant* want = list->second.first;
    PeerEntry* peer = want->peer;
    const uint64_t token = want->token;
    const bool into = want->into;
    const bool fits = !into || want->layout.same_layout(record->tensor.descriptor());
    take_waiting(want);
    if (fits) {
      supply(peer, token, into, record);
    } else {
      (void)peer->core->refuse_want(token, Code::kInvalidArgument);
    }
  }
  // The last local reader ends the publication, and a coroutine may then recycle its record.
  const KeyEntry* entry = record->entry;
  const uint64_t step = record->step;
  for (FetchRecord* fetch = first_fetch_; fetch != nullptr;) {
    FetchRecord* next = fetch->next;
    if (fetch->entry == entry && fetch->step == step && fetch->from == nullptr) deliver_locally(fetch);
    fetch = next;
  }
}

// The step has ended: requests that wait for it can never be answered.
void Exchange::refuse_waiting(KeyEntry* entry, uint64_t step) {
  for (auto list = entry->waiting.find(step); list != entry->waiting.end(); list = entry->waiting.find(step)) {
    WaitingWant* want = list->second.first;
    EndpointCore& endpoint = *want->peer->core;
    const uint64_t token = want->token;
    take_waiting(want);
    (void)endpoint.refuse_want(token, Code::kWrongState);
  }
}

void Exchange::supply(PeerEntry* peer, uint64_t token, bool into, PublicationRecord* record) {
  ++record->loans;
  PostOptions options;
  options.sink = record;
  // A view is used in place: it is the reader's for longer than a transfer takes.
  const bool view = !into && peer->views;
  const Duration limit = view ? options_.view_timeout : options_.supply_timeout;
  options.deadline = limit > Duration(0) ? after(context_.now(), limit) : kNever;
  Result<OperationId> posted = peer->core->post_supply(token, record->tensor, options);
  if (posted.ok()) return;
  --record->loans;
  (void)peer->core->refuse_want(token, posted.code());
}

}  // namespace sluice
