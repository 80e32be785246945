// The dataflow level: tensors are published and fetched by key and step, over any
// number of endpoints. Either may come first: a tensor that is fetched early crosses as
// soon as it is published. Knows endpoints, not paths.
#ifndef SLUICE_EXCHANGE_EXCHANGE_H_
#define SLUICE_EXCHANGE_EXCHANGE_H_

#include <algorithm>
#include <array>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/spi/want_handler.h>

namespace sluice {

struct Key {
  std::string_view name;  // 1..255 bytes
  uint64_t step = 0;      // up to kLastStep; a fetch may say kLatest
};

// A fetch's step: the newest that can be had now, or if there is none the first to be published.
// Newest is the largest number, whatever was published last. Steps that are retired, or whose
// readers have all places, cannot be had.
inline constexpr uint64_t kLatest = ~uint64_t{0};
inline constexpr uint64_t kLastStep = kLatest - 2;

inline constexpr int until_retired = -1;

struct PublishOptions {
  // The publication ends after so many readers have released it, or until_retired. A
  // reader that dies before it has released does not count: it may come back.
  int readers = 1;
  // Retires what was published under the same name for steps below step - keep_steps;
  // negative: nothing.
  int64_t keep_steps = -1;
  // At this time the publication is retired, if its readers have not ended it before. Readers that
  // hold it keep it until they release it.
  Instant deadline = kNever;
};

struct FetchOptions {
  // Ask this endpoint only. Null: the one that last supplied the key, else all. With kLatest all,
  // and this exchange's own publications: the newest of any of them.
  const Endpoint* from = nullptr;
};

enum class KeyAccess : uint8_t {
  kWant,    // the peer asks us for it
  kSupply,  // we ask the peer for it
};

// Which keys one endpoint's peer may ask for, and which it is asked for. A '*' at the end
// of a name stands for any rest; "*" is every key; an empty list is none.
struct KeyRights {
  std::vector<std::string> may_want = {"*"};
  std::vector<std::string> may_supply = {"*"};
};

struct ExchangeOptions {
  // Asked beside KeyRights, for each request of a peer and before each request to one; false
  // refuses. Empty: yes. Called from progress(), fetch() and add(); calls nothing of the exchange.
  // A request for the latest step is asked about with kLatest, then with the step that it is.
  std::function<bool(const EndpointInfo& peer, const Key& key, KeyAccess access)> allow = {};
  // A reader that has not got the bytes after this loses its place, and another may have it.
  // Zero: never.
  Duration supply_timeout = std::chrono::seconds(30);
  // The same for a reader that got a view and has not released it. Its memory stays lent
  // until it does, or its process ends. Zero: never, since a reader may use a view for long.
  Duration view_timeout = Duration(0);
  // A fetch of kLatest asks all its endpoints, and an answer takes each as long as its program
  // takes to call progress(). Those that need longer than this are left out, if another has a step.
  Duration latest_patience = std::chrono::milliseconds(100);
};

struct SubscribeOptions {
  // kLatest: the newest step that can be had now, or if there is none the first to be published.
  uint64_t first_step = 0;
  // Steps that are asked for before they are published, from 1 to Subscription::kMostAhead. A
  // reader that does not call take() holds up to so many tensors of the publisher.
  int ahead = 8;
  // As FetchOptions::from.
  const Endpoint* from = nullptr;
};

template <typename T>
struct Delivery {
  T value;
  Receipt receipt;
  uint64_t step = 0;  // of the key: which it was, for a fetch of kLatest
};

// What fetch_into ends with: the buffer comes back also on failure.
class [[nodiscard]] Placed {
 public:
  // The result of a failed wait: the FetchInto still has the buffer.
  Placed(Status status) : status_(std::move(status)) {}
  Placed(Status status, Buffer buffer, const Receipt& receipt, uint64_t step = 0)
      : status_(std::move(status)), delivery_{std::move(buffer), receipt, step} {}
  bool ok() const { return status_.ok(); }
  explicit operator bool() const { return ok(); }
  Status status() const { return status_; }
  Code code() const { return status_.code(); }
  Delivery<Buffer>&& value() && { return std::move(delivery_); }
  Delivery<Buffer>& value() & { return delivery_; }
  // Empty only if the handle was dropped before the endpoint could give the buffer back.
  Buffer take_buffer() { return std::move(delivery_.value); }

 private:
  Status status_;
  Delivery<Buffer> delivery_;
};

namespace internal {
struct FetchPlace;
struct FetchRecord;
struct PublicationRecord;
struct SubscriptionRecord;
struct KeyEntry;
struct NamedKey;
struct PeerEntry;
struct WaitingWant;
struct WantList;
}  // namespace internal

// A fetch under way. Movable; dropping it cancels the fetch. Poll ready(), pass it to
// Context::run_until(), or co_await it.
class [[nodiscard]] FetchBase {
 public:
  FetchBase(FetchBase&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}
  FetchBase& operator=(FetchBase&& other) noexcept {
    std::swap(record_, other.record_);
    return *this;
  }
  ~FetchBase();
  bool ready() const;
  // The take() that follows gives kCancelled, unless the tensor was here already.
  void cancel();

  bool await_ready() const noexcept { return ready(); }
  void await_suspend(std::coroutine_handle<> waiter) noexcept;

 protected:
  explicit FetchBase(internal::FetchRecord* record) : record_(record) {}
  internal::FetchRecord* record_;
};

class Fetch : public FetchBase {
 public:
  // Requires: ready(); once. Errors: kTimedOut (the key never came), kUnreachable (the
  // endpoint asked closed), kWrongState (that step is retired), kTryAgain (the peer's
  // table of waiting requests is full), kNoMemory, kUnsupported (kLatest: every endpoint that could
  // be asked is of an older version).
  Result<Delivery<Tensor>> take();
  Result<Delivery<Tensor>> await_resume() { return take(); }

 private:
  friend class Exchange;
  using FetchBase::FetchBase;
};

class FetchInto : public FetchBase {
 public:
  // As Fetch, and kInvalidArgument: the tensor has another dtype or shape than the
  // destination, which is untouched.
  Placed take();
  Placed await_resume() { return take(); }

 private:
  friend class Exchange;
  using FetchBase::FetchBase;
};

// The steps of one name, one after the other. Movable; dropping it gives up what has not been
// taken. Poll ready(), pass it to Context::run_until() once for each step, or co_await it.
class [[nodiscard]] Subscription {
 public:
  static constexpr int kMostAhead = 32;

  Subscription(Subscription&&) noexcept;
  Subscription& operator=(Subscription&&) noexcept;
  ~Subscription();
  // The next step is here, or why it cannot come.
  bool ready() const;
  // Requires: ready(). Errors: those of Fetch::take() but for retired steps, which are passed over;
  // kInvalidArgument (a name of 0 or above 255 bytes, ahead out of its bounds, a step above
  // kLastStep). After an error the subscription stands where it stood: in the next progress() the
  // same step is asked for again, also of endpoints that were added meanwhile. Of several
  // publishers the first to say that a step is retired is believed.
  Result<Delivery<Tensor>> take();
  // Of the next take(); kLatest: not known yet.
  uint64_t next_step() const;
  // Steps that were retired before this reader had them.
  uint64_t missed() const;

  bool await_ready() const noexcept { return ready(); }
  void await_suspend(std::coroutine_handle<> waiter) noexcept;
  Result<Delivery<Tensor>> await_resume() { return take(); }

 private:
  friend class Exchange;
  explicit Subscription(std::unique_ptr<internal::SubscriptionRecord> record);
  std::unique_ptr<internal::SubscriptionRecord> record_;
};

// A publication. Dropping the handle changes nothing: it ends by its options.
class Publication {
 public:
  Publication() = default;
  Publication(Publication&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}
  Publication& operator=(Publication&& other) noexcept {
    std::swap(record_, other.record_);
    return *this;
  }
  ~Publication();
  // No further reader gets it. Readers that hold it keep it until they release it.
  void retire();
  int readers_done() const;
  // Readers that had it, or began to get it, and ended without releasing it: their connection
  // ended, or their time was over. Others may take their places.
  int readers_lost() const;
  // All readers have released it (or it was retired and no loan is out).
  bool ready() const;
  // Requires: ready(). The tensor: the last holder may thaw it.
  Tensor take();
  bool await_ready() const noexcept { return ready(); }
  void await_suspend(std::coroutine_handle<> waiter) noexcept;
  Tensor await_resume() { return take(); }

 private:
  friend class Exchange;
  explicit Publication(internal::PublicationRecord* record) : record_(record) {}
  internal::PublicationRecord* record_ = nullptr;
};

// Thread: the context's. Requires: the context outlives the exchange; handles may
// outlive it (they are ready with kCancelled then).
class Exchange final : private WantHandler, private ProgressHook {
 public:
  explicit Exchange(Context& context, ExchangeOptions options = {});
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Takes part in the endpoint's keyed traffic from now on; fetches that wait are asked
  // there too. The endpoint may close at any time. Errors: kWrongState (it is closed, or in an
  // exchange already: this one or another), kInvalidArgument (an empty handle, an endpoint of
  // another context).
  Status add(const Endpoint& endpoint, KeyRights rights = {});
  // Its outstanding fetches end with kCancelled.
  void remove(const Endpoint& endpoint);
  size_t endpoint_count() const { return peers_.size(); }

  // Errors: kInvalidArgument (key of 0 or above 255 bytes, key and step published
  // already, a step above kLastStep, readers 0), kTryAgain (more than kMostKeys names of our own;
  // what peers ask for does not count). The tensor is taken. A name that nothing uses is forgotten
  // once kIdleKeys others were used after it: its ended steps may be published again then, and a
  // fetch of one waits instead of failing.
  Result<Publication> publish(const Key& key, Tensor tensor, const PublishOptions& options = {});

  // A view of the peer's memory if the path has views, else a fresh tensor. Post it early: a
  // fetch that arrives before the tensor is published costs no idle round trip.
  // Of kLatest: costs a small message and its answer more. A step that is retired while it is
  // fetched is replaced by the newest of then. Endpoints that are added meanwhile are asked, too,
  // while nothing is published.
  Fetch fetch(const Key& key, Instant deadline, const FetchOptions& options = {});
  // Into memory of the caller, compact and of the tensor's dtype and shape.
  FetchInto fetch_into(const Key& key, Buffer destination, Instant deadline,
                       const FetchOptions& options = {});

  // Each step of the name from options.first_step on, in order. The next ones are asked for early,
  // several with one message. A step that nobody publishes is waited for.
  Subscription subscribe(std::string_view name, const SubscribeOptions& options = {});

  // A tensor whose bytes no peer can change: itself, or one counted copy.
  Result<Delivery<Tensor>> acquire_stable(const Tensor& tensor);

  // Names that this program can have publications and fetches of at once. Those that peers ask
  // for are counted by peer: PeerLimits::keys.
  static constexpr size_t kMostKeys = kMaxKeyIds;
  // Names without a publication or fetch that are remembered, with their ended steps.
  static constexpr size_t kIdleKeys = 4096;
  // Names that the exchange holds now, those of peers with them.
  size_t key_count() const { return keys_.size(); }

 private:
  friend class FetchBase;
  friend class Publication;
  friend class Subscription;
  friend struct internal::FetchRecord;
  friend struct internal::PublicationRecord;
  friend struct internal::SubscriptionRecord;

  void on_want(EndpointCore& endpoint, const WantRequest& request) noexcept override;
  bool on_want_cancelled(EndpointCore& endpoint, uint64_t token) noexcept override;
  void on_endpoint_closed(EndpointCore& endpoint, const Status& why) noexcept override;
  size_t progress(Instant now) override;
  Instant next_timeout() override;

  internal::FetchRecord* start_fetch(const Key& key, Buffer destination, Instant deadline,
                                     const FetchOptions& options);
  internal::FetchRecord* take_record(uint64_t step, Buffer destination, Instant deadline,
                                     EndpointCore* from);
  void ask_first(internal::FetchRecord* record, bool from_one);
  WantOptions want_of(const internal::FetchRecord* record, internal::PeerEntry* peer);
  // subscription.cc
  size_t serve_subscriptions();
  void look_soon() { idle_until_ = std::min(idle_until_, context_.now()); }
  void end_subscriptions();
  void unsubscribe(internal::SubscriptionRecord* record);
  void fetch_steps(internal::SubscriptionRecord* subscription, uint64_t step,
                   std::span<internal::FetchRecord*> records);
  void ask_together(std::span<internal::FetchRecord* const> records, internal::PeerEntry* peer);
  Result<internal::KeyEntry*> entry_for(std::string_view name);
  internal::KeyEntry*& recent(std::string_view name);
  internal::KeyEntry* find_or_make(std::string_view name);
  void drop_if_unused(internal::KeyEntry* entry);
  void use(internal::KeyEntry* entry);
  void end_use(internal::KeyEntry* entry);
  void forget(internal::KeyEntry* entry);
  void add_idle(internal::KeyEntry* entry);
  void remove_idle(internal::KeyEntry* entry);
  internal::PeerEntry* find_peer(const EndpointCore& endpoint);
  internal::PeerEntry* home_of(const internal::KeyEntry* entry) const;
  bool may_supply(const internal::PeerEntry* peer, const internal::KeyEntry* entry,
                  uint64_t step) const;
  internal::NamedKey* name_key(internal::PeerEntry* peer, const WantRequest& request,
                               Code& refusal);
  void forget_names(internal::PeerEntry* peer);
  void forget_wants(internal::PeerEntry* peer, bool answer);
  void keep_waiting(internal::PeerEntry* peer, internal::KeyEntry* entry,
                    const WantRequest& request);
  void take_waiting(internal::WaitingWant* want);
  void answer_waiting(internal::PublicationRecord* record);
  void refuse_waiting(internal::KeyEntry* entry, uint64_t step);
  void file_by_key(internal::FetchRecord* record);
  void unfile(internal::FetchRecord* record);
  void ask(internal::FetchRecord* record, internal::PeerEntry* peer);
  // latest.cc: a fetch of kLatest asks which step there is, then fetches that.
  void start_latest(internal::FetchRecord* record);
  void ask_which(internal::FetchRecord* record, uint64_t question);
  void on_latest_answer(internal::FetchRecord* record, internal::PeerEntry* from,
                        Completion&& completion);
  void choose_latest(internal::FetchRecord* record, Status last);
  void refuse_latest(internal::FetchRecord* record);
  void fail(internal::FetchRecord* record, Status why);
  void fail_if_refused(internal::FetchRecord* record);
  void tell_step(internal::PeerEntry* peer, uint64_t token, uint64_t step);
  void answer_step_questions(internal::KeyEntry* entry);
  void on_step_question(internal::PeerEntry* peer, internal::KeyEntry* entry,
                        const WantRequest& request);
  void supply(internal::PeerEntry* peer, uint64_t token, bool into,
              internal::PublicationRecord* publication);
  Status copy_for_hosts(internal::PublicationRecord* record);
  bool deliver_locally(internal::FetchRecord* record);
  void deliver_local(internal::FetchRecord* record, internal::PublicationRecord* publication);
  void finish(internal::FetchRecord* record, Completion&& completion);
  void release(internal::FetchRecord* record);
  void end_publication(internal::PublicationRecord* publication);
  void maybe_release(internal::PublicationRecord* publication);
  size_t retire_overdue(Instant now);
  void retire_below(internal::KeyEntry* entry, uint64_t step);

  Context& context_;
  const ExchangeOptions options_;
  std::unordered_map<std::string_view, std::unique_ptr<internal::KeyEntry>> keys_;
  // Those that entry_for() found last, with an id, by a hash of the name: a step has the names of
  // the step before. (Measured: the table above takes 150 instructions for each name.)
  std::array<internal::KeyEntry*, 256> recent_{};
  std::vector<internal::KeyEntry*> keys_by_id_;  // those that we published or fetched, or null
  std::vector<uint32_t> free_ids_;               // places of keys_by_id_ that are null
  internal::KeyEntry* first_idle_ = nullptr;     // the longest idle
  internal::KeyEntry* last_idle_ = nullptr;
  size_t idle_keys_ = 0;
  std::vector<std::unique_ptr<internal::PeerEntry>> peers_;
  std::unordered_map<const EndpointCore*, internal::PeerEntry*> peers_by_core_;
  internal::PeerEntry* last_peer_ = nullptr;  // the last result of find_peer()
  uint64_t next_serial_ = 1;
  // Records of ended peers, and of answered requests.
  std::vector<std::unique_ptr<internal::PeerEntry>> spare_peers_;
  std::vector<std::unique_ptr<internal::WaitingWant>> spare_wants_;
  std::vector<std::map<uint64_t, internal::WantList>::node_type> spare_steps_;
  uint64_t secret_;  // of the indices: peers choose tokens and key ids
  // Records are recycled: all of them, and those nobody uses.
  std::vector<std::unique_ptr<internal::FetchRecord>> fetches_;
  std::vector<internal::FetchRecord*> free_fetches_;
  std::vector<std::unique_ptr<internal::PublicationRecord>> publications_;
  std::vector<internal::PublicationRecord*> free_publications_;
  std::multimap<Instant, internal::PublicationRecord*>
      overdue_;  // those with a deadline, until they end
  std::vector<internal::SubscriptionRecord*> subscriptions_;
  // Those whose last reader was a subscription of our own. They end in progress(): whoever awaits
  // them may end that very subscription.
  std::vector<internal::PublicationRecord*> read_here_;
  std::vector<internal::FetchPlace> walks_;  // one inside the other
  // Fetches that are not finished, for timers and for endpoints that come later.
  internal::FetchRecord* first_fetch_ = nullptr;
};

}  // namespace sluice

#endif  // SLUICE_EXCHANGE_EXCHANGE_H_
