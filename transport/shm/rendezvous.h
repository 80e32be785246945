// How two processes of one machine meet: an abstract Unix socket, HELLO and control
// region each way. Abstract names belong to a network namespace and leave no file.
#ifndef SLUICE_SHM_RENDEZVOUS_H_
#define SLUICE_SHM_RENDEZVOUS_H_

#include <deque>
#include <memory>
#include <string>

#include <sluice/api/context.h>
#include <sluice/proto/session.h>
#include <sluice/shm/link.h>

namespace sluice::shm {

// A connection whose handshake is done.
struct Meeting {
  LinkParts parts;
  wire::Hello ours, peer;
};

// Name of the abstract socket of a rendezvous, or of a listener by name.
std::string socket_name(const wire::Uuid& rendezvous);
std::string socket_name(std::string_view name);

// Connects, exchanges HELLOs and regions, and proves both mappings. Progresses the context
// while it waits. Errors: kUnreachable (nobody listens: other machine, other network
// namespace, or gone), kAccessDenied (another user), kUnsupported (version), kTimedOut, kCorrupt.
Result<Meeting> meet(Context& context, const std::string& socket_name, const wire::Hello& ours, Instant deadline);

// Accepts such connections. Half-open ones are bounded in number and time.
class RendezvousListener final : public EventHandler {
 public:
  // `ours` is the HELLO that every peer gets (its token is the peer's own, echoed).
  static Result<std::unique_ptr<RendezvousListener>> open(Context& context, const std::string& socket_name,
                                                          const wire::Hello& ours);
  ~RendezvousListener();
  // The next finished meeting; false if there is none.
  bool take(Meeting& out);
  void on_event(uint32_t epoll_events) noexcept override;

 private:
  struct HalfOpen;
  RendezvousListener(Context& context, const wire::Hello& ours);
  void accept_some();
  void expire(Instant now);
  void finish(HalfOpen& half);
  void forget(HalfOpen& half);

  Context& context_;
  wire::Hello ours_;
  int fd_ = -1;
  std::vector<std::unique_ptr<HalfOpen>> half_open_;
  std::vector<std::unique_ptr<HalfOpen>> forgotten_;  // until their event is over
  std::deque<Meeting> met_;
};

}  // namespace sluice::shm

#endif  // SLUICE_SHM_RENDEZVOUS_H_
