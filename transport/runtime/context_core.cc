#include <sluice/runtime/context_core.h>

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include <sluice/api/connecting.h>
#include <sluice/base/log.h>
#include <sluice/base/settings.h>
#include <sluice/runtime/awaits.h>
#include <sluice/runtime/connecting.h>

namespace sluice {
namespace {

constexpr const char* kOrigin = "api/context";

// A gap this long between two polls of a spin means that the processor was given to
// somebody else: more runnable threads than CPUs.
constexpr Duration kDescheduled = std::chrono::milliseconds(1);
// After two fruitless spins in a row, each of whose waits ended soon after the sleep, back off.
constexpr uint32_t kVainSpins = 2;
constexpr Duration kBackOff = std::chrono::milliseconds(100);
// While rings and hot sockets are polled, the clock is read every so many rounds, and
// file descriptors are looked at when so much time has gone by: a system call in every
// round would cost more than all the rest of it.
constexpr uint32_t kPollsPerClockCheck = 64;
// So much work in a turn counts as one more round.
constexpr size_t kWorkPerPoll = 8;
constexpr Duration kEventCheckInterval = std::chrono::microseconds(20);
constexpr int kPollsPerClock = 16;
// How long events are delivered in one turn before the rest waits for the next. One
// connection's handler has a budget of its own (proto::TurnBudget), half of this.
constexpr Duration kEventTime = std::chrono::milliseconds(1);
// A program that has not called progress() for so long gets turns for kEventTime in one call. At
// least two ticks of the kernel's clock.
constexpr Duration kSeldom = std::chrono::milliseconds(20);

}  // namespace

Context::Context(const ContextOptions& options, std::shared_ptr<Arena> arena)
    : arena_(std::move(arena)), tuning_(options.tuning.value_or(Tuning())), now_(sluice::now()) {}

ContextCore::ContextCore(const ContextOptions& options, std::shared_ptr<Arena> arena)
    : Context(options, std::move(arena)),
      peer_accounts_(resolve(options.peer_limits, arena_ ? arena_->statistics().limit_bytes : 0)),
      population_(arena_.get()),
      awaits_(std::make_unique<Awaits>(*this)),
      streaming_(tuning_.stream_copy_bytes >= kNeverBytes ? StreamingRule::kNever
                                                          : tuning_.stream_copy_bytes),
      longest_spin_(tuning_.spin_ns),
      waiting_(options.waiting.value_or(Waiting::kAdaptive)),
      wants_helper_(options.helper_thread || setting_is("SLUICE_HELPER_THREAD", "1")) {
  // The machine's processors, not this thread's: polling pays most for a thread that is kept on a
  // processor of its own.
  many_cpus_ = ::sysconf(_SC_NPROCESSORS_ONLN) > 1;
}

ContextCore::~ContextCore() {
  if (forked()) {
    // The parent's sockets and doorbells are its own: the child only closes its copies.
    for (auto& listener : listeners_) (void)listener->core.release();
    for (auto& provider : providers_) (void)provider.release();
    (void)awaits_.release();
    (void)helper_.release();
    if (epoll_fd_ >= 0) ::close(epoll_fd_);
    return;
  }
  awaits_->end_all();
  close_listeners();
  for (auto& provider : providers_) provider->shut_down();
  if (mailbox_) {
    mailbox_->open_all();
    mailbox_->close();
  }
  providers_.clear();
  population_.set_helper(nullptr);
  helper_.reset();
  // At once, as nobody takes turns any more; what was closed before did so until its deadline.
  if (population_.busy()) arena_->free_some(SIZE_MAX);
  if (epoll_fd_ >= 0) ::close(epoll_fd_);
}

Status ContextCore::initialise() {
  epoll_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  int doorbell = epoll_fd_ >= 0 ? ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
  if (doorbell < 0) {
    return Status(Code::kNoMemory, Scope::kContext, kOrigin,
                  "no file descriptor for the event loop; raise the limit with ulimit -n", errno);
  }
  mailbox_ = std::make_shared<Mailbox>(doorbell);
  if (wants_helper_ && arena_ != nullptr) {
    SLUICE_TRY(helper_, HelperThread::start(mailbox_));
    population_.set_helper(helper_.get());
  }
  return watch(doorbell, EPOLLIN, nullptr);
}

void ContextCore::add_provider(std::unique_ptr<Provider> provider) {
  providers_.push_back(std::move(provider));
}

Provider* ContextCore::provider(Scheme scheme) const {
  for (const auto& provider : providers_) {
    if (provider->scheme() == scheme) return provider.get();
  }
  return nullptr;
}

Status ContextCore::check_usable() const {
  SLUICE_RETURN_IF_ERROR(owner_.check());
  if (thread_mark_->elsewhere()) return ThreadMark::refusal();
  if (!closed_) return Status();
  return Status(Code::kWrongState, Scope::kContext, kOrigin,
                "this context is closed; open another with sluice::open_context()");
}

Status ContextCore::refuse_wait() const {
  return Status(
      Code::kWrongState, Scope::kContext, kOrigin,
      "inside a completion of l2:// or kmod:// nothing moves on that path, so a wait might "
      "never end; post the operation and let its completion go on, or wait after "
      "progress() has returned");
}

// For progress(), which has no Status to return: logs the misuse, and returns 0.
size_t ContextCore::say_second_thread() {
  static LogThrottle throttle;
  throttle.log(LogLevel::kError, ThreadMark::refusal().to_string());
  return 0;
}

Result<Endpoint> Context::connect(std::string_view text, const ConnectOptions& options) {
  Connecting connecting = start_connect(*this, std::string(text), options);
  return run_until(connecting);
}

Result<Listener> Context::listen(std::string_view text, const ListenOptions& options) {
  ContextCore& core = ContextCore::of(*this);
  SLUICE_RETURN_IF_ERROR(core.check_usable());
  SLUICE_TRY(Address address, Address::parse(text));
  ListenOptions chosen = options;
  SLUICE_TRY(Provider * provider, internal::provider_to_listen(core, address, chosen));
  SLUICE_TRY(std::unique_ptr<ListenerCore> listening, provider->listen(address, chosen));
  auto open = std::make_shared<internal::OpenListener>();
  open->core = std::move(listening);
  open->context = &core;
  core.listeners_.push_back(open);
  return Listener(std::move(open));
}

size_t ContextCore::run_providers() {
  size_t work = 0;
  for (auto& provider : providers_) {
    if (provider->in_use()) work += provider->progress(now_);
  }
  for (size_t i = 0; i < hooks_.size(); ++i) {
    if (hooks_[i]->idle_until() <= now_) work += hooks_[i]->progress(now_);
  }
  if (population_.busy()) [[unlikely]]
    work += populate(work > 0);
  if (!short_turns_.ends_after(work) && !mailbox_->empty()) work += mailbox_->open_all();
  return work;
}

size_t ContextCore::populate(bool others_busy) {
  const size_t slices = population_.progress(others_busy);
  // It took long: descriptors are looked at in the same turn.
  if (slices > 0) polls_since_clock_ = kPollsPerClockCheck;
  return slices;
}

// The first turn after a sleep: a foreign loop was woken by our descriptor, where the event waits.
size_t ContextCore::turn() {
  foreign_loop_ = true;
  end_sleep();
  refresh_now();
  return poll_events(0) + run_providers();
}

size_t Context::progress() {
  ContextCore& core = ContextCore::of(*this);
  if (forked()) [[unlikely]]
    return 0;
  ThreadMark::Inside inside(*core.thread_mark_);
  if (!inside.alone()) [[unlikely]]
    return core.say_second_thread();
  if (core.sleeping_) [[unlikely]]
    return core.turn();
  // A program that calls this seldom would look at descriptors in every 64th call only.
  const Instant tick = last_tick();
  if (tick != core.last_tick_) [[unlikely]] {
    const bool seldom = core.last_tick_ != Instant{} && tick - core.last_tick_ >= kSeldom;
    core.last_tick_ = tick;
    refresh_now();
    core.polls_since_clock_ = kPollsPerClockCheck;
    if (seldom) return core.long_turn();
  }
  return core.poll_turn();
}

// A turn takes little of what waits, since the next one follows at once; in such a program it does
// not. Pages of large memory take long by themselves: after a turn with some it ends.
size_t ContextCore::long_turn() {
  size_t all = 0, work = 0;
  const Instant end = after(now_, kEventTime);
  do {
    work = run_providers() + poll_events(0);
    all += work;
    refresh_now();
  } while (work > 0 && now_ < end && !population_.busy());
  return all;
}

size_t ContextCore::poll_turn() {
  size_t work = run_providers();
  if (next_event_ < event_count_) [[unlikely]]
    work += deliver_events();
  // A turn that did much took long: others may have come meanwhile.
  polls_since_clock_ +=
      1 + static_cast<uint32_t>(std::min<size_t>(work / kWorkPerPoll, kPollsPerClockCheck));
  if (polls_since_clock_ < kPollsPerClockCheck) [[likely]]
    return work;
  polls_since_clock_ = 0;
  refresh_now();
  if (now_ - last_event_check_ < kEventCheckInterval) return work;
  last_event_check_ = now_;
  return work + poll_events(0);
}

size_t ContextCore::poll_events(int timeout_ms) {
  if (next_event_ == event_count_) {
    int count = ::epoll_wait(epoll_fd_, events_.data(), kEventsPerCheck, timeout_ms);
    // Handlers count from now(): after a sleep of seconds a limit would be over at once.
    if (timeout_ms != 0) refresh_now();
    if (count <= 0) return 0;
    next_event_ = 0;
    event_count_ = static_cast<uint32_t>(count);
  }
  return deliver_events();
}

size_t ContextCore::deliver_events() {
  bool rung = false;
  size_t work = 0;
  Instant start{};
  while (next_event_ < event_count_) {
    const epoll_event event = events_[next_event_++];
    auto* handler = static_cast<EventHandler*>(event.data.ptr);
    if (handler == nullptr) {  // the doorbell of the mailbox
      uint64_t ignored;
      [[maybe_unused]] ssize_t n = ::read(mailbox_->doorbell(), &ignored, sizeof(ignored));
      rung = true;
      continue;
    }
    if (std::find(dead_handlers_.begin(), dead_handlers_.end(), handler) != dead_handlers_.end())
      continue;
    const bool more = next_event_ < event_count_;
    if (more && start == Instant{}) start = sluice::now();
    handler->on_event(event.events);
    ++work;
    if (more && sluice::now() - start >= kEventTime) break;
  }
  if (next_event_ == event_count_) dead_handlers_.clear();
  // Last: a letter may wait for things and end them, and so take handlers away that events of this
  // batch are for.
  if (rung) work += mailbox_->open_all();
  return work;
}

Instant Context::next_timeout() {
  ContextCore& core = ContextCore::of(*this);
  Instant next = core.population_.next_timeout();
  for (auto& provider : core.providers_) next = std::min(next, provider->next_timeout());
  for (ProgressHook* hook : core.hooks_) next = std::min(next, hook->next_timeout());
  return next;
}

bool Context::has_unsent() const {
  const auto providers = ContextCore::of(*this).providers();
  return std::any_of(providers.begin(), providers.end(), [](const auto& provider) {
    return provider->in_use() && provider->has_unsent();
  });
}

bool Context::prepare_to_sleep() {
  if (forked()) return true;  // nothing will come
  ContextCore& core = ContextCore::of(*this);
  if (core.sleeping_) return true;
  if (core.next_event_ < core.event_count_) return false;
  core.sleeping_ = true;
  bool quiet = core.mailbox_->begin_sleep();
  // All are armed, also after one said no: end_sleep() undoes all.
  for (auto& provider : core.providers_) quiet = provider->begin_sleep() && quiet;
  if (!quiet) core.end_sleep();
  return quiet;
}

void ContextCore::end_sleep() {
  sleeping_ = false;
  mailbox_->end_sleep();
  for (auto& provider : providers_) provider->end_sleep();
}

// True when something was done.
bool ContextCore::spin(Instant deadline) {
  // What comes at once is found before the clock is looked at.
  for (int i = 0; i < kPollsPerClock; ++i) {
    if (poll_turn() > 0) return true;
  }
  Instant start = refresh_now();
  Duration budget = waiting_ == Waiting::kSpin ? Duration::max() : longest_spin_;
  if (waiting_ == Waiting::kAdaptive) {
    if (!polling_pays(start)) return false;
    for (auto& provider : providers_) {
      if (provider->in_use() && provider->in_bulk()) return false;
    }
  }
  Instant end = std::min(deadline, after(start, budget));
  Instant last = start;
  while (true) {
    for (uint32_t i = 0; i < kPollsPerClockCheck; ++i) {
      if (poll_turn() > 0) return true;
    }
    Instant t = refresh_now();
    if (t - last > kDescheduled && waiting_ == Waiting::kAdaptive) {
      oversubscribed_until_ = t + kBackOff;
      return false;
    }
    last = t;
    if (t >= end) {
      polled_out_ = t < deadline;
      return false;
    }
  }
}

// True when an event was handled.
bool ContextCore::sleep(Instant deadline, WaitGate* gate,
                        std::optional<ThreadMark::Inside>& inside) {
  if (next_event_ < event_count_) return deliver_events() > 0;
  if (!prepare_to_sleep()) return false;
  Instant wake = std::min(deadline, next_timeout());
  int timeout_ms = -1;
  if (wake != kNever) {
    auto left = std::max(Duration(0), wake - sluice::now());
    // Rounded up: waking early would spin through the rest of the millisecond.
    timeout_ms = static_cast<int>(std::min<int64_t>((left.count() + 999'999) / 1'000'000, 60'000));
  }
  size_t events = 0;
  if (gate == nullptr) {
    events = poll_events(timeout_ms);
    end_sleep();
  } else {
    inside.reset();
    gate->leave(wake);
    // Without taking events: another thread may do that meanwhile.
    pollfd any{.fd = epoll_fd_, .events = POLLIN, .revents = 0};
    (void)::poll(&any, 1, timeout_ms);
    gate->enter();
    inside.emplace(*thread_mark_);
    end_sleep();
    refresh_now();
    events = poll_events(0);
  }
  refresh_now();
  return events > 0;
}

Status Context::too_late() {
  return Status(Code::kTimedOut, Scope::kOperation, kOrigin,
                "what was waited for did not happen before the deadline; wait longer, or check "
                "what was to bring it about");
}

Status ContextCore::wait_for_work(Instant deadline, WaitGate* gate) {
  SLUICE_RETURN_IF_ERROR(owner_.check());
  std::optional<ThreadMark::Inside> inside(std::in_place, *thread_mark_);
  if (!inside->alone()) return ThreadMark::refusal();
  SLUICE_RETURN_IF_ERROR(may_wait());
  if (waiting_ == Waiting::kSpin) {
    if (progress() > 0) return Status();  // ends the sleep of a foreign loop
    while (!spin(deadline)) {
      if (now_ >= deadline) return too_late();
    }
    return Status();
  }
  foreign_loop_ = false;
  Instant start = refresh_now();
  if (progress() > 0) return Status();
  polled_out_ = false;
  bool done = waiting_ == Waiting::kAdaptive && spin(deadline);
  const bool slept = !done, polled_out = polled_out_;
  Instant polled_until = now_;
  while (!done) {
    if (now_ >= deadline) return too_late();
    bool event = sleep(deadline, gate, inside);
    // With a gate others may have done what was waited for.
    done = progress() > 0 || event || gate != nullptr;
  }
  Duration gap = refresh_now() - start;
  bool in_vain = polled_out && now_ - polled_until < 2 * (polled_until - start);
  vain_spins_ = in_vain ? vain_spins_ + 1 : 0;
  if (vain_spins_ >= kVainSpins) oversubscribed_until_ = after(now_, kBackOff);
  // A sleeping thread sees a message one wake later than a polling one. Without this, two ends that
  // answer each other and both sleep would never poll again: each waits for two wakes. A measured
  // budget is 2.5 wakes (`sluice tune`).
  if (slept) gap = std::max(gap - longest_spin_ / 2, Duration(0));
  // A long wait says little about the next one: it counts as four times the budget.
  gap = std::min<Duration>(gap, longest_spin_ * 4);
  typical_gap_ = (typical_gap_ * 7 + gap) / 8;
  return Status();
}

Result<size_t> Context::close(Instant deadline) {
  SLUICE_RETURN_IF_ERROR(owner_.check());
  ContextCore& core = ContextCore::of(*this);
  if (core.thread_mark_->elsewhere()) return ThreadMark::refusal();
  core.closed_ = true;
  core.awaits_->end_all();
  core.close_listeners();
  for (auto& provider : core.providers_) provider->shut_down();
  while (progress() > 0 && refresh_now() < deadline) {}
  const size_t held = arena_->statistics().outstanding + core.mailbox_->views_held;
  if (held > 0) {
    log(LogLevel::kInfo,
        "context closed while " + std::to_string(held) + " buffers or tensors are still held");
  }
  return held;
}

void ContextCore::close_listeners() {
  for (auto& listener : listeners_) listener->core.reset();
  listeners_.clear();
}

void ContextCore::forget(const internal::OpenListener* listener) {
  std::erase_if(listeners_, [&](const auto& open) { return open.get() == listener; });
}

Status ContextCore::watch(int fd, uint32_t epoll_events, EventHandler* handler) {
  epoll_event event{};
  event.events = epoll_events;
  event.data.ptr = handler;
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                  "epoll cannot watch another descriptor; see fs.epoll.max_user_watches", errno);
  }
  return Status();
}

Status ContextCore::rewatch(int fd, uint32_t epoll_events, EventHandler* handler) {
  epoll_event event{};
  event.events = epoll_events;
  event.data.ptr = handler;
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event) != 0) {
    return Status(Code::kInternal, Scope::kOperation, kOrigin, "epoll lost a descriptor", errno);
  }
  return Status();
}

void ContextCore::unwatch(int fd, EventHandler* handler) {
  ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  if (next_event_ < event_count_) dead_handlers_.push_back(handler);
}

Status Context::wait(Instant deadline, WaitGate* gate) {
  return ContextCore::of(*this).wait_for_work(deadline, gate);
}
void Context::add_hook(ProgressHook* hook) { ContextCore::of(*this).hooks_.push_back(hook); }
void Context::remove_hook(ProgressHook* hook) { std::erase(ContextCore::of(*this).hooks_, hook); }

}  // namespace sluice
