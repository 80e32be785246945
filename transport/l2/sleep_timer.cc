#include <sluice/l2/sleep_timer.h>

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>

namespace sluice::l2 {

bool SleepTimer::arm(Instant when, Instant now) {
  if (fd_.value() < 0) {
    Descriptor made(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (made.value() < 0 || !context_.watch(made.value(), EPOLLIN, this).ok()) return false;
    fd_ = std::move(made);
  }
  // One that is set for earlier wakes too soon once, which costs less than to set it each time.
  if (armed_ <= when && armed_ > now) return true;
  // Zero would disarm it.
  int64_t at = std::max<int64_t>(when.time_since_epoch().count(), 1);
  itimerspec spec{};
  spec.it_value = {.tv_sec = at / 1'000'000'000, .tv_nsec = at % 1'000'000'000};
  if (::timerfd_settime(fd_.value(), TFD_TIMER_ABSTIME, &spec, nullptr) != 0) return false;
  armed_ = when;
  return true;
}

void SleepTimer::close() {
  if (fd_.value() < 0) return;
  context_.unwatch(fd_.value(), this);
  fd_ = Descriptor();
  armed_ = kNever;
}

void SleepTimer::on_event(uint32_t) noexcept {
  uint64_t times;
  [[maybe_unused]] ssize_t n = ::read(fd_.value(), &times, sizeof(times));
  armed_ = kNever;
}

}  // namespace sluice::l2
