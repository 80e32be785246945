// A Context: one thread's set of endpoints and listeners, progressed together. Knows
// backends only as Providers.
#ifndef SLUICE_API_CONTEXT_H_
#define SLUICE_API_CONTEXT_H_

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/epoll.h>

#include <sluice/allocator/arena.h>
#include <sluice/api/address.h>
#include <sluice/api/endpoint.h>
#include <sluice/api/mailbox.h>
#include <sluice/api/peer_account.h>
#include <sluice/api/peer_limits.h>
#include <sluice/api/tuning.h>
#include <sluice/base/process_mark.h>
#include <sluice/base/result.h>
#include <sluice/base/streaming_rule.h>
#include <sluice/base/thread_mark.h>

namespace sluice {

namespace proto {
class LinkDecorator;
}

struct ConnectOptions {
  Requirements require;
  Duration timeout = std::chrono::seconds(10);  // of connect() itself
  // Deadline of operations that state none.
  Duration operation_timeout = std::chrono::seconds(30);
  // A peer that answers keepalives but never calls progress is closed after this; zero: never.
  Duration silence_limit = Duration(0);
  // l2 and sluice only: the file of the secret that both ends share, readable by nobody else;
  // frames are encrypted. Empty: that of SLUICE_L2_SECRET_FILE, or none. With a secret,
  // Capability::kSealed is required of every path.
  std::string secret_file = {};
  // Takes paths that are not sealed although there is a secret. An attacker who can stop frames
  // can then make the connection use TCP.
  bool allow_unsealed = false;
  // l2 only: a name that no file has is asked for by broadcast on its interface, and the address
  // may leave the port out (l2://eth0/worker3). SLUICE_L2_DISCOVER=1 says so for a whole process.
  bool discover = false;
  // sluice:// only: after shm and RDMA plain Ethernet is tried, the kernel module before raw
  // frames, if the listener wishes it too. SLUICE_ETHERNET=1 says so for a whole process.
  bool ethernet = false;
};

// The peer that asks to be accepted. Nothing proves what its HELLO says.
struct PeerIntroduction {
  Path path = Path::kNone;
  std::string_view address;  // as EndpointInfo::peer; valid during the call
  // What the kernel says of the process at the other end of a Unix socket; other paths: nothing.
  std::optional<uint32_t> user_id;
  std::optional<uint32_t> process_id;
  // Out of its HELLO: differs after the process restarted; its process id on its own machine.
  uint64_t incarnation = 0;
  uint32_t said_process_id = 0;
};

struct ListenOptions {
  Requirements require;
  // Limit of connections of this listener that are open at once: in all, and from one peer (its
  // address without the port, of IPv6 the /64; l2 and kmod: MAC address; shm: user). Zero: as
  // ContextOptions::peer_limits says. Further ones are refused with kTryAgain.
  uint32_t max_connections = 0;
  uint32_t max_connections_by_address = 0;
  // A connection is closed if neither end has used it for this long, and at twice that at the
  // latest. Keepalives do not count, operations that wait do. Zero: never.
  Duration idle_limit = Duration(0);
  // Asked about each peer once its HELLO is read, before it is accepted; false refuses it with
  // kAccessDenied. Called from progress(); calls nothing of the context.
  std::function<bool(const PeerIntroduction&)> accept = {};
  Duration operation_timeout = std::chrono::seconds(30);
  Duration silence_limit = Duration(0);
  int backlog = 128;
  std::string secret_file = {};  // as in ConnectOptions
  bool allow_unsealed = false;   // as in ConnectOptions
  // l2 over raw frames only: answers those who ask for this name by broadcast; 1 to 64 letters,
  // digits, '.', '_' and '-'. Empty: that of SLUICE_L2_NAME, or no answer.
  std::string discoverable_as = {};
  // sluice:// only: a caller may use plain Ethernet, as in ConnectOptions. The listener then
  // listens on each interface by which a greeting came, and every station of that Ethernet can
  // reach it.
  bool ethernet = false;
};

class ListenerCore {
 public:
  virtual ~ListenerCore() = default;
  // The next connected endpoint, or null. Never blocks.
  virtual std::shared_ptr<EndpointCore> accept() = 0;
  // Where it listens: what a peer passes to connect().
  virtual std::string address() const = 0;
  virtual void close() = 0;
};

namespace internal {
// Shared by a Listener and its Context, either of which may end first.
struct OpenListener {
  std::unique_ptr<ListenerCore> core;  // null: closed
  Context* context = nullptr;          // valid while there is a core
};
}  // namespace internal

// Closed with its context, which it may outlive.
class Listener {
 public:
  Listener() = default;
  explicit Listener(std::shared_ptr<internal::OpenListener> open) : open_(std::move(open)) {}
  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&& other) noexcept {
    std::swap(open_, other.open_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~Listener();

  explicit operator bool() const { return open_ && open_->core; }
  // What a peer passes to connect(); empty once this or its context is closed.
  std::string address() const { return *this ? open_->core->address() : std::string(); }
  // kTryAgain: none yet; progress the context.
  Result<Endpoint> try_accept();
  // Progresses the context until a peer connected. Errors: kTimedOut.
  Result<Endpoint> accept(Instant deadline);
  void close();

 private:
  std::shared_ptr<internal::OpenListener> open_;
  ProcessMark owner_ = ProcessMark::current();
};

// Gets the events of one file descriptor from the context's epoll.
class EventHandler {
 public:
  virtual void on_event(uint32_t epoll_events) noexcept = 0;

 protected:
  ~EventHandler() = default;
};

// One backend in one context.
class Provider {
 public:
  virtual ~Provider() = default;
  virtual Scheme scheme() const = 0;
  // Blocks: until connected or the deadline; progresses the context meanwhile.
  virtual Result<std::shared_ptr<EndpointCore>> connect(const Address& address,
                                                        const ConnectOptions& options) = 0;
  virtual Result<std::unique_ptr<ListenerCore>> listen(const Address& address,
                                                       const ListenOptions& options) = 0;

  // Bounded work; returns how many events it handled (0: idle).
  virtual size_t progress(Instant now) = 0;
  // About to sleep on the context's epoll: arm doorbells, then look again. False:
  // there is work now. Undone by end_sleep().
  virtual bool begin_sleep() { return true; }
  virtual void end_sleep() {}
  // Answers or messages wait until a path has room for them; only progress() sends them.
  virtual bool has_unsent() const { return false; }
  // True while large payloads pass through the kernel: their next event is further off
  // than a spin is worth.
  virtual bool in_bulk() const { return false; }
  // When progress() must run at the latest, or kNever.
  virtual Instant next_timeout() { return kNever; }
  // False: there is nothing that progress() could do (no endpoint, no listener). Read in
  // every round of a spin, so a plain flag that the provider keeps.
  bool in_use() const { return in_use_; }
  // Ends every endpoint at once.
  virtual void shut_down() = 0;
  // For `sluice info --explain`: "usable", or why not and what to do about it.
  virtual std::string explain() const { return "usable"; }

 protected:
  bool in_use_ = false;
};

// Something above the backends that needs a turn in progress(): the exchange's timers.
class ProgressHook {
 public:
  virtual size_t progress(Instant now) = 0;
  virtual Instant next_timeout() = 0;

 protected:
  ~ProgressHook() = default;
};

// Told while a wait() sleeps, so that other threads can use the context meanwhile.
class WaitGate {
 public:
  // Others may enter from now on. Without an event the sleep ends at `until`; whoever makes that
  // too late wakes it.
  virtual void leave(Instant until) = 0;
  // Blocks until nobody else is inside.
  virtual void enter() = 0;

 protected:
  ~WaitGate() = default;
};

enum class Waiting : uint8_t {
  kAdaptive,  // spin for a measured budget (none when CPUs are oversubscribed), then sleep
  kSpin,      // never sleep: a core of its own
  kSleep,     // sleep at once
};

struct ContextOptions {
  // Memory for this context; null: one of its own with `arena_options`. May be shared
  // by several contexts.
  std::shared_ptr<Arena> arena;
  ArenaOptions arena_options;
  Waiting waiting = Waiting::kAdaptive;
  // Thresholds; unset: those of this machine, as `sluice tune` measured them and SLUICE_TUNING
  // says, or the usual ones.
  std::optional<Tuning> tuning = std::nullopt;
  // What one peer, and all together, can make this context keep.
  PeerLimits peer_limits = {};
};

namespace internal {
template <typename T>
using Outcome = std::conditional_t<std::is_constructible_v<T, Status>, T, Result<T>>;
}  // namespace internal

// Thread: one thread at a time calls a Context and everything that belongs to it;
// Buffers and Tensors are exempt (buffer.h). A call while another thread is inside gives
// kWrongState and one line in the log (ThreadMark). After fork the child's calls give kWrongState.
class Context {
 public:
  // Used by select; programs call sluice::open_context().
  Context(const ContextOptions& options, std::shared_ptr<Arena> arena);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  Status initialise();  // epoll and doorbell. Errors: kNoMemory (fd limit).
  void add_provider(std::unique_ptr<Provider> provider);
  Provider* provider(Scheme scheme) const;
  std::span<const std::unique_ptr<Provider>> providers() const { return providers_; }

  // Errors: kInvalidArgument (address), kUnreachable, kTimedOut, kUnsupported (no path
  // meets options.require; the detail says why for each).
  Result<Endpoint> connect(std::string_view address, const ConnectOptions& options = {});
  Result<Listener> listen(std::string_view address, const ListenOptions& options = {});

  Arena& arena() { return *arena_; }
  const std::shared_ptr<Arena>& shared_arena() { return arena_; }
  const Tuning& tuning() const { return tuning_; }
  // For the copies that this context's thread makes.
  StreamingRule& streaming() { return streaming_; }
  Result<Buffer> allocate(std::span<const int64_t> shape, DataType dtype,
                          const AllocateOptions& options = {}) {
    return arena_->allocate(shape, dtype, options);
  }
  Result<Buffer> allocate(std::initializer_list<int64_t> shape, DataType dtype,
                          const AllocateOptions& options = {}) {
    return arena_->allocate(std::span(shape.begin(), shape.size()), dtype, options);
  }

  // Does bounded work without blocking; completions are delivered from here. Returns
  // how much it did (0: nothing).
  size_t progress();
  // Returns after something was done, or at the deadline (kTimedOut).
  Status wait(Instant deadline) { return wait(deadline, nullptr); }
  // The same for threads that take turns: while this one sleeps, others may use the context. The
  // last thing that each of them does in its turn is prepare_to_sleep(), until that is true.
  // Returns after each sleep, whoever did what there was to do. Requires: no progress() or wait()
  // of this thread is under way.
  Status wait(Instant deadline, WaitGate& gate) { return wait(deadline, &gate); }
  // Progresses until done() is true. Errors: kTimedOut, also while others keep this thread busy.
  template <typename Done>
  Status wait_until(Done&& done, Instant deadline) {
    while (!done()) {
      if (progress() > 0) {
        if (now_ >= deadline && !done()) return too_late();
      } else if (!done()) {
        SLUICE_RETURN_IF_ERROR(wait(deadline));
      }
    }
    return Status();
  }
  // Progresses until an operation of the exchange or a Task is ready, and returns its result: as a
  // Result if the type of take() cannot hold an error. Errors, beside those of take(): as wait().
  // The operation goes on after such an error, unless it was passed as an rvalue, which cancels it.
  template <typename Pending>
  auto run_until(Pending&& pending, Instant deadline = kNever)
      -> internal::Outcome<decltype(pending.take())> {
    Status waited = wait_until([&] { return pending.ready(); }, deadline);
    if (!waited.ok()) return waited;
    return pending.take();
  }

  // For foreign event loops: readable when progress() has something to do, provided
  // that prepare_to_sleep() returned true since the last progress(). next_timeout()
  // is when progress() must be called even without an event.
  int fd() const { return epoll_fd_; }
  bool prepare_to_sleep();
  Instant next_timeout();
  // True if answers to finished operations, or messages, wait for room. Peers wait for them until
  // the loop calls progress(). Cost: looks at every connection.
  bool has_unsent() const;

  // True if this thread, judged by its last waits, will sleep and not poll once it has nothing to
  // do. A message must then wake it. A hint. Cost: a few ns.
  bool sleeps_when_idle() const {
    if (waiting_ != Waiting::kAdaptive) return waiting_ == Waiting::kSleep;
    return foreign_loop_ || longest_spin_ == Duration(0) || !polling_pays(now_);
  }

  // The time as of the last progress(), at most a few µs old while work goes on.
  Instant now() const { return now_; }
  Instant refresh_now() { return now_ = sluice::now(); }

  // Closes all endpoints and listeners. The context connects and listens no more. Returns how many
  // Buffers and Tensors the program still holds, views of peers' memory included; they stay valid.
  // If contexts share an arena, the Buffers and Tensors of all of them are counted.
  Result<size_t> close(Instant deadline);
  // True in a child of the process that opened the context.
  bool forked() const { return owner_.in_forked_child(); }
  // kWrongState in such a child.
  Status check_process() const { return owner_.check(); }
  // Tells calls from a second thread; shared with endpoints, which may outlive the context.
  const std::shared_ptr<ThreadMark>& thread_mark() const { return thread_mark_; }

  // For backends and the exchange.
  Status watch(int fd, uint32_t epoll_events, EventHandler* handler);
  Status rewatch(int fd, uint32_t epoll_events, EventHandler* handler);
  void unwatch(int fd, EventHandler* handler);
  const std::shared_ptr<Mailbox>& mailbox() { return mailbox_; }
  PeerAccounts& peer_accounts() { return peer_accounts_; }
  void add_hook(ProgressHook* hook) { hooks_.push_back(hook); }
  void remove_hook(ProgressHook* hook);
  // For tests: connections made from now on have this between them and their path.
  void decorate_links(std::shared_ptr<proto::LinkDecorator> decorator) {
    link_decorator_ = std::move(decorator);
  }
  proto::LinkDecorator* link_decorator() const { return link_decorator_.get(); }

 private:
  friend class Listener;
  Status check_usable() const;
  size_t say_second_thread();
  void close_listeners();
  void forget(const internal::OpenListener* listener);
  static Status too_late();
  Status wait(Instant deadline, WaitGate* gate);
  size_t poll_events(int timeout_ms);
  size_t deliver_events();
  size_t run_providers();
  bool sleep(Instant deadline, WaitGate* gate, std::optional<ThreadMark::Inside>& inside);
  bool spin(Instant deadline);
  // Adaptive: waits usually end within the budget, and there is a processor to poll on.
  bool polling_pays(Instant now) const {
    return many_cpus_ && now >= oversubscribed_until_ && typical_gap_ <= longest_spin_;
  }
  void end_sleep();

  std::shared_ptr<Arena> arena_;
  PeerAccounts peer_accounts_;  // before the providers, whose sessions have accounts
  std::vector<std::unique_ptr<Provider>> providers_;
  std::shared_ptr<Mailbox> mailbox_;
  // Handlers unwatched while a batch of events is being delivered.
  std::vector<EventHandler*> dead_handlers_;
  std::vector<ProgressHook*> hooks_;
  std::vector<std::shared_ptr<internal::OpenListener>> listeners_;
  std::shared_ptr<ThreadMark> thread_mark_ = std::make_shared<ThreadMark>();
  std::shared_ptr<proto::LinkDecorator> link_decorator_;
  Instant now_{};
  Instant oversubscribed_until_{};
  Instant last_event_check_{};
  Duration typical_gap_{0};  // smoothed time spent in wait() until something came
  int epoll_fd_ = -1;
  uint32_t polls_since_clock_ = 0;
  // The last batch of events (events_). Events for which a turn had no time come in the next one.
  uint32_t next_event_ = 0, event_count_ = 0;
  Tuning tuning_;
  StreamingRule streaming_;
  Duration longest_spin_;  // tuning_.spin_ns
  Waiting waiting_;
  bool sleeping_ = false;
  bool foreign_loop_ = false;  // the last to sleep was not wait()
  bool many_cpus_ = false;
  bool closed_ = false;      // close() was called
  bool polled_out_ = false;  // the last spin used its whole budget without success
  uint32_t vain_spins_ = 0;  // fruitless ones in a row
  ProcessMark owner_ = ProcessMark::current();
  static constexpr uint32_t kEventsPerCheck = 64;
  std::array<epoll_event, kEventsPerCheck> events_;  // last: large, and seldom looked at
};

}  // namespace sluice

#endif  // SLUICE_API_CONTEXT_H_
