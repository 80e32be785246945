// The TCP backend of one context: its links, sessions and listeners.
#ifndef SLUICE_TCP_PROVIDER_H_
#define SLUICE_TCP_PROVIDER_H_

#include <memory>
#include <string>
#include <vector>

#include <sluice/proto/listener_limits.h>
#include <sluice/proto/session_set.h>
#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>
#include <sluice/tcp/greeting_listener.h>
#include <sluice/tcp/link_group.h>
#include <sluice/tcp/streams.h>

namespace sluice::tcp {

class TcpListener;

class TcpProvider final : public Provider {
 public:
  // Requires: the context outlives it.
  explicit TcpProvider(ContextCore& context);
  ~TcpProvider() override;

  Scheme scheme() const override { return Scheme::kTcp; }
  Task<Result<std::shared_ptr<EndpointCore>>> start_connect(const Address& address,
                                                            const ConnectOptions& options) override;
  Result<std::unique_ptr<ListenerCore>> listen(const Address& address,
                                               const ListenOptions& options) override;
  size_t progress(Instant now) override;
  bool begin_sleep() override;
  bool in_bulk() const override { return group_.in_bulk(); }
  void end_sleep() override { group_.end_sleep(); }
  Instant next_timeout() override;
  bool has_unsent() const override { return sessions_.has_unsent(); }
  void shut_down() override;

  // What a client says first.
  wire::Hello hello(const proto::SessionOptions& options);
  // For a listener that serves TCP: its connections may have further streams.
  void serve_streams(GreetingOptions& greeting, std::shared_ptr<proto::ListenerLimits> limits);
  // A greeted connection becomes an endpoint. Requires: its choice is Path::kTcp.
  // Errors: kNoMemory (epoll).
  Result<std::shared_ptr<EndpointCore>> make_endpoint(Greeting&& greeting,
                                                      const proto::SessionOptions& options,
                                                      std::string reason);
  size_t endpoint_count() const { return sessions_.size(); }

 private:
  friend class TcpListener;
  void forget(const TcpListener& listener);

  ContextCore& context_;
  LinkTraits same_host_traits_;  // with this machine's threshold
  Streams streams_;
  LinkGroup group_;
  proto::SessionSet sessions_;  // before group_ goes, its links are closed
  std::vector<TcpListener*> listeners_;
};

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_PROVIDER_H_
