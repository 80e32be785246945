// A Context: one thread's set of endpoints and listeners, progressed together. Knows neither
// the paths (transport/spi) nor the loop behind it (transport/runtime).
#ifndef SLUICE_API_CONTEXT_H_
#define SLUICE_API_CONTEXT_H_

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

#include <sluice/allocator/arena.h>
#include <sluice/api/address.h>
#include <sluice/api/endpoint.h>
#include <sluice/api/peer_limits.h>
#include <sluice/api/progress_hook.h>
#include <sluice/api/tuning.h>
#include <sluice/api/wait_gate.h>
#include <sluice/base/process_mark.h>
#include <sluice/base/result.h>

namespace sluice {

class ContextCore;  // <sluice/runtime/context_core.h>

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

namespace internal {
struct OpenListener;  // shared by a Listener and its Context, either of which may end first
}

// Closed with its context, which it may outlive.
class Listener {
 public:
  Listener() = default;
  explicit Listener(std::shared_ptr<internal::OpenListener> open);
  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&& other) noexcept {
    std::swap(open_, other.open_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~Listener();

  explicit operator bool() const;
  // What a peer passes to connect(); empty once this or its context is closed.
  std::string address() const;
  // kTryAgain: none yet; progress the context.
  Result<Endpoint> try_accept();
  // Progresses the context until a peer connected. Errors: kTimedOut.
  Result<Endpoint> accept(Instant deadline);
  void close();

 private:
  std::shared_ptr<internal::OpenListener> open_;
  ProcessMark owner_ = ProcessMark::current();
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
  // Unset: as SLUICE_WAITING says, or kAdaptive.
  std::optional<Waiting> waiting = std::nullopt;
  // Thresholds; unset: those of this machine, as `sluice tune` measured them and SLUICE_TUNING
  // says, or the usual ones.
  std::optional<Tuning> tuning = std::nullopt;
  // The context has a thread beside its own, which provides and frees the pages of large memory and
  // copies a part of large tensors. So does $SLUICE_HELPER_THREAD.
  bool helper_thread = false;
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
  // Made by sluice::open_context().
  virtual ~Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Errors: kInvalidArgument (address), kUnreachable, kTimedOut, kUnsupported (no path
  // meets options.require; the detail says why for each).
  Result<Endpoint> connect(std::string_view address, const ConnectOptions& options = {});
  Result<Listener> listen(std::string_view address, const ListenOptions& options = {});

  Arena& arena() { return *arena_; }
  const std::shared_ptr<Arena>& shared_arena() { return arena_; }
  const Tuning& tuning() const { return tuning_; }
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
  // Returns after something was done, or at the deadline (kTimedOut). Errors of waiting in any
  // form: kWrongState inside a completion of l2 or kmod (CompletionSink).
  Status wait(Instant deadline) { return wait(deadline, nullptr); }
  // The same for threads that take turns: while this one sleeps, others may use the context. The
  // last thing that each of them does in its turn is prepare_to_sleep(), until that is true.
  // Returns after each sleep, whoever did what there was to do. Requires: no progress() or wait()
  // of this thread is under way.
  Status wait(Instant deadline, WaitGate& gate) { return wait(deadline, &gate); }
  // Progresses until done() returns true. It is not called after that, so it may take what it finds
  // (Listener::accept() does). Errors: kTimedOut, also while others keep this thread busy.
  template <typename Done>
  Status wait_until(Done&& done, Instant deadline) {
    while (!done()) {
      const bool worked = progress() > 0;
      if (worked && now_ < deadline) continue;
      if (done()) break;
      if (worked) return too_late();
      SLUICE_RETURN_IF_ERROR(wait(deadline));
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

  // A turn in every progress() from here to remove_hook(). Ownership: the hook is the caller's.
  void add_hook(ProgressHook* hook);
  void remove_hook(ProgressHook* hook);

 private:
  friend class ContextCore;  // every Context is one
  Context(const ContextOptions& options, std::shared_ptr<Arena> arena);
  static Status too_late();
  Status wait(Instant deadline, WaitGate* gate);

  std::shared_ptr<Arena> arena_;
  Tuning tuning_;
  Instant now_{};
  int epoll_fd_ = -1;
  ProcessMark owner_ = ProcessMark::current();
};

}  // namespace sluice

#endif  // SLUICE_API_CONTEXT_H_
