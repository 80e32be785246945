// The loop behind a Context: its epoll, waiting, hooks and mailbox, and the paths that it calls.
// For paths and for what stands on a context inside this house; programs see Context.
#ifndef SLUICE_RUNTIME_CONTEXT_CORE_H_
#define SLUICE_RUNTIME_CONTEXT_CORE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <sys/epoll.h>

#include <sluice/api/context.h>
#include <sluice/base/result.h>
#include <sluice/base/streaming_rule.h>
#include <sluice/base/thread_mark.h>
#include <sluice/runtime/event_handler.h>
#include <sluice/runtime/helper_thread.h>
#include <sluice/runtime/mailbox.h>
#include <sluice/runtime/peer_account.h>
#include <sluice/runtime/population.h>
#include <sluice/runtime/short_turns.h>
#include <sluice/spi/link_decorator.h>
#include <sluice/spi/provider.h>

namespace sluice {

class Awaits;

namespace internal {
// Shared by a Listener and its Context, either of which may end first.
struct OpenListener {
  std::unique_ptr<ListenerCore> core;  // null: closed
  ContextCore* context = nullptr;      // valid while there is a core
};
}  // namespace internal

// Every Context is one: only this class can make a Context. context_core.cc has what Context
// declares.
class ContextCore final : public Context {
 public:
  ContextCore(const ContextOptions& options, std::shared_ptr<Arena> arena);
  ~ContextCore() override;
  static ContextCore& of(Context& context) { return static_cast<ContextCore&>(context); }
  static const ContextCore& of(const Context& context) {
    return static_cast<const ContextCore&>(context);
  }

  Status initialise();  // epoll and doorbell. Errors: kNoMemory (fd limit).
  void add_provider(std::unique_ptr<Provider> provider);
  Provider* provider(Scheme scheme) const;
  std::span<const std::unique_ptr<Provider>> providers() const { return providers_; }

  // Errors: kWrongState (closed, another thread's, or of the process that forked).
  Status check_usable() const;
  Status watch(int fd, uint32_t epoll_events, EventHandler* handler);
  Status rewatch(int fd, uint32_t epoll_events, EventHandler* handler);
  void unwatch(int fd, EventHandler* handler);
  const std::shared_ptr<Mailbox>& mailbox() { return mailbox_; }
  PeerAccounts& peer_accounts() { return peer_accounts_; }
  // Of the connections in the making: ended when the context is closed.
  Awaits& awaits() { return *awaits_; }
  // Null: the program allowed none.
  HelperThread* helper() const { return helper_.get(); }
  // Pages for allocations under way, in slices.
  Population& population() { return population_; }
  // For the copies that this context's thread makes.
  StreamingRule& streaming() { return streaming_; }
  // Tells calls from a second thread; shared with endpoints, which may outlive the context.
  const std::shared_ptr<ThreadMark>& thread_mark() const { return thread_mark_; }

  // While a path's turn cannot be taken inside itself: its completions may not wait.
  class LoneTurn {
   public:
    explicit LoneTurn(ContextCore& context)
        : context_(context), before_(std::exchange(context.in_lone_turn_, true)) {}
    ~LoneTurn() { context_.in_lone_turn_ = before_; }
    LoneTurn(const LoneTurn&) = delete;
    LoneTurn& operator=(const LoneTurn&) = delete;

   private:
    ContextCore& context_;
    const bool before_;
  };
  // Errors: kWrongState (inside such a turn).
  Status may_wait() const {
    if (!in_lone_turn_) [[likely]]
      return Status();
    return refuse_wait();
  }

  // True if this thread, judged by its last waits, will sleep and not poll once it has nothing to
  // do. A message must then wake it. A hint. Cost: a few ns.
  bool sleeps_when_idle() const {
    if (waiting_ != Waiting::kAdaptive) return waiting_ == Waiting::kSleep;
    return foreign_loop_ || longest_spin_ == Duration(0) || !polling_pays(now_);
  }

  // Connections made from now on have this between them and their path: a recorder, or faults in
  // tests.
  void decorate_links(std::shared_ptr<LinkDecorator> decorator) {
    link_decorator_ = std::move(decorator);
  }
  LinkDecorator* link_decorator() const { return link_decorator_.get(); }

 private:
  friend class Context;
  friend class Listener;
  size_t turn();
  // Turns for a millisecond, or until nothing is left to do.
  size_t long_turn();
  // The paths; descriptors when some time has gone by in such turns.
  size_t poll_turn();
  Status wait_for_work(Instant deadline, WaitGate* gate);
  size_t say_second_thread();
  Status refuse_wait() const;
  void close_listeners();
  void forget(const internal::OpenListener* listener);
  size_t poll_events(int timeout_ms);
  size_t deliver_events();
  size_t run_providers();
  size_t populate(bool others_busy);
  bool sleep(Instant deadline, WaitGate* gate, std::optional<ThreadMark::Inside>& inside);
  bool spin(Instant deadline);
  // Adaptive: waits usually end within the budget, and there is a processor to poll on.
  bool polling_pays(Instant now) const {
    return many_cpus_ && now >= oversubscribed_until_ && typical_gap_ <= longest_spin_;
  }
  void end_sleep();

  PeerAccounts peer_accounts_;  // before the providers, whose sessions have accounts
  std::vector<std::unique_ptr<Provider>> providers_;
  std::shared_ptr<Mailbox> mailbox_;
  // Handlers unwatched while a batch of events is being delivered.
  std::vector<EventHandler*> dead_handlers_;
  std::vector<ProgressHook*> hooks_;
  Population population_;
  std::unique_ptr<HelperThread> helper_;
  std::unique_ptr<Awaits> awaits_;
  std::vector<std::shared_ptr<internal::OpenListener>> listeners_;
  std::shared_ptr<ThreadMark> thread_mark_ = std::make_shared<ThreadMark>();
  std::shared_ptr<LinkDecorator> link_decorator_;
  Instant oversubscribed_until_{};
  Instant last_event_check_{};
  Instant last_tick_{};      // of the kernel's clock, as progress() last saw it
  Duration typical_gap_{0};  // smoothed time spent in wait() until something came
  uint32_t polls_since_clock_ = 0;
  ShortTurns short_turns_;
  // The last batch of events (events_). Events for which a turn had no time come in the next one.
  uint32_t next_event_ = 0, event_count_ = 0;
  StreamingRule streaming_;
  Duration longest_spin_;  // tuning().spin_ns
  Waiting waiting_;
  bool wants_helper_;
  bool sleeping_ = false;
  bool foreign_loop_ = false;  // the last to sleep was not wait()
  bool many_cpus_ = false;
  bool closed_ = false;  // close() was called
  bool in_lone_turn_ = false;
  bool polled_out_ = false;  // the last spin used its whole budget without success
  uint32_t vain_spins_ = 0;  // fruitless ones in a row
  static constexpr uint32_t kEventsPerCheck = 64;
  std::array<epoll_event, kEventsPerCheck> events_;  // last: large, and seldom looked at
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_CONTEXT_CORE_H_
