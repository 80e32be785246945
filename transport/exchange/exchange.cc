// Publishing and supplying; fetching is in fetch.cc.
#include <sluice/exchange/exchange.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>

#include "transport/exchange/records.h"

namespace sluice {

using internal::FetchRecord;
using internal::KeyEntry;
using internal::PeerEntry;
using internal::PublicationRecord;
using internal::WaitingWant;

namespace {

constexpr const char* kOrigin = "exchange";
Counter keys_refused("exchange.keys_refused");
Counter stable_bytes_copied("exchange.stable_bytes_copied");

Status invalid(const std::string& why) { return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, why); }

std::string quoted(const KeyEntry* entry, uint64_t step) { return "'" + entry->name + "' step " + std::to_string(step); }

}  // namespace

Exchange::Exchange(Context& context) : context_(context) { context_.add_hook(this); }

Exchange::~Exchange() {
  context_.remove_hook(this);
  for (auto& peer : peers_) peer->core->set_want_handler(nullptr);
  while (first_fetch_ != nullptr) {
    FetchRecord* record = first_fetch_;
    record->cancel_asks();
    Completion ended;
    ended.status = Status(Code::kCancelled, Scope::kOperation, kOrigin, "the exchange is gone");
    finish(record, std::move(ended));
  }
  for (KeyEntry* entry : keys_by_id_) {
    while (!entry->published.empty()) end_publication(entry->published.back());
  }
  // What a handle or an endpoint still refers to looks after itself from here on.
  for (auto& record : fetches_) {
    record->exchange = nullptr;
    if (record->handle || !record->asks.empty()) (void)record.release();
  }
  for (auto& record : publications_) {
    record->exchange = nullptr;
    if (record->handle || record->loans > 0) (void)record.release();
  }
}

void Exchange::add(const Endpoint& endpoint) {
  auto peer = std::make_unique<PeerEntry>();
  peer->core = endpoint.shared();
  PeerEntry* raw = peer.get();
  peers_.push_back(std::move(peer));
  // Requests that came before are delivered from inside this call.
  raw->core->set_want_handler(this);
  for (FetchRecord* record = first_fetch_; record != nullptr;) {
    FetchRecord* next = record->next;
    if (record->from == nullptr && record->asks.empty()) ask(record, raw);
    record = next;
  }
}

void Exchange::remove(const Endpoint& endpoint) {
  endpoint.core().set_want_handler(nullptr);
  on_endpoint_closed(endpoint.core(), Status(Code::kCancelled, Scope::kOperation, kOrigin, "the endpoint left the exchange"));
}

Result<KeyEntry*> Exchange::entry_for(std::string_view name) {
  auto found = keys_.find(name);
  if (found != keys_.end()) return found->second.get();
  if (name.empty() || name.size() > kMaxKeyBytes) return invalid("a key has 1 to 255 bytes, not " + std::to_string(name.size()));
  if (keys_.size() >= kMostKeys) {
    keys_refused.add();
    return Status(Code::kTryAgain, Scope::kOperation, kOrigin, "65536 keys are in use; use steps instead of new names");
  }
  auto entry = std::make_unique<KeyEntry>();
  entry->name = name;
  entry->id = static_cast<uint32_t>(keys_by_id_.size());
  KeyEntry* raw = entry.get();
  keys_by_id_.push_back(raw);
  keys_.emplace(raw->name, std::move(entry));
  return raw;
}

Result<Publication> Exchange::publish(const Key& key, Tensor tensor, const PublishOptions& options) {
  if (options.readers == 0 || options.readers < until_retired) return invalid("a publication has at least one reader, or until_retired");
  SLUICE_TRY(KeyEntry * entry, entry_for(key.name));
  for (PublicationRecord* other : entry->published) {
    if (other->step == key.step) return invalid(quoted(entry, key.step) + " is published already; retire it or use another step");
  }
  if (entry->is_over(key.step)) return invalid(quoted(entry, key.step) + " was published before and has ended; use another step");
  if (free_publications_.empty()) {
    publications_.push_back(std::make_unique<PublicationRecord>());
    free_publications_.push_back(publications_.back().get());
  }
  PublicationRecord* record = free_publications_.back();
  free_publications_.pop_back();
  record->exchange = this;
  record->entry = entry;
  record->step = key.step;
  record->tensor = std::move(tensor);
  record->readers = options.readers;
  record->readers_done = record->loans = 0;
  record->ended = false;
  record->handle = true;
  record->waiter = nullptr;
  entry->published.push_back(record);
  if (options.keep_steps >= 0 && key.step >= static_cast<uint64_t>(options.keep_steps)) {
    retire_below(entry, key.step - static_cast<uint64_t>(options.keep_steps));
  }
  // Those who asked early.
  for (size_t i = 0; i < entry->waiting.size();) {
    const WaitingWant& want = entry->waiting[i];
    bool room = record->readers < 0 || record->readers_done + record->loans < record->readers;
    if (want.step != key.step || !room) {
      ++i;
      continue;
    }
    PeerEntry* peer = want.peer;
    uint64_t token = want.token;
    bool fits = !want.into || want.layout.same_layout(record->tensor.descriptor());
    entry->waiting.erase(entry->waiting.begin() + static_cast<long>(i));
    if (fits) {
      supply(peer, token, record);
    } else {
      (void)peer->core->refuse_want(token, Code::kInvalidArgument);
    }
  }
  for (FetchRecord* fetch = first_fetch_; fetch != nullptr;) {
    FetchRecord* next = fetch->next;
    if (fetch->entry == entry && fetch->step == key.step && fetch->from == nullptr) deliver_locally(fetch);
    fetch = next;
  }
  return Publication(record);
}

void Exchange::supply(PeerEntry* peer, uint64_t token, PublicationRecord* record) {
  ++record->loans;
  PostOptions options;
  options.sink = record;
  options.deadline = kNever;  // the loan ends with its reader
  Result<OperationId> posted = peer->core->post_supply(token, record->tensor, options);
  if (posted.ok()) return;
  --record->loans;
  (void)peer->core->refuse_want(token, posted.code());
}

void PublicationRecord::on_completion(Completion&& completion) noexcept {
  --loans;
  if (completion.status.ok()) ++readers_done;
  Exchange* owner = exchange;
  if (owner == nullptr) {
    // The exchange is gone: its publications have ended, and this one may be awaited still.
    if (loans > 0) return;
    if (waiter) return std::exchange(waiter, nullptr).resume();
    if (!handle) delete this;
    return;
  }
  if (!ended && readers > 0 && readers_done >= readers) {
    owner->end_publication(this);
    return;
  }
  if (!ended && !completion.status.ok()) {
    // The place of a reader that failed is free for one who waits.
    for (size_t i = 0; i < entry->waiting.size(); ++i) {
      if (entry->waiting[i].step != step) continue;
      PeerEntry* peer = entry->waiting[i].peer;
      uint64_t token = entry->waiting[i].token;
      entry->waiting.erase(entry->waiting.begin() + static_cast<long>(i));
      owner->supply(peer, token, this);
      return;
    }
  }
  owner->maybe_release(this);
}

// Takes it out of the table. Requests that still wait for it can never be answered.
void Exchange::end_publication(PublicationRecord* record) {
  KeyEntry* entry = record->entry;
  record->ended = true;
  std::erase(entry->published, record);
  entry->lately_ended[entry->ended_count++ % entry->lately_ended.size()] = record->step;
  for (size_t i = 0; i < entry->waiting.size();) {
    if (entry->waiting[i].step != record->step) {
      ++i;
      continue;
    }
    (void)entry->waiting[i].peer->core->refuse_want(entry->waiting[i].token, Code::kWrongState);
    entry->waiting.erase(entry->waiting.begin() + static_cast<long>(i));
  }
  maybe_release(record);
}

void Exchange::maybe_release(PublicationRecord* record) {
  if (!record->finished()) return;
  if (record->waiter) {
    std::exchange(record->waiter, nullptr).resume();
    return;
  }
  if (record->handle) return;
  record->tensor = Tensor();
  free_publications_.push_back(record);
}

void Exchange::retire_below(KeyEntry* entry, uint64_t step) {
  entry->gone_below = std::max(entry->gone_below, step);
  for (size_t i = 0; i < entry->published.size();) {
    if (entry->published[i]->step < step) {
      end_publication(entry->published[i]);
    } else {
      ++i;
    }
  }
  for (size_t i = 0; i < entry->waiting.size();) {
    if (entry->waiting[i].step < step) {
      (void)entry->waiting[i].peer->core->refuse_want(entry->waiting[i].token, Code::kWrongState);
      entry->waiting.erase(entry->waiting.begin() + static_cast<long>(i));
    } else {
      ++i;
    }
  }
}

Publication::~Publication() {
  if (record_ == nullptr) return;
  record_->handle = false;
  record_->waiter = nullptr;
  // Recycled, or nobody else's any more.
  if (record_->exchange != nullptr) {
    record_->exchange->maybe_release(record_);
  } else if (record_->loans == 0) {
    delete record_;
  }
}

void Publication::retire() {
  if (record_ != nullptr && record_->exchange != nullptr && !record_->ended) record_->exchange->end_publication(record_);
}

int Publication::readers_done() const { return record_->readers_done; }
bool Publication::ready() const { return record_->finished(); }
Tensor Publication::take() { return std::move(record_->tensor); }
void Publication::await_suspend(std::coroutine_handle<> waiter) noexcept { record_->waiter = waiter; }

void Exchange::on_want(EndpointCore& endpoint, const WantRequest& request) noexcept {
  PeerEntry* peer = nullptr;
  for (auto& candidate : peers_) {
    if (candidate->core.get() == &endpoint) peer = candidate.get();
  }
  if (peer == nullptr) return;
  if (!request.key.empty()) {
    Result<KeyEntry*> entry = entry_for(request.key);
    if (!entry.ok()) {
      (void)endpoint.refuse_want(request.token, entry.code());
      return;
    }
    if (peer->peer_keys.size() <= request.key_id) peer->peer_keys.resize(request.key_id + 1, nullptr);
    peer->peer_keys[request.key_id] = *entry;
  }
  KeyEntry* entry = request.key_id < peer->peer_keys.size() ? peer->peer_keys[request.key_id] : nullptr;
  if (entry == nullptr) {
    // Named to an exchange before us: the asker says the name with its next request.
    (void)endpoint.refuse_want(request.token, Code::kTryAgain);
    return;
  }
  for (PublicationRecord* record : entry->published) {
    if (record->step != request.step) continue;
    if (request.into && !request.layout.same_layout(record->tensor.descriptor())) {
      (void)endpoint.refuse_want(request.token, Code::kInvalidArgument);
      return;
    }
    if (record->readers < 0 || record->readers_done + record->loans < record->readers) {
      supply(peer, request.token, record);
      return;
    }
  }
  if (entry->is_over(request.step)) {
    (void)endpoint.refuse_want(request.token, Code::kWrongState);
    return;
  }
  entry->waiting.push_back({peer, request.token, request.step, request.into, request.layout});
}

bool Exchange::on_want_cancelled(EndpointCore& endpoint, uint64_t token) noexcept {
  for (KeyEntry* entry : keys_by_id_) {
    size_t removed = std::erase_if(entry->waiting, [&](const WaitingWant& want) {
      return want.token == token && want.peer->core.get() == &endpoint;
    });
    if (removed > 0) return true;
  }
  return false;
}

void Exchange::on_endpoint_closed(EndpointCore& endpoint, const Status&) noexcept {
  auto found = std::find_if(peers_.begin(), peers_.end(), [&](const auto& peer) { return peer->core.get() == &endpoint; });
  if (found == peers_.end()) return;
  PeerEntry* peer = found->get();
  for (KeyEntry* entry : keys_by_id_) {
    std::erase_if(entry->waiting, [&](const WaitingWant& want) { return want.peer == peer; });
    if (entry->home == peer) entry->home = nullptr;
  }
  // Its asks have ended (the endpoint completes everything first), or are cancelled now.
  for (FetchRecord* record = first_fetch_; record != nullptr; record = record->next) {
    for (FetchRecord::Ask& ask : record->asks) {
      if (ask.peer != peer) continue;
      (void)endpoint.cancel(ask.id);
      ask.peer = nullptr;
    }
  }
  peers_.erase(found);
}

Result<Delivery<Tensor>> Exchange::acquire_stable(const Tensor& tensor) {
  Delivery<Tensor> delivery{tensor, {}};
  delivery.receipt.bytes = tensor.size_bytes();
  if (!tensor.owned_by_peer()) return delivery;
  SLUICE_TRY(Buffer copy, context_.arena().allocate(std::max<size_t>(tensor.size_bytes(), 1)));
  std::memcpy(copy.data(), tensor.data(), tensor.size_bytes());
  stable_bytes_copied.add(tensor.size_bytes());
  delivery.receipt.copied_bytes = tensor.size_bytes();
  const TensorDescriptor& d = tensor.descriptor();
  SLUICE_TRY(TensorDescriptor layout, TensorDescriptor::strided(d.shape(), d.strides(), d.dtype(), 0));
  delivery.value = Tensor(copy.storage(), layout);
  return delivery;
}

}  // namespace sluice
