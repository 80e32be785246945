// The Ethernet backend of one context: its ports, its links, its listeners, and the
// connections whose last messages are still going out.
#ifndef SLUICE_L2_PROVIDER_H_
#define SLUICE_L2_PROVIDER_H_

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <sluice/base/log.h>
#include <sluice/l2/connection.h>
#include <sluice/l2/discovery/discovery.h>
#include <sluice/l2/hot_ports.h>
#include <sluice/l2/port.h>
#include <sluice/l2/second_session.h>
#include <sluice/l2/sleep_timer.h>
#include <sluice/l2/timers.h>
#include <sluice/proto/connection_set.h>
#include <sluice/proto/direct_link.h>
#include <sluice/proto/half_open.h>
#include <sluice/proto/listener_limits.h>
#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::l2 {

class L2Listener;

class L2Provider final : public Provider,
                         public ConnectionHost,
                         public PortOwner,
                         public proto::Lingering {
 public:
  explicit L2Provider(ContextCore& context);
  ~L2Provider() override;

  Scheme scheme() const override { return Scheme::kL2; }
  Task<Result<std::shared_ptr<EndpointCore>>> start_connect(
      const Address& address, const ConnectOptions& options) override {
    return start_connect(address, options, proto::session_options(options));
  }
  Result<std::unique_ptr<ListenerCore>> listen(const Address& address,
                                               const ListenOptions& options) override;
  // For a caller that has chosen this path: `session` says why.
  Task<Result<std::shared_ptr<EndpointCore>>> start_connect(const Address& address,
                                                            const ConnectOptions& options,
                                                            proto::SessionOptions session);
  // It is found by no name.
  Result<std::unique_ptr<ListenerCore>> listen(const Address& address, const ListenOptions& options,
                                               const proto::SessionOptions& session);

  size_t progress(Instant now) override;
  bool begin_sleep() override;
  bool has_unsent() const override {
    return !active_.empty() || connections_.sessions().has_unsent();
  }
  Instant next_timeout() override;
  void shut_down() override;
  std::string explain() const override;

 private:
  friend class L2Listener;

  Result<Port*> open_port(OpenedCarrier opened);
  Result<std::unique_ptr<L2Listener>> open_listener(const Address& address,
                                                    const ListenOptions& options,
                                                    const proto::SessionOptions& session);
  Task<Result<std::unique_ptr<Connection>>> meet(const Address& address, wire::Hello ours,
                                                 std::shared_ptr<const Secret> secret,
                                                 Instant deadline);
  class Seen;
  // What a connection that has greeted becomes.
  struct Met {
    std::unique_ptr<proto::DirectConnection> connection;
    std::shared_ptr<PeerAccount> account;
    wire::Hello ours, peer;
    LinkTraits traits;
    std::string reason;
  };
  // All but the connection itself.
  static Met about(const Connection& connection, const std::string& why);
  // A second session for memory, if the peer offers that and it works; null: the reason says why
  // not.
  Task<std::unique_ptr<Connection>> meet_second(const Connection& first, std::string& reason,
                                                Instant deadline);
  Result<std::shared_ptr<EndpointCore>> make_endpoint(Met met, const Requirements& require,
                                                      const proto::SessionOptions& options);
  std::unique_ptr<SecondSessions> open_second(const std::string& interface,
                                              std::shared_ptr<const Secret> secret,
                                              wire::Hello& ours);
  void activate(Connection& connection) noexcept override;
  void posted(Connection& connection) noexcept override;
  void heat(Port& port) noexcept override { hot_.add(port); }
  void remember(Connection& connection) override;
  void forget(Connection& connection) noexcept override;
  slp_node& node() override { return *node_; }
  std::shared_ptr<Machine> machine_at(const PeerAddress& peer) override {
    return machines_.at(peer);
  }
  SendingRoom& sending_room() override { return sending_room_; }
  WorkPool& work() override { return work_; }
  uint16_t most_frame_bytes() const override {
    return std::max(kLeastFrame, context_.tuning().l2_frame_bytes);
  }
  void linger(std::unique_ptr<proto::DirectConnection> connection) noexcept override;
  bool may_have_ring() const;
  size_t see_off(Instant now);
  // Both while the turn has time: the others are the first in the next one.
  void fire_timers(Instant now);
  void send_out(Instant now);
  size_t progress_listeners(Instant now);
  void tidy();
  void note_use();

  ContextCore& context_;
  Machines machines_;
  std::unique_ptr<slp_node> node_;
  ReceiveRoom room_;
  SendingRoom sending_room_;
  WorkPool work_;
  std::vector<std::unique_ptr<Port>> ports_;
  HotPorts hot_;
  Timers timers_;
  SleepTimer sleep_timer_;
  size_t living_ = 0;                // connections
  std::vector<Connection*> active_;  // may have frames to send
  std::vector<Connection*> sending_;
  std::vector<L2Listener*> listeners_;
  Instant listeners_due_{};  // before it, only a new caller changes anything for them
  std::vector<std::unique_ptr<SecondSessions>> left_seconds_;  // their listeners are closed
  proto::ConnectionSet<proto::DirectLink, proto::DirectConnection> connections_;
  bool inside_ = false;
  bool untidy_ = false;
};

// Accepts connections. Half-open ones are bounded in number and time.
class L2Listener final : public ListenerCore, private PortListener {
 public:
  L2Listener(L2Provider& owner, Port& port, const ListenOptions& asked,
             const proto::SessionOptions& options, std::shared_ptr<const Secret> secret);
  // `interface`: of raw frames, whose callers may have a second session in UDP. Errors: those of
  // Port::set_listener().
  Status begin(const std::string& interface);
  ~L2Listener() override { close(); }
  std::shared_ptr<EndpointCore> accept() override;
  std::string address() const override { return address_; }
  void close() override;
  // Ends those that took too long.
  size_t progress(Instant now);
  Instant next_timeout() const;
  bool guarded() const { return port_->guarded() || (seconds_ != nullptr && seconds_->guarded()); }

 private:
  friend class L2Provider;
  bool on_hello(const PeerAddress& from, uint16_t peer_port, const slp_hello& hello) override;

  L2Provider* owner_;
  Port* port_;
  std::string address_;
  Requirements require_;
  proto::ListenerLimits limits_;
  proto::SessionOptions options_;
  std::shared_ptr<const Secret> secret_;
  wire::Hello ours_;
  proto::HalfOpen<Connection> half_open_;
  std::unique_ptr<SecondSessions> seconds_;  // null: it offers none
  std::unique_ptr<Findable> findable_;       // null: it is not found by a name
  LogThrottle lost_;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_PROVIDER_H_
