// Peers, keys and publications; answers to peers are in supply.cc, fetching in fetch.cc.
#include <sluice/exchange/exchange.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/runtime/identity.h>
#include <sluice/wire/messages.h>

#include "transport/exchange/records.h"

namespace sluice {

using internal::FetchRecord;
using internal::KeyEntry;
using internal::PeerEntry;
using internal::PublicationRecord;

namespace {

constexpr const char* kOrigin = "exchange";
Counter keys_refused("exchange.keys_refused");
Counter stable_bytes_copied("exchange.stable_bytes_copied");

Status invalid(const std::string& why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, why);
}

std::string quoted(const KeyEntry* entry, uint64_t step) {
  return "'" + entry->name + "' step " + std::to_string(step);
}

}  // namespace

Exchange::Exchange(Context& context, ExchangeOptions options)
    : context_(context), options_(std::move(options)) {
  fill_random(std::as_writable_bytes(std::span(&secret_, 1)));
  idle_until_ = kNever;
  context_.add_hook(this);
}

Exchange::~Exchange() {
  context_.remove_hook(this);
  end_subscriptions();
  for (auto& peer : peers_) {
    peer->core->set_want_handler(nullptr);
    forget_wants(peer.get(), false);
    forget_names(peer.get());
  }
  while (first_fetch_ != nullptr) {
    FetchRecord* record = first_fetch_;
    record->cancel_asks();
    fail(record, Status(Code::kCancelled, Scope::kOperation, kOrigin, "the exchange is gone"));
  }
  for (KeyEntry* entry : keys_by_id_) {
    while (entry != nullptr && !entry->published.empty()) end_publication(entry->published.back());
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

Status Exchange::add(const Endpoint& endpoint, KeyRights rights) {
  if (!endpoint)
    return invalid(
        "an empty Endpoint cannot be added: it was moved from, closed, or never connected; connect "
        "again, and add() the new one");
  if (&endpoint.context() != &context_)
    return invalid(
        "the endpoint belongs to another Context than the exchange; add() it to an exchange there");
  SLUICE_RETURN_IF_ERROR(context_.check_process());
  auto refused = [&](const char* why) {
    return Status(Code::kWrongState, Scope::kOperation, kOrigin, why);
  };
  if (endpoint.core().want_handler() == static_cast<const WantHandler*>(this))
    return refused("the endpoint is in this exchange already; add() it once");
  if (endpoint.core().want_handler() != nullptr)
    return refused("the endpoint is in another exchange; remove() it there first");
  if (endpoint.state() != EndpointState::kConnected)
    return refused("the endpoint is closed; connect again, and add() the new one");
  if (spare_peers_.empty()) spare_peers_.push_back(std::make_unique<PeerEntry>(secret_));
  peers_.push_back(std::move(spare_peers_.back()));
  spare_peers_.pop_back();
  PeerEntry* raw = peers_.back().get();
  raw->core = endpoint.shared();
  raw->serial = next_serial_++;
  raw->rights = std::move(rights);
  raw->supplies_all = !options_.allow && std::count(raw->rights.may_supply.begin(),
                                                    raw->rights.may_supply.end(), "*") > 0;
  raw->info = endpoint.info();
  raw->tells_latest = raw->info.peer_tells_latest;
  raw->views = raw->info.path.capabilities.has(Capability::kViews);
  peers_by_core_[raw->core.get()] = raw;
  // Requests that came before are delivered from inside this call.
  raw->core->set_want_handler(this);
  internal::FetchWalk walk(walks_, first_fetch_, &FetchRecord::next);
  while (FetchRecord* record = walk.next()) {
    // A subscription has no deadline: whoever has it may have come only now.
    const bool anybody =
        record->subscription != nullptr && !record->latest && home_of(record->entry) == nullptr;
    const bool waits = record->asks.empty() || record->step == wire::kNextStep || anybody;
    if (record->from != nullptr || !waits) continue;
    ask(record, raw);
    fail_if_refused(record);
  }
  return Status();
}

void Exchange::remove(const Endpoint& endpoint) {
  if (!endpoint || context_.forked() ||
      endpoint.core().want_handler() != static_cast<const WantHandler*>(this))
    return;
  endpoint.core().set_want_handler(nullptr);
  if (PeerEntry* peer = find_peer(endpoint.core())) forget_wants(peer, true);
  on_endpoint_closed(endpoint.core(), Status(Code::kCancelled, Scope::kOperation, kOrigin,
                                             "the endpoint left the exchange"));
}

PeerEntry* Exchange::find_peer(const EndpointCore& endpoint) {
  if (last_peer_ != nullptr && last_peer_->core.get() == &endpoint) return last_peer_;
  auto found = peers_by_core_.find(&endpoint);
  return found != peers_by_core_.end() ? last_peer_ = found->second : nullptr;
}

PeerEntry* Exchange::home_of(const KeyEntry* entry) const {
  const bool there = entry->home != nullptr && entry->home->serial == entry->home_serial;
  return there ? entry->home : nullptr;
}

// Requires: 1 to 255 bytes.
KeyEntry* Exchange::find_or_make(std::string_view name) {
  auto found = keys_.find(name);
  if (found != keys_.end()) return found->second.get();
  auto entry = std::make_unique<KeyEntry>();
  entry->name = name;
  KeyEntry* raw = entry.get();
  keys_.emplace(raw->name, std::move(entry));
  return raw;
}

// By all of the name: those of a model often differ by one digit in the middle. Words overlap at
// the end of the name.
KeyEntry*& Exchange::recent(std::string_view name) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;  // 2^64 by the golden ratio: no bit is alone
  const char* const data = name.data();
  const size_t size = name.size();
  auto word = [data]<typename Word>(size_t at, Word value) -> uint64_t {
    std::memcpy(&value, data + at, sizeof value);
    return value;
  };
  uint64_t mixed = size;
  if (size >= 8) {
    for (size_t at = 0; at + 8 < size; at += 8) mixed = (mixed ^ word(at, uint64_t{})) * kFactor;
    mixed ^= word(size - 8, uint64_t{});
  } else if (size >= 4) {
    mixed ^= word(0, uint32_t{}) << 32 | word(size - 4, uint32_t{});
  } else {
    mixed ^= word(0, uint8_t{}) << 16 | word(size / 2, uint8_t{}) << 8 | word(size - 1, uint8_t{});
  }
  static_assert(std::tuple_size_v<decltype(recent_)> == 256);
  return recent_[mixed * kFactor >> 56];
}

// A key of our own.
Result<KeyEntry*> Exchange::entry_for(std::string_view name) {
  if (name.empty() || name.size() > kMaxKeyBytes)
    return invalid("a key has 1 to 255 bytes, not " + std::to_string(name.size()));
  KeyEntry*& last = recent(name);
  if (last != nullptr && last->name == name) return last;
  auto found = keys_.find(name);
  KeyEntry* entry = found != keys_.end() ? found->second.get() : nullptr;
  if (entry != nullptr && entry->id != internal::kNoKeyId) return last = entry;
  const bool full = free_ids_.empty() && keys_by_id_.size() >= kMostKeys;
  if (full && first_idle_ != nullptr && first_idle_ != entry) {
    forget(first_idle_);
  } else if (full) {
    keys_refused.add();
    return Status(Code::kTryAgain, Scope::kOperation, kOrigin,
                  "65536 keys have publications or fetches; use steps instead of new names");
  }
  if (entry == nullptr) entry = find_or_make(name);
  if (free_ids_.empty()) {
    free_ids_.push_back(static_cast<uint32_t>(keys_by_id_.size()));
    keys_by_id_.push_back(nullptr);
  }
  entry->id = free_ids_.back();
  free_ids_.pop_back();
  keys_by_id_[entry->id] = entry;
  add_idle(entry);
  return last = entry;
}

void Exchange::add_idle(KeyEntry* entry) {
  entry->idle_next = nullptr;
  entry->idle_previous = last_idle_;
  (last_idle_ != nullptr ? last_idle_->idle_next : first_idle_) = entry;
  last_idle_ = entry;
  ++idle_keys_;
}

void Exchange::remove_idle(KeyEntry* entry) {
  (entry->idle_previous != nullptr ? entry->idle_previous->idle_next : first_idle_) =
      entry->idle_next;
  (entry->idle_next != nullptr ? entry->idle_next->idle_previous : last_idle_) =
      entry->idle_previous;
  --idle_keys_;
}

// A publication or a fetch refers to it from now on.
void Exchange::use(KeyEntry* entry) {
  if (entry->uses++ == 0) remove_idle(entry);
}

void Exchange::end_use(KeyEntry* entry) {
  if (--entry->uses > 0) return;
  add_idle(entry);
  if (idle_keys_ > kIdleKeys) forget(first_idle_);
}

// Its id is for the next new name: peers are told that one with its first request.
void Exchange::forget(KeyEntry* entry) {
  remove_idle(entry);
  for (auto& peer : peers_) {
    if (entry->id < peer->named.size()) peer->named[entry->id] = false;
  }
  if (KeyEntry*& last = recent(entry->name); last == entry) last = nullptr;
  keys_by_id_[entry->id] = nullptr;
  free_ids_.push_back(entry->id);
  entry->id = internal::kNoKeyId;
  drop_if_unused(entry);
}

// A key that only peers have named goes with the last of them.
void Exchange::drop_if_unused(KeyEntry* entry) {
  if (entry->id == internal::kNoKeyId && entry->named_by_peers == 0 && entry->waiting.empty())
    keys_.erase(keys_.find(entry->name));
}

Result<Publication> Exchange::publish(const Key& key, Tensor tensor,
                                      const PublishOptions& options) {
  SLUICE_RETURN_IF_ERROR(context_.check_process());
  if (options.readers == 0 || options.readers < until_retired)
    return invalid("a publication has at least one reader, or until_retired");
  if (options.keep_steps < -1)
    return invalid("keep_steps is a number of steps from 0 on, or -1 for all, not " +
                   std::to_string(options.keep_steps));
  if (key.step > kLastStep)
    return invalid("steps go up to 2^64 - 3; the two above ask for the latest one in a fetch");
  SLUICE_TRY(KeyEntry * entry, entry_for(key.name));
  for (PublicationRecord* other : entry->published) {
    if (other->step == key.step)
      return invalid(quoted(entry, key.step) +
                     " is published already; retire it or use another step");
  }
  if (entry->is_over(key.step))
    return invalid(quoted(entry, key.step) +
                   " was published before and has ended; use another step");
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
  record->readers_done = record->readers_lost = record->loans = 0;
  record->deadline = options.deadline;
  record->ended = false;
  record->handle = true;
  record->waiter = nullptr;
  use(entry);
  entry->published.push_back(record);
  if (options.deadline != kNever) {
    record->overdue = overdue_.emplace(options.deadline, record);
    idle_until_ = std::min(idle_until_, options.deadline);
  }
  if (options.keep_steps >= 0 && key.step >= static_cast<uint64_t>(options.keep_steps)) {
    retire_below(entry, key.step - static_cast<uint64_t>(options.keep_steps));
  }
  answer_waiting(record);
  return Publication(record);
}

void PublicationRecord::on_completion(Completion&& completion) noexcept {
  --loans;
  ++(completion.status.ok() ? readers_done : readers_lost);
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
    owner->answer_waiting(this);  // a waiting reader gets the failed one's place
    return;
  }
  owner->maybe_release(this);
}

// Takes it out of the table. Requests that still wait for it can never be answered.
void Exchange::end_publication(PublicationRecord* record) {
  KeyEntry* entry = record->entry;
  record->ended = true;
  if (record->host) record->host = Tensor();
  std::erase(entry->published, record);
  if (record->deadline != kNever) overdue_.erase(record->overdue);
  entry->ended.add(record->step);
  refuse_waiting(entry, record->step);
  // A subscription of our own may have asked for it in vain.
  if (entry->first_fetch != nullptr && !subscriptions_.empty()) look_soon();
  maybe_release(record);
}

size_t Exchange::retire_overdue(Instant now) {
  size_t ended = 0;
  while (!overdue_.empty() && overdue_.begin()->first <= now) {
    end_publication(overdue_.begin()->second);
    ++ended;
  }
  if (!overdue_.empty()) idle_until_ = std::min(idle_until_, overdue_.begin()->first);
  return ended;
}

void Exchange::maybe_release(PublicationRecord* record) {
  if (!record->finished()) return;
  if (record->waiter) {
    std::exchange(record->waiter, nullptr).resume();
    return;
  }
  if (record->handle) return;
  record->tensor = Tensor();
  end_use(record->entry);
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
  while (std::optional<uint64_t> low = entry->waiting.any_below(step)) refuse_waiting(entry, *low);
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
  if (record_ == nullptr || record_->exchange == nullptr || record_->ended ||
      record_->exchange->context_.forked())
    return;
  record_->exchange->end_publication(record_);
}

// An empty handle has no readers, and nothing to wait for.
int Publication::readers_done() const { return record_ != nullptr ? record_->readers_done : 0; }
int Publication::readers_lost() const { return record_ != nullptr ? record_->readers_lost : 0; }
bool Publication::ready() const { return record_ == nullptr || record_->finished(); }
Tensor Publication::take() { return record_ != nullptr ? std::move(record_->tensor) : Tensor(); }
void Publication::await_suspend(std::coroutine_handle<> waiter) noexcept {
  record_->waiter = waiter;
}

void Exchange::on_endpoint_closed(EndpointCore& endpoint, const Status&) noexcept {
  PeerEntry* peer = find_peer(endpoint);
  if (peer == nullptr) return;
  forget_wants(peer, false);
  forget_names(peer);
  // Its asks have ended (the endpoint completes everything first), or are cancelled now; among them
  // those of fetches that another one has answered.
  for (size_t i = 0; i < fetches_.size() && peer->asks > 0; ++i) {
    for (FetchRecord::Ask& ask : fetches_[i]->asks) {
      if (ask.peer != peer) continue;
      (void)endpoint.cancel(ask.id);
      ask.peer = nullptr;
      --peer->asks;
    }
  }
  peers_by_core_.erase(&endpoint);
  last_peer_ = nullptr;
  auto place = std::find_if(peers_.begin(), peers_.end(),
                            [&](const auto& candidate) { return candidate.get() == peer; });
  peer->serial = 0;
  peer->named.clear();
  peer->core = nullptr;  // perhaps the last reference
  spare_peers_.push_back(std::move(*place));
  peers_.erase(place);
}

Result<Delivery<Tensor>> Exchange::acquire_stable(const Tensor& tensor) {
  Delivery<Tensor> delivery{tensor, {}};
  delivery.receipt.bytes = tensor.size_bytes();
  if (!tensor.owned_by_peer()) return delivery;
  SLUICE_TRY(Buffer copy, context_.arena().allocate(std::max<size_t>(tensor.size_bytes(), 1)));
  std::memcpy(copy.data(), tensor.data(), tensor.size_bytes());
  stable_bytes_copied.add(tensor.size_bytes());
  delivery.receipt.copied_bytes = tensor.size_bytes();
  delivery.value = Tensor(copy.storage(), tensor.descriptor().at_start());
  return delivery;
}

}  // namespace sluice
