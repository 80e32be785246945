// What both sides of a proxy run in: a context, the signals that end it, and the time that is left.
#pragma once

#include <signal.h>

#include <memory>
#include <string>

#include <sluice/api/context.h>
#include <sluice/runtime/event_handler.h>

#include "tools/proxy/proxy.h"
#include "tools/proxy/sockets.h"
#include "tools/proxy/totals.h"

namespace sluice::tools::proxy {

class Loop final : private EventHandler {
 public:
  static Result<std::unique_ptr<Loop>> open(const ProxyOptions& options);
  ~Loop();

  Context& context() { return *context_; }
  Totals& totals() { return totals_; }
  // A signal came, or the time is over.
  bool ending() const { return signals_ > 0 || context_->now() >= end_; }
  // A second signal: do not wait for anybody.
  bool hurried() const { return signals_ > 1; }
  // Works until something happened, `until`, or the end if that is still to come.
  void wait(Instant until);
  void say(const std::string& line) const { say_(line); }

 private:
  explicit Loop(const ProxyOptions& options) : say_(options.say) {}
  void on_event(uint32_t events) noexcept override;

  std::function<void(const std::string&)> say_;
  std::unique_ptr<Context> context_;
  Totals totals_;
  Descriptor signal_fd_;
  sigset_t blocked_before_{};
  Instant end_ = kNever;
  int signals_ = 0;
};

// One line a second of a kind, with how many were left out.
class Sparingly {
 public:
  // The line to say now, or nothing.
  std::string line(const std::string& what, Instant now);

 private:
  Instant last_{};
  uint64_t left_out_ = 0;
};

Instant after_seconds(Instant from, double seconds);
// "shm (same machine)".
std::string path_text(const EndpointInfo& info);

}  // namespace sluice::tools::proxy
