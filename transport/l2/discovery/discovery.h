// Listeners that are found by a name: a question to everybody on an interface, answered by those
// that allow it (docs/slp.md, section 15). Off at both ends unless asked for. Names in files come
// first. An answer proves nothing: every station on the network may give one.
#ifndef SLUICE_L2_DISCOVERY_DISCOVERY_H_
#define SLUICE_L2_DISCOVERY_DISCOVERY_H_

#include <cstdint>
#include <memory>
#include <string>

#include <sluice/base/descriptor.h>
#include <sluice/base/result.h>
#include <sluice/l2/carrier/allowance.h>
#include <sluice/l2/carrier/places.h>
#include <sluice/runtime/context_core.h>

namespace sluice::l2 {

// ConnectOptions::discover, or SLUICE_L2_DISCOVER=1.
bool discovery_wanted(const ConnectOptions& options);
// ListenOptions::discoverable_as, or SLUICE_L2_NAME; empty: it is not to be found.
std::string name_to_be_found_by(const ListenOptions& options);

// Answers for one listener of raw frames while this lives: at most ten times in ten milliseconds.
class Findable final : private EventHandler {
 public:
  // Errors: kInvalidArgument (no name, no such interface), kAccessDenied (CAP_NET_RAW: the broker
  // lends no socket for this), kNoMemory.
  static Result<std::unique_ptr<Findable>> open(ContextCore& context, const std::string& interface,
                                                uint16_t port, const std::string& name);
  ~Findable();

 private:
  Findable(ContextCore& context, uint16_t port, const std::string& name, Descriptor socket)
      : context_(context), port_(port), name_(name), socket_(std::move(socket)) {}
  void on_event(uint32_t epoll_events) noexcept override;

  ContextCore& context_;
  uint16_t port_;
  std::string name_;  // in small letters
  Descriptor socket_;
  Allowance answers_;
};

// The one listener that answers to a name, at any port if that is 0. Asks until the first answer,
// for a second at most, and then waits 50 ms for others; until `deadline` at most.
// Errors: kUnreachable (nobody answers), kInvalidArgument (no name; two answer: the detail has
// both), kCancelled (the context was closed), those of open_packet_carrier().
// Requires: both texts outlive the task.
Task<Result<PeerPlace>> find_by_broadcast(ContextCore& context, const std::string& interface,
                                          const std::string& name, uint16_t port, Instant deadline);

// The address with what stands for a name that no file has found by broadcast; all others as they
// are. Errors: those of find_by_broadcast(). Requires: `address` outlives the task.
Task<Result<Address>> with_names_found(ContextCore& context, const Address& address,
                                       Instant deadline);

}  // namespace sluice::l2

#endif  // SLUICE_L2_DISCOVERY_DISCOVERY_H_
