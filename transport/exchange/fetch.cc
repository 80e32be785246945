// Fetching: asking one or several endpoints, and what becomes of the answers.
#include <algorithm>
#include <utility>

#include <sluice/allocator/device_storage.h>
#include <sluice/base/counters.h>
#include <sluice/exchange/exchange.h>
#include <sluice/runtime/context_core.h>
#include <sluice/runtime/shared_copy.h>
#include <sluice/spi/endpoint_core.h>
#include <sluice/wire/messages.h>

#include "transport/exchange/records.h"

namespace sluice {

using internal::FetchRecord;
using internal::KeyEntry;
using internal::PeerEntry;
using internal::PublicationRecord;

namespace {
constexpr const char* kOrigin = "exchange";

Status failure(Code code, const std::string& why) {
  return Status(code, Scope::kOperation, kOrigin, why);
}

}  // namespace

std::string FetchRecord::quoted() const {
  if (entry == nullptr) return "the fetch";
  if (step > kLastStep) return "the latest step of '" + entry->name + "'";
  return "'" + entry->name + "' step " + std::to_string(step);
}

// The peer told a bare code, or did not answer in time.
Status FetchRecord::explain(const Status& ended, const EndpointCore* asked) const {
  switch (ended.code()) {
    case Code::kWrongState:
      if (ended.scope() == Scope::kEndpoint) return ended;
      return failure(Code::kWrongState, quoted() + " is retired at the peer; fetch a later step");
    case Code::kInvalidArgument:
      if (!into) return ended;
      return failure(Code::kInvalidArgument,
                     quoted() + " has another dtype or shape than the destination " +
                         destination.descriptor().to_string() + ": " + std::string(ended.detail()) +
                         "; give fetch_into a compact buffer of the published dtype and shape");
    case Code::kTimedOut:
      if (asked != nullptr && asked->info().peer_silent) {
        return failure(
            Code::kTimedOut,
            quoted() +
                ": nothing came from the peer for seconds; let its program call progress(), "
                "or start it again if it is gone");
      }
      return failure(Code::kTimedOut,
                     (step > kLastStep ? "no step of '" + entry->name + "' was published"
                                       : quoted() + " was not published") +
                         " before the deadline; check that its publisher runs and uses this name, "
                         "or wait longer");
    case Code::kAccessDenied:
      return failure(Code::kAccessDenied, "the peer does not let us have " + quoted() +
                                              "; allow it there (KeyRights::may_want or "
                                              "ExchangeOptions::allow)");
    case Code::kTryAgain:
      return failure(Code::kTryAgain, "the peer has no place for the request now; fetch again");
    default: return ended;
  }
}

Fetch Exchange::fetch(const Key& key, Instant deadline, const FetchOptions& options) {
  return Fetch(start_fetch(key, Buffer(), deadline, options));
}

FetchInto Exchange::fetch_into(const Key& key, Buffer destination, Instant deadline,
                               const FetchOptions& options) {
  return FetchInto(start_fetch(key, std::move(destination), deadline, options));
}

// A record among those that are not finished, of no key yet.
FetchRecord* Exchange::take_record(uint64_t step, Buffer destination, Instant deadline,
                                   EndpointCore* from) {
  if (free_fetches_.empty()) {
    fetches_.push_back(std::make_unique<FetchRecord>());
    free_fetches_.push_back(fetches_.back().get());
  }
  FetchRecord* record = free_fetches_.back();
  free_fetches_.pop_back();
  record->exchange = this;
  record->step = step;
  record->deadline = deadline;
  record->from = from;
  record->into = static_cast<bool>(destination);
  record->destination = std::move(destination);
  record->done = false;
  record->handle = true;
  record->latest = step == kLatest;
  record->cancelled = record->retired = record->asks_anew = false;
  record->waiter = nullptr;
  record->subscription = nullptr;
  record->status = Status();
  record->receipt = Receipt{.posted = context_.now()};
  record->previous = nullptr;
  record->next = first_fetch_;
  if (first_fetch_ != nullptr) first_fetch_->previous = record;
  first_fetch_ = record;
  return record;
}

FetchRecord* Exchange::start_fetch(const Key& key, Buffer destination, Instant deadline,
                                   const FetchOptions& options) {
  const bool from_one = options.from != nullptr;
  EndpointCore* from = from_one && *options.from ? &options.from->core() : nullptr;
  FetchRecord* record = take_record(key.step, std::move(destination), deadline, from);
  Result<KeyEntry*> entry =
      context_.forked() ? Result<KeyEntry*>(context_.check_process()) : entry_for(key.name);
  if (entry.ok() && key.step == wire::kNextStep)
    entry = failure(Code::kInvalidArgument,
                    "steps go up to 2^64 - 3; use kLatest to ask for the latest");
  record->entry = entry.ok() ? *entry : nullptr;
  if (!entry.ok()) {
    fail(record, entry.status());
    return record;
  }
  file_by_key(record);
  ask_first(record, from_one);
  return record;
}

// All that a new fetch is asked of: `record->from` alone, or whoever may have it.
void Exchange::ask_first(FetchRecord* record, bool from_one) {
  record->status = Status();
  if (from_one) {
    PeerEntry* peer = record->from != nullptr ? find_peer(*record->from) : nullptr;
    if (peer != nullptr) record->latest ? start_latest(record) : ask(record, peer);
    fail_if_refused(record);
    if (!record->asks.empty() || record->done) return;
    const bool closed =
        record->from == nullptr || record->from->state() != EndpointState::kConnected;
    fail(record,
         failure(Code::kWrongState,
                 record->quoted() +
                     (closed ? ": the endpoint to fetch from is closed; connect again, and add() "
                               "the new one"
                             : ": the endpoint to fetch from is not in the exchange; add() it "
                               "first")));
    return;
  }
  if (record->latest) return start_latest(record);
  if (deliver_locally(record)) return;
  if (PeerEntry* home = home_of(record->entry)) {
    ask(record, home);
  } else {
    for (size_t i = 0; i < peers_.size() && !record->done; ++i) ask(record, peers_[i].get());
  }
  fail_if_refused(record);
  // Asked endpoints watch the deadline; without any it is ours to watch.
  if (record->asks.empty()) idle_until_ = std::min(idle_until_, record->deadline);
}

void Exchange::file_by_key(FetchRecord* record) {
  use(record->entry);
  record->previous_of_key = nullptr;
  record->next_of_key = record->entry->first_fetch;
  if (record->next_of_key != nullptr) record->next_of_key->previous_of_key = record;
  record->entry->first_fetch = record;
}

// It is done; its key is in use until the record is recycled.
void Exchange::unfile(FetchRecord* record) {
  internal::FetchWalk::leaves(walks_, record);
  (record->previous != nullptr ? record->previous->next : first_fetch_) = record->next;
  if (record->next != nullptr) record->next->previous = record->previous;
  record->next = record->previous = nullptr;
  if (record->entry == nullptr) return;
  (record->previous_of_key != nullptr ? record->previous_of_key->next_of_key
                                      : record->entry->first_fetch) = record->next_of_key;
  if (record->next_of_key != nullptr)
    record->next_of_key->previous_of_key = record->previous_of_key;
  record->next_of_key = record->previous_of_key = nullptr;
}

// With the key's name, unless the peer has it.
WantOptions Exchange::want_of(const FetchRecord* record, PeerEntry* peer) {
  WantOptions want;
  want.key_id = record->entry->id;
  want.step = record->step;
  if (peer->named.size() <= want.key_id) peer->named.resize(want.key_id + 1, false);
  if (!peer->named[want.key_id]) want.key = record->entry->name;
  return want;
}

void Exchange::ask(FetchRecord* record, PeerEntry* peer) {
  const bool which = record->step > kLastStep;
  if (which && !peer->can_tell()) return;  // as if it were not there
  if (!may_supply(peer, record->entry, record->step)) {
    if (record->from == nullptr && (which || !record->latest)) return;  // as if it were not there
    record->status =
        failure(Code::kAccessDenied, record->quoted() +
                                         " may not come from this endpoint; allow it "
                                         "(KeyRights::may_supply or ExchangeOptions::allow)");
    return;
  }
  WantOptions want = want_of(record, peer);
  // One endpoint can fill the destination; asking several, the winner's tensor is copied.
  bool alone = record->from != nullptr ||
               (record->latest ? !which : home_of(record->entry) == peer || peers_.size() == 1);
  if (record->into && alone && !which && record->destination)
    want.destination = std::move(record->destination);
  PostOptions options;
  options.sink = record;
  options.user_data = record->next_serial;
  options.deadline = record->deadline;
  if (record->step == wire::kNewestStep)
    options.deadline = std::min(record->deadline, after(context_.now(), options_.latest_patience));
  Result<OperationId> posted = peer->core->post_want(want, options);
  if (!posted.ok()) {
    if (want.destination) record->destination = std::move(want.destination);
    if (record->asks.empty()) record->status = posted.status();
    return;
  }
  peer->named[want.key_id] = true;
  ++peer->asks;
  record->asks.emplace_back(FetchRecord::Ask{peer, *posted, record->next_serial++});
}

// Nobody could be asked: the last refusal is why. Of kLatest choose_latest() goes on.
void Exchange::fail_if_refused(FetchRecord* record) {
  const bool refused = !record->done && record->asks.empty() && !record->status.ok();
  if (refused && !record->latest) fail(record, Status(record->status));
}

// False: it is not published here, or its places are taken.
bool Exchange::deliver_locally(FetchRecord* record) {
  for (PublicationRecord* publication : record->entry->published) {
    if (publication->step != record->step) continue;
    if (!publication->has_room()) return false;
    if (record->into && !record->destination) {  // it comes back with the end of the request
      record->asks_anew = true;
      record->cancel_asks();
    } else {
      deliver_local(record, publication);
    }
    return true;
  }
  return false;
}

// Requires: it has room.
void Exchange::deliver_local(FetchRecord* record, PublicationRecord* publication) {
  Completion local;
  local.tensor = publication->tensor;
  local.receipt = record->receipt;
  local.receipt.path = Path::kLoopback;
  local.receipt.bytes = publication->tensor.size_bytes();
  local.receipt.completed = context_.now();
  record->step = publication->step;
  record->cancel_asks();
  record->retired = false;
  if (publication->readers > 0 && ++publication->readers_done >= publication->readers) {
    if (record->subscription != nullptr) {
      read_here_.push_back(publication);
      look_soon();
    } else {
      end_publication(publication);
    }
  }
  finish(record, std::move(local));
}

void FetchRecord::cancel_asks() {
  for (Ask& ask : asks) {
    if (ask.peer != nullptr) (void)ask.peer->core->cancel(ask.id);
  }
}

void FetchRecord::on_completion(Completion&& completion) noexcept {
  FetchRecord::Ask answered{};
  InlineVector<FetchRecord::Ask, 2> left;
  for (FetchRecord::Ask& ask : asks) {
    if (ask.serial == completion.user_data) {
      answered = ask;
    } else {
      left.emplace_back(ask);
    }
  }
  asks = std::move(left);
  // Whether the peer kept the key's name is not known: the next request says it again.
  bool known = exchange != nullptr && answered.peer != nullptr;
  if (known) --answered.peer->asks;
  if (known && !completion.status.ok()) answered.peer->named[entry->id] = false;
  if (done) {
    // One of several that were asked; the tensor goes back by itself.
    if (exchange != nullptr) {
      exchange->release(this);
    } else if (asks.empty() && !handle) {
      delete this;
    }
    return;
  }
  if (!completion.buffers.empty()) destination = std::move(completion.buffers[0]);
  if (std::exchange(asks_anew, false) && !completion.status.ok() && !cancelled)
    return exchange->ask_first(this, false);
  retired = completion.status.code() == Code::kWrongState &&
            completion.status.scope() == Scope::kOperation;
  if (latest) [[unlikely]]
    return exchange->on_latest_answer(this, answered.peer, std::move(completion));
  if (!completion.status.ok() && !asks.empty()) {
    if (!retired || subscription == nullptr) return;  // another endpoint may have it
    cancel_asks();
  }
  if (!completion.status.ok()) {
    const EndpointCore* asked = answered.peer != nullptr ? answered.peer->core.get() : nullptr;
    completion.status = explain(completion.status, asked);
  }
  if (completion.status.ok() && answered.peer != nullptr) {
    entry->home = answered.peer;
    entry->home_serial = answered.peer->serial;
    cancel_asks();
  }
  exchange->finish(this, std::move(completion));
}

void Exchange::finish(FetchRecord* record, Completion&& completion) {
  unfile(record);
  record->done = true;
  record->receipt = completion.receipt;
  record->tensor = std::move(completion.tensor);
  record->status = std::move(completion.status);
  // Several were asked, or it was published here: the destination is filled by a copy.
  if (record->status.ok() && record->into && record->tensor) {
    const TensorDescriptor& from = record->tensor.descriptor();
    bool fits = from.is_compact() && from.same_layout(record->destination.descriptor());
    const bool device = record->tensor.in_device_memory() || record->destination.in_device_memory();
    if (fits && device) {
      record->status = copy_device_bytes(record->destination, record->tensor);
      const bool both = record->tensor.in_device_memory() && record->destination.in_device_memory();
      record->receipt.copied_bytes += record->tensor.size_bytes() * (both ? 2 : 1);
    } else if (fits) {
      size_t bytes = record->tensor.size_bytes();
      ContextCore& core = ContextCore::of(context_);
      copy_shared(core.helper(), record->destination.data(), record->tensor.data(), bytes,
                  core.streaming().past_caches(record->destination.data(), bytes));
      record->receipt.copied_bytes += bytes;
    } else {
      record->status = failure(Code::kInvalidArgument,
                               record->quoted() + " is " + from.to_string() + ", the destination " +
                                   record->destination.descriptor().to_string());
    }
    record->tensor = Tensor();
  }
  // A coroutine ends the handle, which recycles the record, perhaps at once.
  if (record->subscription != nullptr) {
    record->subscription->on_fetched();
  } else if (record->waiter) {
    std::exchange(record->waiter, nullptr).resume();
  } else {
    release(record);
  }
}

// Recycles a fetch that is over for its holder and for the endpoints.
void Exchange::release(FetchRecord* record) {
  if (!record->done || record->handle || !record->asks.empty()) return;
  record->tensor = Tensor();
  record->destination = Buffer();
  if (record->entry != nullptr) end_use(std::exchange(record->entry, nullptr));
  free_fetches_.push_back(record);
}

size_t Exchange::progress(Instant now) {
  if (now < idle_until_) return 0;
  idle_until_ = kNever;
  size_t ended = retire_overdue(now) + serve_subscriptions();
  internal::FetchWalk walk(walks_, first_fetch_, &FetchRecord::next);
  while (FetchRecord* record = walk.next()) {
    if (record->asks.empty()) {
      if (record->deadline <= now) {
        Completion late;
        late.status = failure(
            Code::kTimedOut,
            record->quoted() +
                ": there was no endpoint to ask before the deadline; add() one to the exchange");
        finish(record, std::move(late));
        ++ended;
      } else {
        idle_until_ = std::min(idle_until_, record->deadline);
      }
    }
  }
  return ended;
}

Instant Exchange::next_timeout() { return idle_until_; }

FetchBase::~FetchBase() {
  if (record_ != nullptr) record_->let_go();
}

void FetchRecord::let_go() {
  waiter = nullptr;
  subscription = nullptr;
  if (!done) cancel();
  handle = false;
  if (exchange != nullptr) {
    exchange->release(this);
  } else if (asks.empty()) {
    delete this;
  }
}

bool FetchBase::ready() const { return record_->done; }

void FetchBase::cancel() { record_->cancel(); }

void FetchRecord::cancel() {
  if (done || exchange == nullptr) return;
  if (asks.empty()) {
    exchange->fail(this, failure(Code::kCancelled, "cancelled by the caller"));
    return;
  }
  cancelled = true;
  // The completions come by progress; a destination comes back with its own.
  cancel_asks();
}

void FetchBase::await_suspend(std::coroutine_handle<> waiter) noexcept { record_->waiter = waiter; }

Result<Delivery<Tensor>> Fetch::take() {
  if (!record_->status.ok()) return record_->status;
  return Delivery<Tensor>{std::move(record_->tensor), record_->receipt, record_->step};
}

Placed FetchInto::take() {
  return Placed(record_->status, std::move(record_->destination), record_->receipt, record_->step);
}

}  // namespace sluice
