// Who is told of a file descriptor's events: ContextCore::watch().
#ifndef SLUICE_RUNTIME_EVENT_HANDLER_H_
#define SLUICE_RUNTIME_EVENT_HANDLER_H_

#include <cstdint>

namespace sluice {

// Gets the events of one file descriptor from the context's epoll.
class EventHandler {
 public:
  virtual void on_event(uint32_t epoll_events) noexcept = 0;

 protected:
  ~EventHandler() = default;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_EVENT_HANDLER_H_
