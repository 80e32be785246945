// How two peers that met by raw frames come by a second session in UDP, for what lies in memory:
// the caller says in its HELLO that it takes one, and a token; the listener says in its own where;
// the caller begins it with the token, and one message there says that it counts from now on.
// What of this fails costs the second session and nothing else.
#ifndef SLUICE_L2_SECOND_SESSION_H_
#define SLUICE_L2_SECOND_SESSION_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sluice/l2/connection.h>
#include <sluice/l2/port.h>
#include <sluice/l2/two_carriers.h>
#include <sluice/proto/half_open.h>

namespace sluice::l2 {

// SLUICE_L2_BULK=frames: memory goes as raw frames as well.
bool second_session_wanted();
// The first IPv4 address of an interface, as digits, or empty.
std::string ipv4_of(const std::string& interface);

// In HELLO: the caller's wish, with a new token; the listener's place, an IPv4 address and port.
void wish_second(wire::Hello& hello);
bool wishes_second(const wire::Hello& hello);
void offer_second(wire::Hello& hello, const std::string& ipv4, uint16_t port);
struct SecondPlace {
  std::string host;  // empty: none was offered
  uint16_t port = 0;
};
SecondPlace offered_second(const wire::Hello& hello);

// Second sessions of one listener that have not joined yet, and connections that await theirs.
class SecondSessions final : private PortListener {
 public:
  using Release = proto::HalfOpen<Connection>::Release;
  SecondSessions(ConnectionHost& host, Port& port, std::shared_ptr<const Secret> secret,
                 const wire::Hello& ours, Release release);
  ~SecondSessions();
  // Errors: those of Port::set_listener().
  Status begin();
  // For the caller that asked for it; the token is the caller's.
  void await(const wire::Uuid& token, std::shared_ptr<TwoCarriers::Place> pair, Instant expires);
  // Joins what belongs together, and ends what is late; those that `greeting` knows may still be
  // accepted. Returns how many changed.
  size_t progress(Instant now, const std::function<bool(const wire::Uuid&)>& greeting);
  Instant next_timeout() const;
  bool guarded() const { return port_.guarded(); }
  // Somebody still awaits his: it outlives its listener for so long.
  bool awaited() const { return !awaiting_.empty(); }

 private:
  struct Awaiting {
    wire::Uuid token;
    std::shared_ptr<TwoCarriers::Place> pair;
    Instant expires;
  };
  bool on_hello(const PeerAddress& from, uint16_t peer_port, const slp_hello& hello) override;
  bool has_come(const wire::Uuid& token) const;
  size_t join_those_that_came(Instant now, const std::function<bool(const wire::Uuid&)>& greeting);

  ConnectionHost& host_;
  Port& port_;
  std::shared_ptr<const Secret> secret_;
  wire::Hello ours_;
  proto::HalfOpen<Connection> coming_;
  std::vector<Awaiting> awaiting_;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_SECOND_SESSION_H_
