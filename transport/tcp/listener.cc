#include <sluice/tcp/listener.h>

#include <sluice/base/log.h>
#include <sluice/tcp/provider.h>

namespace sluice::tcp {

TcpListener::TcpListener(TcpProvider& provider, std::unique_ptr<GreetingListener> greetings,
                         const proto::SessionOptions& options)
    : provider_(&provider),
      greetings_(std::move(greetings)),
      options_(options),
      address_(greetings_->address().to_string()) {}

TcpListener::~TcpListener() { close(); }

std::shared_ptr<EndpointCore> TcpListener::accept() {
  while (provider_ != nullptr) {
    auto greeting = greetings_->take();
    if (!greeting) return nullptr;
    const std::string who = greeting->peer_name();
    auto endpoint =
        provider_->make_endpoint(std::move(*greeting), options_, "tcp:// was listened on");
    if (endpoint.ok()) return std::move(endpoint).value();
    // The peer sees its connection end; the next one may fare better.
    lost_.log(LogLevel::kWarning,
              "lost the peer " + who + " at " + address_ + ": " + endpoint.status().to_string());
  }
  return nullptr;
}

void TcpListener::close() {
  if (provider_ == nullptr) return;
  provider_->forget(*this);
  abandon();
}

void TcpListener::abandon() {
  provider_ = nullptr;
  greetings_->close();
}

}  // namespace sluice::tcp
