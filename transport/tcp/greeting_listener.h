// The server's side of the greeting: accepts connections and greets many at once
// without blocking; what a stranger can make it hold is bounded. Knows no sessions.
#ifndef SLUICE_TCP_GREETING_LISTENER_H_
#define SLUICE_TCP_GREETING_LISTENER_H_

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <sluice/base/log.h>
#include <sluice/proto/connection_ticket.h>
#include <sluice/runtime/context_core.h>
#include <sluice/tcp/greeting.h>

namespace sluice::tcp {

// Who takes the further streams of connections.
class StreamTaker {
 public:
  // Whether one may join the connection of that token.
  virtual bool expects(const wire::Uuid& token) const = 0;
  // It has greeted. The connection may be gone meanwhile.
  virtual void take_stream(Greeting&& greeting) = 0;

 protected:
  ~StreamTaker() = default;
};

struct GreetingOptions {
  // Greeted connections that wait for take(). The kernel holds as many more before we accept them,
  // or 4,096.
  int backlog = 128;
  // Connections that have said nothing yet, of this listener; one more ends the oldest of the
  // address that has most, with BYE{kTimedOut}: who is honest calls again. Those that have said
  // HELLO have a ticket.
  // PeerLimits::half_open limits them by address, and those of all listeners.
  size_t half_open_limit = 256;
  // Longest time from accept to the peer's HELLO, and from there to its choice.
  Duration patience = std::chrono::seconds(5);
  // Choices that are served; others are refused with BYE{kUnsupported}.
  std::vector<Path> paths = {Path::kTcp};
  // The path in PeerIntroduction, if the peer does not choose it.
  Path introduced_as = Path::kNone;
  // Asked when HELLO has come; a refusal goes to the peer. Null: everybody.
  std::function<Result<proto::ConnectionTicket>(const PeerIdentity&, const PeerIntroduction&)>
      admit = {};
  // Further streams of connections: who takes them, and who is asked for a ticket. Null: nobody
  // does, and peers are not told of them. Both outlive the listener.
  StreamTaker* streams = nullptr;
  std::function<Result<proto::ConnectionTicket>(const PeerIdentity&)> admit_stream = {};
};

// Fills in what belongs to one connection (rendezvous, token) before HELLO is sent. `fd`: its
// socket.
using PrepareHello = std::function<void(wire::Hello& ours, int fd)>;

// Thread: the context's. Requires: the context outlives it, or close() came before.
class GreetingListener final : public EventHandler {
 public:
  // Errors: kUnreachable (name), kInvalidArgument (the address is in use or not ours),
  // kAccessDenied (port below 1024), kNoMemory (descriptors).
  static Result<std::unique_ptr<GreetingListener>> open(ContextCore& context,
                                                        const Address& address,
                                                        const wire::Hello& ours,
                                                        const GreetingOptions& options,
                                                        PrepareHello prepare = {});
  ~GreetingListener();
  GreetingListener(const GreetingListener&) = delete;
  GreetingListener& operator=(const GreetingListener&) = delete;

  // The next greeting whose choice has arrived.
  std::optional<Greeting> take();
  // Ends late greetings, accepts what had to wait. Returns how much it did.
  size_t progress(Instant now);
  // True if progress() has something to do now.
  bool has_work() const { return more_to_accept_ && can_accept(); }
  Instant next_timeout() const;
  // With the port that is really bound.
  const Address& address() const { return address_; }
  size_t half_open() const { return half_open_.size(); }
  void close();

 private:
  // Under 1 KiB: nothing that a stranger sends is stored before it is verified.
  struct HalfOpen final : EventHandler {
    GreetingListener* owner = nullptr;
    Descriptor fd;
    Instant expires;
    bool greeted = false;  // HELLO went both ways; the choice is missing
    PeerIdentity identity;
    PeerCharge charge;
    Greeting greeting;
    std::list<HalfOpen>::iterator self;
    void on_event(uint32_t epoll_events) noexcept override { owner->look(*this, epoll_events); }
  };

  GreetingListener(ContextCore& context, const wire::Hello& ours, const GreetingOptions& options,
                   PrepareHello prepare)
      : context_(context), ours_(ours), options_(options), prepare_(std::move(prepare)) {}
  void on_event(uint32_t epoll_events) noexcept override;
  bool can_accept() const;
  size_t accept_some();
  void add(Descriptor fd, const PeerIdentity& identity, Instant now);
  bool make_room(const PeerIdentity& newcomer, const PeerAccount& account);
  bool evict_oldest(const PeerIdentity& of);
  PeerIdentity greediest() const;
  void out_of_descriptors(Instant now, int os_error);
  void look(HalfOpen& peer, uint32_t epoll_events);
  bool answer_hello(HalfOpen& peer, const Glimpse& glimpse);
  Result<proto::ConnectionTicket> admit(HalfOpen& peer, const wire::Hello& ours,
                                        const wire::Hello& theirs);
  void end_silence(HalfOpen& peer);
  void take_choice(HalfOpen& peer, const Glimpse& glimpse);
  void drop(HalfOpen& peer, Code code, const Status& why);
  Descriptor detach(HalfOpen& peer);

  ContextCore& context_;
  wire::Hello ours_;
  GreetingOptions options_;
  PrepareHello prepare_;
  Address address_;
  Descriptor fd_;
  DescriptorReserve reserve_;
  // Those that have said nothing yet: by address, and in all.
  std::unordered_map<PeerIdentity, size_t, proto::OpenConnections::Hash> half_open_by_;
  size_t silent_ = 0;
  std::list<HalfOpen> half_open_;  // oldest first
  std::deque<Greeting> ready_;
  Instant retry_accept_ = kNever;  // after a lack of descriptors
  LogThrottle lack_log_;
  bool more_to_accept_ = false;
};

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_GREETING_LISTENER_H_
