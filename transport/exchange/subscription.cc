// Subscriptions: the steps of a name one after the other, several asked for with one message.
#include <algorithm>
#include <array>
#include <span>
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
using internal::SubscriptionRecord;

static_assert(Subscription::kMostAhead <= wire::kMaxStepsOfWant);

namespace {

Status failure(Code code, const std::string& why) {
  return Status(code, Scope::kOperation, "exchange", why);
}

Status check(const SubscribeOptions& options) {
  if (options.ahead < 1 || options.ahead > Subscription::kMostAhead)
    return failure(Code::kInvalidArgument, "a subscription asks for 1 to 32 steps ahead, not " +
                                               std::to_string(options.ahead));
  if (options.first_step > kLastStep && options.first_step != kLatest)
    return failure(Code::kInvalidArgument,
                   "steps go up to 2^64 - 3; use kLatest to begin with the latest");
  return Status();
}

}  // namespace

Subscription Exchange::subscribe(std::string_view name, const SubscribeOptions& options) {
  auto record = std::make_unique<SubscriptionRecord>();
  record->refusal = context_.check_process();
  if (record->refusal.ok()) record->refusal = check(options);
  if (record->refusal.ok()) {
    Result<KeyEntry*> entry = entry_for(name);
    record->refusal = entry.status();
    if (entry.ok()) record->entry = *entry;
  }
  if (!record->refusal.ok()) return Subscription(std::move(record));
  use(record->entry);
  record->exchange = this;
  record->next = options.first_step;
  record->ahead = static_cast<uint32_t>(options.ahead);
  record->from_one = options.from != nullptr;
  if (record->from_one && *options.from) record->from = options.from->shared();
  subscriptions_.push_back(record.get());
  record->advance();
  return Subscription(std::move(record));
}

// In progress(): what a subscription waits for inside a call that it may not end in.
size_t Exchange::serve_subscriptions() {
  constexpr size_t kMostAtOnce = 64;
  size_t served = 0;
  while (!read_here_.empty()) {
    PublicationRecord* publication = read_here_.back();
    read_here_.pop_back();
    const bool read = publication->readers > 0 && publication->readers_done >= publication->readers;
    if (!publication->ended && read) end_publication(publication);
    ++served;
  }
  // Each of them may end any of them.
  for (size_t i = 0; i < subscriptions_.size() && served < kMostAtOnce; ++i) {
    SubscriptionRecord* subscription = subscriptions_[i];
    if (subscription->again) {
      subscription->ask_again();
    } else if (subscription->ended_here()) {
      FetchRecord* front = subscription->front();
      front->retired = true;
      front->cancel_asks();
      fail(front, failure(Code::kWrongState, front->quoted() + " is retired; fetch a later step"));
    } else {
      continue;
    }
    i = ~size_t{0};  // from the first on
    ++served;
  }
  if (served >= kMostAtOnce) look_soon();
  return served;
}

// The exchange ends: what its subscriptions still fetch has been cancelled.
void Exchange::end_subscriptions() {
  for (SubscriptionRecord* record : subscriptions_) record->exchange = nullptr;
  subscriptions_.clear();
}

void Exchange::fetch_steps(SubscriptionRecord* subscription, uint64_t step,
                           std::span<FetchRecord*> records) {
  for (FetchRecord*& record : records) {
    record = take_record(step++, Buffer(), kNever, subscription->from.get());
    record->entry = subscription->entry;
    record->subscription = subscription;
    file_by_key(record);
  }
  const bool from_one = subscription->from_one;
  PeerEntry* only = nullptr;
  if (from_one) {
    only = subscription->from != nullptr ? find_peer(*subscription->from) : nullptr;
  } else {
    only = home_of(subscription->entry);
  }
  // One step, the question for one, and an endpoint that is gone: as any fetch.
  if (records.size() == 1 || (from_one && only == nullptr)) {
    for (FetchRecord* record : records) ask_first(record, from_one);
    return;
  }
  for (FetchRecord* record : records) {
    if (!from_one && !record->done) deliver_locally(record);
  }
  for (size_t begin = 0, end = 0; begin < records.size(); begin = end + 1) {
    end = begin;
    while (end < records.size() && !records[end]->done) ++end;
    const std::span<FetchRecord* const> run = records.subspan(begin, end - begin);
    if (only != nullptr) {
      ask_together(run, only);
    } else {
      for (size_t i = 0; i < peers_.size(); ++i) ask_together(run, peers_[i].get());
    }
    for (FetchRecord* record : run) fail_if_refused(record);
  }
}

// Consecutive steps, with one message where the peer may supply every key; else each for itself.
void Exchange::ask_together(std::span<FetchRecord* const> records, PeerEntry* peer) {
  std::array<PostOptions, Subscription::kMostAhead> options;
  std::array<OperationId, Subscription::kMostAhead> ids;
  size_t posted = 0;
  const bool all =
      std::none_of(records.begin(), records.end(), [](auto* each) { return each->done; });
  if (records.size() > 1 && peer->supplies_all && all) {
    const WantOptions want = want_of(records.front(), peer);
    for (size_t i = 0; i < records.size(); ++i) {
      options[i].sink = records[i];
      options[i].user_data = records[i]->next_serial;
      options[i].deadline = kNever;
    }
    Result<size_t> asked = peer->core->post_wants(want, std::span(options).first(records.size()),
                                                  std::span(ids).first(records.size()));
    if (asked.ok()) {
      posted = *asked;
      peer->named[want.key_id] = true;
      peer->asks += posted;
    }
  }
  for (size_t i = 0; i < posted; ++i) {
    FetchRecord* record = records[i];
    record->asks.emplace_back(FetchRecord::Ask{peer, ids[i], record->next_serial++});
  }
  for (FetchRecord* record : records.subspan(posted)) {
    if (!record->done) ask(record, peer);
  }
}

SubscriptionRecord::~SubscriptionRecord() {
  asking = true;  // what is cancelled now is nobody's news
  while (count > 0) pop();
  if (exchange != nullptr) exchange->unsubscribe(this);
}

void Exchange::unsubscribe(SubscriptionRecord* record) {
  std::erase(subscriptions_, record);
  end_use(record->entry);
}

void SubscriptionRecord::pop() {
  FetchRecord* record = front();
  first = (first + 1) % slots.size();
  --count;
  record->let_go();
}

void SubscriptionRecord::advance() {
  if (asking || exchange == nullptr) return;
  while (next != kLatest && count > 0 && front()->done && front()->retired &&
         !front()->status.ok()) {
    pop();
    ++missed;
    ++next;
  }
  ask_ahead();
  if (ended_here()) exchange->look_soon();
}

void SubscriptionRecord::ask_ahead() {
  if (next == kLatest) {
    if (count == 0) put(kLatest, 0, 1);
    return;
  }
  if (count > ahead / 2) return;
  const uint64_t left = next + count <= kLastStep ? kLastStep - next - count + 1 : 0;
  const auto more = static_cast<uint32_t>(std::min<uint64_t>(ahead - count, left));
  if (more > 0) put(next + count, count, more);
  if (count == 0) refusal = failure(Code::kInvalidArgument, "there is no step above 2^64 - 3");
}

// Fetches so many steps from `step` on, into the slots from the `at`th on.
void SubscriptionRecord::put(uint64_t step, uint32_t at, uint32_t how_many) {
  std::array<FetchRecord*, Subscription::kMostAhead> fresh;
  asking = true;
  exchange->fetch_steps(this, step, std::span(fresh).first(how_many));
  asking = false;
  for (uint32_t i = 0; i < how_many; ++i) slots[(first + at + i) % slots.size()] = fresh[i];
  count = std::max(count, at + how_many);
}

bool SubscriptionRecord::ended_here() const {
  return count > 0 && !front()->done && !from_one && next != kLatest && entry->is_over(next);
}

void SubscriptionRecord::ask_again() {
  again = false;
  for (uint32_t i = 0; i < count; ++i) {
    FetchRecord* record = slots[(first + i) % slots.size()];
    if (!record->done || record->status.ok()) continue;
    asking = true;
    record->let_go();
    put(next == kLatest ? kLatest : next + i, i, 1);
  }
  on_fetched();
}

void SubscriptionRecord::on_fetched() {
  advance();
  if (waiter && !asking && ready()) std::exchange(waiter, nullptr).resume();
}

Subscription::Subscription(std::unique_ptr<SubscriptionRecord> record)
    : record_(std::move(record)) {}
Subscription::Subscription(Subscription&&) noexcept = default;
Subscription& Subscription::operator=(Subscription&&) noexcept = default;
Subscription::~Subscription() = default;

bool Subscription::ready() const { return record_->ready(); }
uint64_t Subscription::next_step() const { return record_->next; }
uint64_t Subscription::missed() const { return record_->missed; }

void Subscription::await_suspend(std::coroutine_handle<> waiter) noexcept {
  record_->waiter = waiter;
}

Result<Delivery<Tensor>> Subscription::take() {
  if (record_->exchange != nullptr)
    SLUICE_RETURN_IF_ERROR(record_->exchange->context_.check_process());
  if (record_->count == 0) {
    if (!record_->refusal.ok()) return record_->refusal;
    return failure(Code::kCancelled, "the exchange is gone");
  }
  FetchRecord* front = record_->front();
  if (!front->status.ok()) {
    if (record_->exchange != nullptr) {
      record_->again = true;
      record_->exchange->look_soon();
    }
    return front->status;
  }
  Delivery<Tensor> delivery{std::move(front->tensor), front->receipt, front->step};
  record_->next = front->step + 1;
  record_->pop();
  record_->advance();
  return delivery;
}

}  // namespace sluice
