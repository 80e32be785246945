// What a path gives its context: a Provider, which connects and listens. Knows no loop.
#ifndef SLUICE_SPI_PROVIDER_H_
#define SLUICE_SPI_PROVIDER_H_

#include <cstddef>
#include <memory>
#include <string>

#include <sluice/api/address.h>
#include <sluice/api/context.h>
#include <sluice/api/task.h>
#include <sluice/base/clock.h>
#include <sluice/base/result.h>

namespace sluice {

class EndpointCore;

class ListenerCore {
 public:
  virtual ~ListenerCore() = default;
  // The next connected endpoint, or null. Never blocks.
  virtual std::shared_ptr<EndpointCore> accept() = 0;
  // Where it listens: what a peer passes to connect().
  virtual std::string address() const = 0;
  virtual void close() = 0;
};

// One path in one context.
class Provider {
 public:
  virtual ~Provider() = default;
  virtual Scheme scheme() const = 0;
  // Goes on in Context::progress(), and ends after options.timeout at the latest; with kCancelled
  // when the context is closed. Requires: both arguments outlive the task.
  virtual Task<Result<std::shared_ptr<EndpointCore>>> start_connect(
      const Address& address, const ConnectOptions& options) = 0;
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

}  // namespace sluice

#endif  // SLUICE_SPI_PROVIDER_H_
