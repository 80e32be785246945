// The connections of one group and what its collectives share: waiting, failure and the alarm that
// tells it to the other ranks. Knows endpoints and the exchange, no algorithm.
#ifndef SLUICE_COLLECTIVE_MESH_H_
#define SLUICE_COLLECTIVE_MESH_H_

#include <coroutine>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/exchange/exchange.h>

namespace sluice::internal {

class RoundState;
struct Call;

// Classes of tags on a group's endpoints, in the top byte: | class 8 | 24 zero bits | number 32 |.
enum class Lane : uint8_t { kHello = 1, kControl = 2, kBulk = 3, kPoint = 4, kAlarm = 5 };
constexpr Tag lane_tag(Lane lane, uint32_t number) {
  return Tag{static_cast<uint8_t>(lane)} << 56 | number;
}

// A coroutine of the group that waits; lives in its frame.
struct Waiter {
  bool (*ready)(void* state) = nullptr;
  void* state = nullptr;
  bool ends_when_broken = true;  // else `ready` alone decides
  Instant deadline = kNever;
  std::coroutine_handle<> waiter;
};

// Thread: the context's.
class Mesh final : private ProgressHook, private CompletionSink {
 public:
  Mesh(Context& context, int rank, int size);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  Context& context() { return context_; }
  Exchange& exchange() { return exchange_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  Endpoint& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  // Every rank reads every other's memory in place; the same answer on all ranks.
  bool views() const { return views_; }
  // The worst path of the group's endpoints.
  Path path() const { return path_; }

  // Takes the connected endpoints, by rank; this rank's own is empty. Errors: kNoMemory.
  Status start(std::vector<Endpoint> peers);
  void set_views(bool views) { views_ = views; }

  const Status& broken() const { return broken_; }
  // Why no collective can start now, or ok.
  Status usable();
  // Breaks the group, once: tells every rank, ends what runs and the connections.
  void fail(const Status& why);
  // The same from inside a completion: done in the next turn.
  void fail_soon(Status why);
  // A coroutine of `call` ended while it waited: the other ranks wait for this one.
  void dropped(const Call& call);
  // A status that names the rank that an operation with `peer` failed for.
  Status blame(int peer, const Status& why, const std::string& what) const;

  // For Rounds.
  void enlist(RoundState* round) { rounds_.push_back(round); }
  void dismiss(RoundState* round) { std::erase(rounds_, round); }
  void adopt(std::unique_ptr<RoundState> orphan) { orphans_.push_back(std::move(orphan)); }
  void add_waiting(Waiter* waiting) { waiting_.push_back(waiting); }
  void remove_waiting(Waiter* waiting) { std::erase(waiting_, waiting); }

  // Says goodbye, waits until every rank has, and closes the connections.
  Status close(Instant deadline);

 private:
  size_t progress(Instant now) override;
  Instant next_timeout() override;
  void on_completion(Completion&& completion) noexcept override;
  Status listen_for_alarms(int rank);
  void say(int rank, const Status& why);
  void hear(int rank, std::span<const std::byte> alarm);
  void on_lost(int rank, const Status& why);

  Context& context_;
  Exchange exchange_;
  int rank_;
  std::vector<Endpoint> peers_;
  std::vector<bool> left_;  // said goodbye
  int listening_ = 0;       // alarm receives that are posted
  bool closing_ = false;
  bool views_ = false;
  Path path_ = Path::kNone;
  Status broken_;
  Status failure_;  // breaks the group in the next turn
  std::vector<RoundState*> rounds_;
  std::vector<std::unique_ptr<RoundState>> orphans_;
  std::vector<Waiter*> waiting_;
};

// co_await Until(...): resumes once ready(), the deadline or the end of the group.
template <typename Ready>
class Until {
 public:
  Until(Mesh& mesh, const Call& call, Ready ready, Instant deadline)
      : mesh_(mesh), call_(call), ready_(std::move(ready)) {
    waiting_.ready = [](void* self) { return static_cast<Until*>(self)->ready_(); };
    waiting_.state = this;
    waiting_.deadline = deadline;
  }
  Until(const Until&) = delete;
  Until& operator=(const Until&) = delete;
  ~Until() {
    mesh_.remove_waiting(&waiting_);
    if (suspended_) mesh_.dropped(call_);
  }
  bool await_ready() { return !mesh_.broken().ok() || ready_(); }
  void await_suspend(std::coroutine_handle<> waiter) {
    waiting_.waiter = waiter;
    suspended_ = true;
    mesh_.add_waiting(&waiting_);
  }
  // True: ready.
  bool await_resume() {
    suspended_ = false;
    return ready_();
  }

 private:
  Mesh& mesh_;
  const Call& call_;
  Ready ready_;
  bool suspended_ = false;
  Waiter waiting_;
};

}  // namespace sluice::internal

#endif  // SLUICE_COLLECTIVE_MESH_H_
