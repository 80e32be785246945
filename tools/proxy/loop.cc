#include "tools/proxy/loop.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <sluice/runtime/context_core.h>
#include <sluice/select/open.h>

namespace sluice::tools::proxy {
namespace {

// Beside what waits: frames, receives, and what rounding up costs.
constexpr uint64_t kOwnMemory = uint64_t{64} << 20;
// Enough for a dozen busy connections; more comes when it is needed.
constexpr uint64_t kFirstExtent = uint64_t{16} << 20;

}  // namespace

uint64_t memory_of(const ProxyOptions& options) {
  return 2 * options.most_connections * options.window;
}

Instant after_seconds(Instant from, double seconds) {
  return after(from, std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
}

std::string path_text(const EndpointInfo& info) {
  const std::string path(to_string(info.path.path));
  return info.reason.empty() ? path : fmt::format("{} ({})", path, info.reason);
}

Result<std::unique_ptr<Loop>> Loop::open(const ProxyOptions& options) {
  std::unique_ptr<Loop> loop(new Loop(options));
  ContextOptions wanted;
  const uint64_t memory = memory_of(options) + kOwnMemory;
  wanted.arena_options.limit_bytes = memory;
  wanted.arena_options.first_extent_bytes = kFirstExtent;
  wanted.peer_limits.incoming_bytes = {memory, memory};
  SLUICE_TRY(loop->context_, open_context(wanted));
  sigset_t ours;
  ::sigemptyset(&ours);
  ::sigaddset(&ours, SIGINT);
  ::sigaddset(&ours, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &ours, &loop->blocked_before_);
  loop->signal_fd_ = Descriptor(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!loop->signal_fd_)
    return Status(Code::kNoMemory, Scope::kContext, "tools/proxy", "no descriptor for signals",
                  errno);
  SLUICE_RETURN_IF_ERROR(
      ContextCore::of(*loop->context_).watch(loop->signal_fd_.value(), EPOLLIN, loop.get()));
  if (options.run_seconds > 0)
    loop->end_ = after_seconds(loop->context_->refresh_now(), options.run_seconds);
  return loop;
}

Loop::~Loop() {
  if (!signal_fd_) return;
  ContextCore::of(*context_).unwatch(signal_fd_.value(), this);
  ::sigprocmask(SIG_SETMASK, &blocked_before_, nullptr);
}

void Loop::on_event(uint32_t) noexcept {
  signalfd_siginfo came;
  while (::read(signal_fd_.value(), &came, sizeof(came)) == sizeof(came)) ++signals_;
}

void Loop::wait(Instant until) {
  // Past the end, it is the caller who says how long open connections are waited for.
  (void)context_->wait(ending() ? until : std::min(until, end_));
}

std::string Sparingly::line(const std::string& what, Instant now) {
  if (last_ != Instant{} && now - last_ < std::chrono::seconds(1)) {
    ++left_out_;
    return "";
  }
  last_ = now;
  const uint64_t left_out = std::exchange(left_out_, 0);
  return left_out == 0 ? what : fmt::format("{} (and {} more like it before)", what, left_out);
}

}  // namespace sluice::tools::proxy
