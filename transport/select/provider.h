// sluice://: greets over TCP, then uses the best path that both ends prove to work.
// Knows paths by their part in it (PathChoice), not by their links.
#ifndef SLUICE_SELECT_PROVIDER_H_
#define SLUICE_SELECT_PROVIDER_H_

#include <memory>
#include <string_view>
#include <vector>

#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>
#include <sluice/spi/path_choice.h>
#include <sluice/spi/path_descriptor.h>
#include <sluice/tcp/provider.h>

namespace sluice::select {

class SelectListener;

// A path that sluice:// may take.
struct Candidate {
  const PathDescriptor* path;
  std::unique_ptr<PathChoice> choice;
};

class SelectProvider final : public Provider {
 public:
  // `candidates`: best first; TCP is behind them all. Requires: the providers behind them, and
  // `tcp`, are of the same context and outlive this one's calls.
  SelectProvider(ContextCore& context, std::vector<Candidate> candidates, tcp::TcpProvider& tcp)
      : context_(context), candidates_(std::move(candidates)), tcp_(tcp) {}
  ~SelectProvider() override;

  Scheme scheme() const override { return Scheme::kSluice; }
  Task<Result<std::shared_ptr<EndpointCore>>> start_connect(const Address& address,
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
  struct Attempt;
  Task<Result<std::shared_ptr<EndpointCore>>> try_path(const Candidate& candidate,
                                                       Attempt& attempt);

  ContextCore& context_;
  std::vector<Candidate> candidates_;
  tcp::TcpProvider& tcp_;
  std::vector<SelectListener*> listeners_;
};

}  // namespace sluice::select

#endif  // SLUICE_SELECT_PROVIDER_H_
