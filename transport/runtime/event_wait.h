// Events of one descriptor, for the coroutine that makes a connection with it.
#ifndef SLUICE_RUNTIME_EVENT_WAIT_H_
#define SLUICE_RUNTIME_EVENT_WAIT_H_

#include <sys/epoll.h>

#include <cstdint>
#include <utility>

#include <sluice/base/result.h>
#include <sluice/runtime/context_core.h>

namespace sluice {

// One who waits. Edges: an incomplete message is left in the socket and must not wake us again by
// itself.
class EventWait final : public EventHandler {
 public:
  EventWait(ContextCore& context, int fd) : context_(context), fd_(fd) {}
  ~EventWait() {
    // In a forked child the epoll is the parent's.
    if (watched_ && !context_.forked()) context_.unwatch(fd_, this);
  }
  Status start(uint32_t events) {
    SLUICE_RETURN_IF_ERROR(context_.watch(fd_, events | EPOLLET, this));
    watched_ = true;
    return Status();
  }
  // For Awaits::until(); true once for each event.
  bool take_event() { return std::exchange(fired_, false); }
  // The peer will send nothing more.
  bool hung_up() const { return hung_up_; }
  void on_event(uint32_t epoll_events) noexcept override {
    fired_ = true;
    hung_up_ = hung_up_ || (epoll_events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  }

 private:
  ContextCore& context_;
  int fd_;
  bool watched_ = false;
  bool fired_ = false;
  bool hung_up_ = false;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_EVENT_WAIT_H_
