// sluice://: greets over TCP, then uses the best path that both ends prove to work.
// Knows backends by their greeting and rendezvous, not by their links.
#ifndef SLUICE_SELECT_PROVIDER_H_
#define SLUICE_SELECT_PROVIDER_H_

#include <memory>
#include <string>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/select/ethernet.h>
#include <sluice/shm/provider.h>
#include <sluice/tcp/greeting_listener.h>
#include <sluice/tcp/provider.h>

namespace sluice::verbs {
class VerbsListener;
class VerbsProvider;
}  // namespace sluice::verbs

namespace sluice::select {

class SelectListener;

class SelectProvider final : public Provider {
 public:
  // Requires: all are providers of the same context and outlive this one's calls.
  SelectProvider(Context& context, shm::ShmProvider& shm, verbs::VerbsProvider& verbs,
                 const EthernetCarriers& ethernet, tcp::TcpProvider& tcp)
      : context_(context),
        shm_(shm),
        verbs_(verbs),
        ethernet_(ethernet),
        ethernet_caller_(ethernet),
        tcp_(tcp) {}
  ~SelectProvider() override;

  Scheme scheme() const override { return Scheme::kSluice; }
  Result<std::shared_ptr<EndpointCore>> connect(const Address& address,
                                                const ConnectOptions& options) override;
  Result<std::unique_ptr<ListenerCore>> listen(const Address& address,
                                               const ListenOptions& options) override;
  // Links and sessions are driven by their own backends; here are only greetings.
  size_t progress(Instant now) override;
  bool begin_sleep() override;
  Instant next_timeout() override;
  void shut_down() override {}

 private:
  friend class SelectListener;
  Context& context_;
  struct Attempt;
  Result<std::shared_ptr<EndpointCore>> try_shm(Attempt& attempt);
  Result<std::shared_ptr<EndpointCore>> try_verbs(Attempt& attempt);
  Result<std::shared_ptr<EndpointCore>> try_module(Attempt& attempt);
  Result<std::shared_ptr<EndpointCore>> try_packet(Attempt& attempt);
  Result<std::shared_ptr<EndpointCore>> try_ethernet(Attempt& attempt, Path path,
                                                     std::string_view name);
  struct Served;
  static Served served(const ListenOptions& options);
  std::unique_ptr<verbs::VerbsListener> listen_by_rdma(const Address& address,
                                                       const ListenOptions& options);

  shm::ShmProvider& shm_;
  verbs::VerbsProvider& verbs_;
  EthernetCarriers ethernet_;
  EthernetCaller ethernet_caller_;
  tcp::TcpProvider& tcp_;
  std::vector<SelectListener*> listeners_;
};

// Whether two ends could share memory, from their HELLOs alone: empty, or why not.
std::string shm_obstacle(const wire::Hello& ours, const wire::Hello& peer);

}  // namespace sluice::select

#endif  // SLUICE_SELECT_PROVIDER_H_
