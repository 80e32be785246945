// The exchange's bookkeeping: keys, peers, fetches and publications. Private to it.
#ifndef SLUICE_EXCHANGE_RECORDS_H_
#define SLUICE_EXCHANGE_RECORDS_H_

#include <algorithm>
#include <array>
#include <coroutine>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <sluice/base/id_index.h>
#include <sluice/base/inline_vector.h>
#include <sluice/exchange/ended_steps.h>
#include <sluice/exchange/exchange.h>
#include <sluice/exchange/waiting_steps.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::internal {

// A peer's request that waits for a publication: in its peer's index and list, and in the
// list of its key and step, in order of arrival. Recycled.
struct WaitingWant {
  PeerEntry* peer = nullptr;
  KeyEntry* entry = nullptr;
  uint64_t token = 0;
  uint64_t step = 0;
  WantList* list = nullptr;  // of its key and step
  WaitingWant* next = nullptr;
  WaitingWant* previous = nullptr;
  WaitingWant* next_of_peer = nullptr;
  WaitingWant* previous_of_peer = nullptr;
  IndexLink<WaitingWant> index;  // by token
  bool into = false;
};

// What a peer's key id stands for.
struct NamedKey {
  KeyEntry* entry = nullptr;
  bool may_want = true;       // by its KeyRights
  IndexLink<NamedKey> index;  // by the peer's key id
};

// Recycled: a key that remembers it looks at the serial.
struct PeerEntry {
  explicit PeerEntry(uint64_t secret) : peer_keys(secret), waiting(secret) {}

  std::shared_ptr<EndpointCore> core;
  uint64_t serial = 0;        // never used again; 0: gone
  bool views = false;         // its path hands out views of our memory
  bool supplies_all = true;   // its KeyRights and the exchange allow it every key
  bool tells_latest = false;  // it answers questions for its latest step
  KeyRights rights;
  EndpointInfo info;  // for ExchangeOptions::allow
  IdIndex<NamedKey> peer_keys;
  std::vector<std::unique_ptr<NamedKey>> names;  // all of peer_keys
  IdIndex<WaitingWant> waiting;
  WaitingWant* first_waiting = nullptr;
  std::vector<bool> named;  // our key ids whose name the peer has
  size_t asks = 0;          // our requests that it has not answered

  // Its latest step.
  bool can_tell() const { return tells_latest && core->state() == EndpointState::kConnected; }
};

struct FetchRecord final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override;
  void cancel_asks();
  void cancel();
  // Its holder is gone: it is cancelled unless it is done, and recycled.
  void let_go();
  std::string quoted() const;  // "'name' step 7", for texts
  // What the end of a request to a peer means for a fetch.
  Status explain(const Status& ended, const EndpointCore* asked) const;

  struct Ask {
    PeerEntry* peer;  // null: gone, its completion is still to come
    OperationId id;
    uint64_t serial;  // names the ask in its completion
  };
  Exchange* exchange = nullptr;
  KeyEntry* entry = nullptr;
  uint64_t step = 0;
  Instant deadline{};
  EndpointCore* from = nullptr;
  InlineVector<Ask, 2> asks;
  uint64_t next_serial = 0;
  Buffer destination;  // while no endpoint has it
  bool into = false;
  bool done = false;
  bool handle = true;  // somebody still holds the Fetch
  // A fetch of kLatest (latest.cc): `step` is the question that is asked, until it is known.
  bool latest = false;
  bool cancelled = false;     // by its holder
  bool retired = false;       // its peer says so of the step
  bool asks_anew = false;     // once the request to a peer has ended: the step is published here
  PeerEntry* best = nullptr;  // who told the newest step so far, while its serial is best_serial
  uint64_t best_serial = 0;
  uint64_t best_step = 0;
  Status status;
  Receipt receipt;
  Tensor tensor;
  std::coroutine_handle<> waiter;
  SubscriptionRecord* subscription = nullptr;  // which holds it
  FetchRecord* next = nullptr;
  FetchRecord* previous = nullptr;
  FetchRecord* next_of_key = nullptr;  // until it is done
  FetchRecord* previous_of_key = nullptr;
};

// Where a loop over fetches stands.
struct FetchPlace {
  FetchRecord* next;
  FetchRecord* FetchRecord::*link;
};

// A loop over fetches, some of which end meanwhile: the one that comes next may be among them.
class FetchWalk {
 public:
  FetchWalk(std::vector<FetchPlace>& walks, FetchRecord* first, FetchRecord* FetchRecord::*link)
      : walks_(walks), depth_(walks.size()) {
    walks_.push_back({first, link});
  }
  ~FetchWalk() { walks_.pop_back(); }
  FetchWalk(const FetchWalk&) = delete;
  FetchWalk& operator=(const FetchWalk&) = delete;
  // Null: no further one.
  FetchRecord* next() {
    FetchPlace& place = walks_[depth_];
    FetchRecord* record = place.next;
    if (record != nullptr) place.next = record->*place.link;
    return record;
  }
  // It is about to leave the lists.
  static void leaves(std::vector<FetchPlace>& walks, const FetchRecord* record) {
    for (FetchPlace& place : walks) {
      if (place.next == record) place.next = record->*place.link;
    }
  }

 private:
  std::vector<FetchPlace>& walks_;
  const size_t depth_;
};

// Its fetches are of consecutive steps.
struct SubscriptionRecord {
  SubscriptionRecord() = default;
  ~SubscriptionRecord();
  SubscriptionRecord(const SubscriptionRecord&) = delete;
  SubscriptionRecord& operator=(const SubscriptionRecord&) = delete;

  FetchRecord* front() const { return slots[first]; }
  bool ready() const {
    return count > 0 ? front()->done && !again : !refusal.ok() || exchange == nullptr;
  }
  // Requires: count > 0.
  void pop();
  // Passes over retired steps, and asks for the next ones where half of the places are free.
  void advance();
  // Our own exchange had the next step, and gives it to nobody any more.
  bool ended_here() const;
  // Those that have failed are asked for anew.
  void ask_again();
  void on_fetched();

  Exchange* exchange = nullptr;  // null: gone, or never there
  Status refusal;                // if it is never to fetch
  KeyEntry* entry = nullptr;     // in use while the exchange is there
  bool from_one = false;         // of this endpoint alone; null: the caller's handle was empty
  std::shared_ptr<EndpointCore> from;
  uint64_t next = 0;  // the step of front(); kLatest: which one it is is asked
  uint64_t missed = 0;
  uint32_t ahead = 0;
  uint32_t first = 0, count = 0;
  std::array<FetchRecord*, Subscription::kMostAhead> slots{};
  bool asking = false;
  bool again = false;  // the next progress() asks again for what has failed
  std::coroutine_handle<> waiter;

 private:
  void ask_ahead();
  void put(uint64_t step, uint32_t at, uint32_t how_many);
};

struct PublicationRecord final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override;
  bool finished() const { return ended && loans == 0; }
  // For one more reader.
  bool has_room() const { return readers < 0 || readers_done + loans < readers; }

  Exchange* exchange = nullptr;
  KeyEntry* entry = nullptr;
  uint64_t step = 0;
  Tensor tensor;
  Tensor host;  // a copy of it for paths that do not reach its device; empty: none was needed
  int readers = 1;
  int readers_done = 0;
  int loans = 0;  // supplies under way
  int readers_lost = 0;
  Instant deadline = kNever;
  std::multimap<Instant, PublicationRecord*>::iterator
      overdue;         // while it has a deadline and has not ended
  bool ended = false;  // out of the table: nobody new gets it
  bool handle = true;
  std::coroutine_handle<> waiter;
};

inline constexpr uint32_t kNoKeyId = ~uint32_t{0};

struct KeyEntry {
  std::string name;
  uint32_t id = kNoKeyId;  // ours, once we published or fetched it, until it is forgotten
  size_t uses = 0;         // publications and fetches that refer to it
  FetchRecord* first_fetch = nullptr;  // of those that are not done
  KeyEntry* idle_next = nullptr;       // while it has an id and no use
  KeyEntry* idle_previous = nullptr;
  PeerEntry* home = nullptr;  // who supplied it last, while its serial is home_serial
  uint64_t home_serial = 0;
  size_t named_by_peers = 0;  // entries of PeerEntry::peer_keys
  std::vector<PublicationRecord*> published;
  WaitingSteps waiting;
  uint64_t gone_below = 0;  // steps retired for good
  EndedSteps ended;         // by their readers: asking again is an error, not a wait

  // The newest step that one more reader can have; null: none.
  PublicationRecord* newest() const {
    PublicationRecord* best = nullptr;
    for (PublicationRecord* each : published) {
      if (each->has_room() && (best == nullptr || each->step > best->step)) best = each;
    }
    return best;
  }
  bool is_over(uint64_t step) const { return step < gone_below || ended.has(step); }
};

}  // namespace sluice::internal

#endif  // SLUICE_EXCHANGE_RECORDS_H_
