// The shared-memory backend of one context: its links, its listeners, and the loans
// that outlive a connection.
#ifndef SLUICE_SHM_PROVIDER_H_
#define SLUICE_SHM_PROVIDER_H_

#include <memory>
#include <string>
#include <vector>

#include <sluice/proto/session_set.h>
#include <sluice/runtime/context_core.h>
#include <sluice/runtime/short_turns.h>
#include <sluice/shm/link.h>
#include <sluice/shm/rendezvous.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::shm {

class ShmProvider final : public Provider, public LoanKeeper {
 public:
  explicit ShmProvider(ContextCore& context);
  ~ShmProvider() override;

  Scheme scheme() const override { return Scheme::kShm; }
  Task<Result<std::shared_ptr<EndpointCore>>> start_connect(const Address& address,
                                                            const ConnectOptions& options) override;
  Result<std::unique_ptr<ListenerCore>> listen(const Address& address,
                                               const ListenOptions& options) override;

  // For select: an endpoint from a meeting. `reason` is for EndpointInfo.
  Result<std::shared_ptr<EndpointCore>> make_endpoint(Meeting meeting,
                                                      const proto::SessionOptions& options,
                                                      std::string reason);

  size_t progress(Instant now) override;
  bool begin_sleep() override;
  void end_sleep() override;
  Instant next_timeout() override;
  bool has_unsent() const override { return sessions_.has_unsent(); }
  void shut_down() override;
  std::string explain() const override;

  // LoanKeeper.
  void poll_again(ShmLink& link) override { polled_.push_back(&link); }
  void keep(Remains remains) override;
  void settle() override;

 private:
  struct Kept;
  size_t poll_links(Instant now);
  void forget_closed();

  struct Connection {
    std::shared_ptr<proto::Session> session;
    ShmLink* link;  // owned by the session
  };

  ContextCore& context_;
  std::vector<Connection> connections_;
  std::vector<std::unique_ptr<Kept>> kept_;
  proto::SessionSet sessions_;
  // Links that every turn looks at; the others rest until their peers ring.
  std::vector<ShmLink*> polled_;
  size_t next_ = 0;  // of them the one that the next turn begins with
  uint32_t turns_ = 0;
  ShortTurns short_turns_;
  bool some_closed_ = false;
};

}  // namespace sluice::shm

#endif  // SLUICE_SHM_PROVIDER_H_
