// The verbs backend of one context: its devices, its links, its listeners, and the
// connections whose last messages are still going out.
#ifndef SLUICE_VERBS_PROVIDER_H_
#define SLUICE_VERBS_PROVIDER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sluice/base/log.h>
#include <sluice/proto/connection_set.h>
#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>
#include <sluice/verbs/connection.h>
#include <sluice/verbs/link.h>

namespace sluice::verbs {

class VerbsListener;

class VerbsProvider final : public Provider,
                            public DeviceTable,
                            public DeviceWatcher,
                            public Lingering {
 public:
  explicit VerbsProvider(ContextCore& context);
  ~VerbsProvider() override;

  Scheme scheme() const override { return Scheme::kRdma; }
  Task<Result<std::shared_ptr<EndpointCore>>> start_connect(const Address& address,
                                                            const ConnectOptions& options) override;
  Result<std::unique_ptr<ListenerCore>> listen(const Address& address,
                                               const ListenOptions& options) override;

  // For select. A connection in State::kReady, or why there is none. `host`: a name or digits.
  Task<Result<std::unique_ptr<Connection>>> meet(std::string host, uint16_t port, wire::Hello ours,
                                                 Instant deadline);
  // The listener ends before the provider does, or the provider releases it. `patience`: how long
  // a peer that has greeted waits for take().
  Result<std::unique_ptr<VerbsListener>> open_listener(const std::string& host, uint16_t port,
                                                       int backlog, const wire::Hello& ours,
                                                       Duration patience = Duration::max());
  Result<std::shared_ptr<EndpointCore>> make_endpoint(std::unique_ptr<Connection> connection,
                                                      const Requirements& require,
                                                      const proto::SessionOptions& options,
                                                      std::string reason);
  // After an attempt that failed: a device that nobody uses would still have every extent
  // registered, and refuse the arena what the other paths need.
  void drop_unused_devices();

  size_t progress(Instant now) override;
  bool begin_sleep() override;
  Instant next_timeout() override;
  bool has_unsent() const override { return connections_.sessions().has_unsent(); }
  // A software device is a kernel thread: who spins keeps the processor from it.
  bool in_bulk() const override { return software_ && !connections_.held().empty(); }
  void shut_down() override;
  std::string explain() const override;

 private:
  friend class VerbsListener;

  Result<VerbsApi*> api();
  Result<CmHub*> hub();
  Result<Device*> device(const std::string& name) override;
  void on_device_event(const DeviceEvent& event) noexcept override;
  uint64_t sum_of(uint64_t (Device::*count)() const) const;
  void linger(std::unique_ptr<Connection> connection) override;
  size_t see_off(Instant now);
  size_t check_ports(Instant now);
  void check_ports_soon();
  void forget_closed();
  void note_use();

  ContextCore& context_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<CmHub> hub_;
  class Meeting;
  class Attempt;
  // To one of a host's addresses.
  Task<Result<std::unique_ptr<Connection>>> meet_at(CmHub& cm, SocketAddress to, wire::Hello ours,
                                                    Instant deadline);
  std::vector<Connection*> meeting_;  // being connected, by meet()
  std::vector<VerbsListener*> listeners_;
  proto::ConnectionSet<VerbsLink, Connection> connections_;
  Instant port_check_ = kNever;
  bool some_port_down_ = false;  // perhaps: of a connection that is held
  bool software_ = false;        // some device is
  bool some_closed_ = false;
  // When it last fell asleep, until the next progress(), and what had been announced then:
  // what is found after a whole watchdog's time without an event has missed one.
  Instant slept_since_ = kNever;
  uint64_t announced_before_ = 0;
};

// Accepts connections. Bounds how many greet or wait to be taken, and how long they may greet.
class VerbsListener final : private CmClient {
 public:
  // Connections that greet or wait to be taken.
  static constexpr size_t kMostWaiting = 256;

  // `patience`: how long one that has greeted waits to be taken.
  static Result<std::unique_ptr<VerbsListener>> open(VerbsProvider& owner, CmHub& hub,
                                                     SocketAddress address, int backlog,
                                                     const wire::Hello& ours, Duration patience);
  ~VerbsListener();
  // The next that has greeted, or null.
  std::unique_ptr<Connection> take();
  // The one that has greeted with this token, or null.
  std::unique_ptr<Connection> take_by(const wire::Uuid& token);
  // 0: nobody can come any more, since the device of its address was removed.
  uint16_t port() const;
  size_t progress(Instant now);
  bool arm();
  Instant next_timeout() const;
  void device_failed(const DeviceEvent& event, const Status& why);
  // The provider goes away: its connections and its id end now.
  void let_go();

 private:
  struct Waiting {
    std::unique_ptr<Connection> connection;
    Instant expires;
    bool greeted = false;
  };
  VerbsListener(VerbsProvider& owner, CmHub& hub, const wire::Hello& ours, Duration patience)
      : owner_(&owner), hub_(hub), ours_(ours), patience_(patience) {}
  void on_cm_event(const CmEvent& event) noexcept override;
  void accept_lane(const LaneToken& token, const CmEvent& request);
  bool make_room(const PeerIdentity& newcomer);
  std::unique_ptr<Connection> take_if(const std::function<bool(const Waiting&)>& wanted);

  VerbsProvider* owner_;
  CmHub& hub_;
  wire::Hello ours_;
  Duration patience_;
  rdma_cm_id* id_ = nullptr;
  bool deaf_ = false;             // its device was removed
  std::vector<Waiting> waiting_;  // the oldest first
  LogThrottle lost_;              // peers that went while they greeted
  LogThrottle refused_;
};

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_PROVIDER_H_
