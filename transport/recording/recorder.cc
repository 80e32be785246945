#include <sluice/recording/recorder.h>

#include <errno.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <sluice/base/clock.h>
#include <sluice/base/log.h>
#include <sluice/base/settings.h>
#include <sluice/recording/links.h>
#include <sluice/runtime/identity.h>

namespace sluice::recording {
namespace {

// A turn of the loop takes less than this, so what is longer was something else: the program, or
// another thread on this processor. A page fault or an interrupt is shorter.
constexpr uint64_t kShortNs = 5'000;
// A thread that sleeps often writes what it has at most so often.
constexpr Duration kBetweenFlushes = std::chrono::milliseconds(100);

struct ThreadUse {
  uint64_t cpu_ns = 0;
  int64_t sleeps = 0;
};
// Cost: two system calls, about half a microsecond.
ThreadUse use_of_this_thread() {
  rusage use{};  // its processor time is as of the last tick
  (void)::getrusage(RUSAGE_THREAD, &use);
  return {static_cast<uint64_t>(thread_cpu_time().count()), use.ru_nvcsw};
}

uint64_t nanoseconds(Instant t) { return static_cast<uint64_t>(t.time_since_epoch().count()); }

template <size_t kLength>
void put_text(char (&out)[kLength], const std::string& text) {
  const size_t length = std::min(text.size(), kLength - 1);
  std::transform(text.begin(), text.begin() + static_cast<ptrdiff_t>(length), out,
                 [](char c) { return c >= ' ' && c <= '~' ? c : '?'; });
}

FileHeader header_of(const ContextOptions& options, const wire::Hello& hello) {
  FileHeader header;
  header.processors = static_cast<uint32_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  header.pid = static_cast<uint64_t>(::getpid());
  header.started_ns = nanoseconds(now());
  std::memcpy(header.host, hello.host.bytes.data(), sizeof(header.host));
  const Tuning tuning = options.tuning.value_or(Tuning());
  header.shm_eager_bytes = tuning.shm_eager_bytes;
  header.shm_eager_sleeping_bytes = tuning.shm_eager_sleeping_bytes;
  header.tcp_eager_bytes = tuning.tcp_eager_bytes;
  header.spin_ns = tuning.spin_ns;
  header.waiting = static_cast<uint32_t>(options.waiting.value_or(Waiting::kAdaptive));
  cpu_set_t cpus;
  if (::sched_getaffinity(0, sizeof(cpus), &cpus) == 0) {
    for (unsigned cpu = 0; cpu < 64 * std::size(header.usable_cpus); ++cpu)
      if (CPU_ISSET(cpu, &cpus)) header.usable_cpus[cpu / 64] |= uint64_t{1} << cpu % 64;
  }
  put_text(header.program, program_invocation_short_name);
  return header;
}

}  // namespace

Recorder::Recorder(File file, uint32_t context, uint64_t started_ns)
    : file_(std::move(file)),
      context_(context),
      last_(Instant(Duration(static_cast<int64_t>(started_ns)))),
      last_flush_(last_) {
  ask_kernel();
}

Recorder::~Recorder() {
  if (owner_.in_forked_child()) return;  // the file is the parent's
  flush();
  const End end{.events = all_events_,
                .cpu_ns = static_cast<uint64_t>(process_cpu_time().count()),
                .ended_ns = nanoseconds(now())};
  file_.append(BlockKind::kEnd, context_, std::span(&end, 1));
}

template <typename Link, typename Kind>
std::unique_ptr<Kind> Recorder::make(std::unique_ptr<Kind> inner) {
  if (connections_ == kMostConnections) return inner;
  Connection connection{.number = connections_++,
                        .path = static_cast<uint32_t>(inner->traits().properties.path)};
  put_text(connection.local, inner->local_name());
  put_text(connection.peer, inner->peer_name());
  flush();
  file_.append(BlockKind::kConnections, context_, std::span<const Connection>(&connection, 1));
  return std::make_unique<Link>(shared_from_this(), std::move(inner), connection.number);
}
std::unique_ptr<ViewLink> Recorder::decorate(std::unique_ptr<ViewLink> inner) {
  return make<RecordedViewLink>(std::move(inner));
}
std::unique_ptr<StreamLink> Recorder::decorate(std::unique_ptr<StreamLink> inner) {
  return make<RecordedStreamLink>(std::move(inner));
}
std::unique_ptr<DeviceLink> Recorder::decorate(std::unique_ptr<DeviceLink> inner) {
  return make<RecordedDeviceLink>(std::move(inner));
}

uint64_t Recorder::ask_kernel() {
  const ThreadUse use = use_of_this_thread();
  const uint64_t ran = use.cpu_ns - std::min(use.cpu_ns, thread_cpu_ns_ + ran_since_);
  slept_elsewhere_ = use.sleeps != thread_sleeps_;
  thread_cpu_ns_ = use.cpu_ns;
  thread_sleeps_ = use.sleeps;
  ran_since_ = 0;
  return ran;
}

void Recorder::account(uint64_t Event::*part) {
  const Instant t = now();
  const auto gap = static_cast<uint64_t>((t - last_).count());
  last_ = t;
  if (asleep_) {
    next_.slept_ns += gap;
    asleep_ = false;
    ask_kernel();  // that sleep was ours
  } else if (gap >= kShortNs) {
    const uint64_t computed = std::min(gap, ask_kernel());
    next_.computed_ns += computed;
    if (slept_elsewhere_) next_.paused_ns += gap - computed;
  } else {
    next_.*part += gap;
    ran_since_ += gap;
  }
}

void Recorder::note_call() { account(&Event::computed_ns); }
void Recorder::note_poll() { account(&Event::polled_ns); }

void Recorder::note_move() {
  const Instant t = now();
  const auto gap = static_cast<uint64_t>((t - last_).count());
  next_.moved_ns += gap;
  ran_since_ += gap;
  asleep_ = false;
  last_ = t;
}

void Recorder::note_moved(uint64_t bytes) {
  // Slower than 1 GB/s something else was in between.
  const auto gap = static_cast<uint64_t>((now() - last_).count());
  if (asleep_ || gap >= kShortNs + bytes) return note_poll();
  note_move();
}

void Recorder::note_message(EventKind kind, uint32_t connection, uint64_t bytes, bool view) {
  next_.at_ns = nanoseconds(last_);
  next_.bytes = bytes;
  next_.connection = connection;
  next_.kind = kind;
  next_.view = view ? 1 : 0;
  events_[together_++] = std::exchange(next_, Event());
  ++all_events_;
  if (together_ == kEventsTogether) flush();
}

void Recorder::flush() {
  if (owner_.in_forked_child()) return;
  (void)file_.append(BlockKind::kEvents, context_,
                     std::span<const Event>(events_.data(), together_));
  together_ = 0;
  // Our own time is nobody's.
  last_flush_ = now();
  ran_since_ += static_cast<uint64_t>((last_flush_ - last_).count());
  last_ = last_flush_;
}

size_t Recorder::progress(Instant) {
  note_poll();
  return 0;
}

Instant Recorder::next_timeout() {
  note_poll();
  if (together_ > 0 && last_ - last_flush_ >= kBetweenFlushes) flush();
  asleep_ = true;
  return kNever;
}

std::shared_ptr<Recorder> open_recorder(const ContextOptions& options) {
  const std::optional<std::string> folder = setting_text("SLUICE_RECORD");
  if (!folder || folder->empty()) return nullptr;
  // open_context() has warned of it.
  if (!unfit(*find_setting("SLUICE_RECORD"), *folder).empty()) return nullptr;
  // Numbers of this process. In a forked child they go on, in a file of its own.
  static std::atomic<uint32_t> contexts{0};
  const wire::Hello hello = local_hello(0);
  const FileHeader header = header_of(options, hello);
  Result<File> file = File::open(*folder, header, hello.incarnation);
  if (!file.ok()) {
    log(LogLevel::kWarning, "nothing is recorded: " + file.status().to_string());
    return nullptr;
  }
  return std::make_shared<Recorder>(std::move(file).value(), contexts.fetch_add(1),
                                    nanoseconds(now()));
}

}  // namespace sluice::recording
