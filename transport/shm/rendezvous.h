// How two processes of one machine meet: an abstract Unix socket, HELLO and control
// region each way. Abstract names belong to a network namespace and leave no file.
#ifndef SLUICE_SHM_RENDEZVOUS_H_
#define SLUICE_SHM_RENDEZVOUS_H_

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sluice/api/task.h>
#include <sluice/base/descriptor.h>
#include <sluice/proto/connection_ticket.h>
#include <sluice/runtime/context_core.h>
#include <sluice/shm/connection_account.h>
#include <sluice/shm/link.h>
#include <sluice/shm/peer_user.h>

namespace sluice::shm {

// A connection whose handshake is done.
struct Meeting {
  LinkParts parts;
  wire::Hello ours, peer;
  PeerUser user;  // as the kernel says
};

// Name of the abstract socket of a rendezvous, or of a listener by name.
std::string socket_name(const wire::Uuid& rendezvous);
std::string socket_name(std::string_view name);

// Connects, exchanges HELLOs and regions, and proves both mappings. Errors: kUnreachable (nobody
// listens: other machine, other network namespace, or gone), kAccessDenied (another user),
// kUnsupported (version), kTimedOut, kCorrupt, kTryAgain (the listener has as many as it takes, or
// no descriptor), kNoMemory (we have none), kCancelled (the context was closed).
// A listener that meets too many at once is called again, with pauses, until `last_call`.
Task<Result<Meeting>> meet(ContextCore& context, std::string socket_name, wire::Hello ours,
                           Instant deadline, Instant last_call);

struct RendezvousOptions {
  // Asked when HELLO has come; a refusal goes to the peer. Null: everybody, and nothing is charged
  // for the connection.
  std::function<Result<proto::ConnectionTicket>(const PeerIdentity&, const PeerIntroduction&)>
      admit = {};
  // A caller must send HELLO within this.
  Duration half_open_limit = std::chrono::seconds(5);
  // Whom nobody has taken after this is dropped; zero: never.
  Duration met_limit = Duration(0);
};

// Accepts such connections. Half-open ones, and those that nobody takes, are bounded in number:
// past it the oldest of the process that has most goes.
class RendezvousListener final : public EventHandler {
 public:
  // `ours` is the HELLO that every peer gets (its token is the peer's own, echoed).
  static Result<std::unique_ptr<RendezvousListener>> open(ContextCore& context,
                                                          const std::string& socket_name,
                                                          const wire::Hello& ours,
                                                          RendezvousOptions options = {});
  ~RendezvousListener();
  // The next finished meeting; false if there is none.
  bool take(Meeting& out);
  // The one whose peer has this token. Those that nobody asks for stay, and count.
  bool take_by(const wire::Uuid& token, Meeting& out);
  void on_event(uint32_t epoll_events) noexcept override;
  size_t half_open() const { return half_open_.size(); }

 private:
  struct HalfOpen;
  struct Met {
    Meeting meeting;
    Instant expires;
  };
  // A descriptor that is readable when something is due: it runs also while nobody connects.
  class Alarm;
  RendezvousListener(ContextCore& context, const wire::Hello& ours, RendezvousOptions options);
  Status begin(const std::string& name);
  void accept_some();
  void pause_accepting();
  void accept_one(int fd);
  // `logged`: the finder of the limit has logged it.
  void refuse(int fd, const PeerUser& peer, const Status& why, bool logged = false);
  void ring_alarm();
  void set_alarm();
  void finish(HalfOpen& half);
  Status settle_in(HalfOpen& half, Meeting& meeting);
  Status admit(HalfOpen& half, const wire::Hello& hello,
               std::shared_ptr<ConnectionAccount>& account);
  bool make_room_among_met(uint32_t newcomer);
  void send_away(HalfOpen& half);
  void forget(HalfOpen& half);

  ContextCore& context_;
  wire::Hello ours_;
  RendezvousOptions options_;
  Descriptor fd_;
  DescriptorReserve reserve_;
  std::unique_ptr<Alarm> alarm_;
  std::vector<std::unique_ptr<HalfOpen>> half_open_;  // oldest first
  std::vector<std::unique_ptr<HalfOpen>> forgotten_;  // until their event is over
  std::deque<Met> met_;                               // oldest first
  std::set<uint32_t> told_;                           // users whose first refusal was logged
  Instant paused_until_ = kNever;                     // kNever: it accepts
};

}  // namespace sluice::shm

#endif  // SLUICE_SHM_RENDEZVOUS_H_
