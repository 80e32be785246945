// The kernel module's provider of one context: its links, its listeners, and connections that
// still greet.
#ifndef SLUICE_KMOD_PROVIDER_H_
#define SLUICE_KMOD_PROVIDER_H_

#include <memory>
#include <string>
#include <vector>

#include <sluice/base/log.h>
#include <sluice/kmod/connection.h>
#include <sluice/kmod/socket.h>
#include <sluice/proto/connection_set.h>
#include <sluice/proto/direct_link.h>
#include <sluice/proto/half_open.h>
#include <sluice/proto/listener_limits.h>
#include <sluice/runtime/context_core.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::kmod {

class KmodListener;

class KmodProvider final : public Provider, public KmodHost, public proto::Lingering {
 public:
  explicit KmodProvider(ContextCore& context);
  ~KmodProvider() override;

  Scheme scheme() const override { return Scheme::kKmod; }
  Task<Result<std::shared_ptr<EndpointCore>>> start_connect(const Address& address,
                                                            const ConnectOptions& options) override;
  Result<std::unique_ptr<ListenerCore>> listen(const Address& address,
                                               const ListenOptions& options) override;
  // For a caller that has chosen this path: `session` says why.
  Task<Result<std::shared_ptr<EndpointCore>>> start_connect(const Address& address,
                                                            const ConnectOptions& options,
                                                            proto::SessionOptions session);
  Result<std::unique_ptr<ListenerCore>> listen(const Address& address, const ListenOptions& options,
                                               const proto::SessionOptions& session);

  size_t progress(Instant now) override;
  bool begin_sleep() override;
  bool has_unsent() const override { return connections_.sessions().has_unsent(); }
  Instant next_timeout() override;
  void shut_down() override;
  std::string explain() const override;

 private:
  friend class KmodListener;

  // `limits`: null where somebody else asks for them.
  Result<std::unique_ptr<ListenerCore>> listen(const Address& address, const ListenOptions& options,
                                               const proto::SessionOptions& session,
                                               std::unique_ptr<proto::ListenerLimits> limits);
  std::shared_ptr<PeerAccount> account_of(const KmodPlace& peer) {
    return context_.peer_accounts().open(PeerIdentity::of_ethernet(peer.mac));
  }
  class Meeting;
  Task<Result<std::unique_ptr<KmodConnection>>> meet(const Address& address, wire::Hello ours,
                                                     Instant deadline);
  Result<std::shared_ptr<EndpointCore>> make_endpoint(std::unique_ptr<KmodConnection> connection,
                                                      const Requirements& require,
                                                      const proto::SessionOptions& options);
  void activate(KmodConnection& connection) noexcept override;
  void forget(KmodConnection& connection) noexcept override;
  void linger(std::unique_ptr<proto::DirectConnection> connection) noexcept override;
  void tidy();
  void note_use();

  ContextCore& context_;
  std::vector<KmodConnection*> awake_;  // null: has gone meanwhile
  std::vector<KmodListener*> listeners_;
  proto::ConnectionSet<proto::DirectLink, proto::DirectConnection> connections_;
  size_t greeting_ = 0;
  bool inside_ = false;
  bool untidy_ = false;
};

// Accepts connections. Half-open ones are bounded in number, for each machine and in time.
class KmodListener final : public ListenerCore, private EventHandler {
 public:
  // `limits`: may be null.
  KmodListener(KmodProvider& owner, KmodSocket socket, const Requirements& require,
               const proto::SessionOptions& options, std::unique_ptr<proto::ListenerLimits> limits);
  // Errors: kNoMemory.
  Status begin();
  ~KmodListener() override { close(); }
  std::shared_ptr<EndpointCore> accept() override;
  std::string address() const override { return address_; }
  void close() override;
  // Answers who called, and ends those that took too long.
  size_t progress(Instant now);
  Instant next_timeout() const { return half_open_.next_timeout(); }
  bool has_news() const { return readable_; }

 private:
  void on_event(uint32_t) noexcept override { readable_ = true; }
  void answer(const wire::Hello& theirs, const KmodPlace& caller, Instant now);

  KmodProvider* owner_;
  KmodSocket socket_;
  std::string address_;
  Requirements require_;
  proto::SessionOptions options_;
  std::unique_ptr<proto::ListenerLimits> limits_;
  wire::Hello ours_;
  bool readable_ = true;
  proto::HalfOpen<KmodConnection> half_open_;
  LogThrottle lost_;
};

}  // namespace sluice::kmod

#endif  // SLUICE_KMOD_PROVIDER_H_
