// Endpoints within one process, found by name.
#ifndef SLUICE_LOOPBACK_PROVIDER_H_
#define SLUICE_LOOPBACK_PROVIDER_H_

#include <deque>
#include <memory>
#include <vector>

#include <sluice/loopback/link.h>
#include <sluice/proto/session_set.h>
#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::loopback {

class LoopbackProvider final : public Provider {
 public:
  explicit LoopbackProvider(ContextCore& context);
  ~LoopbackProvider() override;

  Scheme scheme() const override { return Scheme::kLoopback; }
  Task<Result<std::shared_ptr<EndpointCore>>> start_connect(
      const Address& address, const ConnectOptions& options) override {
    co_return connect(address, options);
  }
  Result<std::unique_ptr<ListenerCore>> listen(const Address& address,
                                               const ListenOptions& options) override;
  std::shared_ptr<proto::Session> make_endpoint(std::shared_ptr<Wire> wire, int side,
                                                std::string name,
                                                const proto::SessionOptions& options,
                                                const wire::Hello& peer);

  size_t progress(Instant now) override;
  bool begin_sleep() override { return !sessions_.has_work() && due_.empty() && rung_->empty(); }
  Instant next_timeout() override { return sessions_.next_timeout(); }
  bool has_unsent() const override { return sessions_.has_unsent(); }
  void shut_down() override;
  std::string explain() const override { return "usable within this process"; }

 private:
  struct Connection {
    std::shared_ptr<proto::Session> session;
    LoopbackLink* link;  // owned by the session
  };
  Result<std::shared_ptr<EndpointCore>> connect(const Address& address,
                                                const ConnectOptions& options);
  void take_rung();
  void forget_closed();
  void set_due(LoopbackLink& link);

  ContextCore& context_;
  std::vector<Connection> connections_;
  std::shared_ptr<RungEnds> rung_ = std::make_shared<RungEnds>();
  // Links with something to poll; each turn looks at these alone.
  std::deque<LoopbackLink*> due_;
  std::vector<RungEnds::End> taken_;
  bool some_closed_ = false;
  proto::SessionSet sessions_;
};

}  // namespace sluice::loopback

#endif  // SLUICE_LOOPBACK_PROVIDER_H_
