// Where tcp:// peers connect: greetings whose choice is TCP become endpoints.
#ifndef SLUICE_TCP_LISTENER_H_
#define SLUICE_TCP_LISTENER_H_

#include <memory>
#include <string>

#include <sluice/base/log.h>
#include <sluice/proto/session.h>
#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>
#include <sluice/tcp/greeting_listener.h>

namespace sluice::tcp {

class TcpProvider;

class TcpListener final : public ListenerCore {
 public:
  // Requires: the provider outlives it, or called abandon().
  TcpListener(TcpProvider& provider, std::unique_ptr<GreetingListener> greetings,
              const proto::SessionOptions& options);
  ~TcpListener() override;

  std::shared_ptr<EndpointCore> accept() override;
  std::string address() const override { return address_; }
  void close() override;

  // For the provider.
  GreetingListener& greetings() { return *greetings_; }
  void abandon();

 private:
  TcpProvider* provider_;  // null: the context is gone
  std::unique_ptr<GreetingListener> greetings_;
  proto::SessionOptions options_;
  std::string address_;
  LogThrottle lost_;
};

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_LISTENER_H_
