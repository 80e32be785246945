// Names to socket addresses without blocking: c-ares, on the context's epoll. Its only door.
#ifndef SLUICE_TCP_NAMES_H_
#define SLUICE_TCP_NAMES_H_

#include <memory>
#include <string>
#include <vector>

#include <sluice/api/address.h>
#include <sluice/api/progress_hook.h>
#include <sluice/base/result.h>
#include <sluice/runtime/context_core.h>
#include <sluice/tcp/socket.h>

namespace sluice::tcp {

// Addresses in digits ask nobody. Empty: the host is a name.
std::vector<SocketAddress> address_in_digits(const Address& address);

// One question. It goes on while the context is progressed; destroying it gives up. Thread: the
// context's.
class NameQuery final : private ProgressHook {
 public:
  // Reads /etc/resolv.conf and /etc/hosts. Errors: kNoMemory.
  static Result<std::unique_ptr<NameQuery>> start(ContextCore& context, const Address& address);
  ~NameQuery();
  NameQuery(const NameQuery&) = delete;
  NameQuery& operator=(const NameQuery&) = delete;

  bool done() const { return done_; }
  // Requires: done(); once. At least one address, in the order of RFC 6724. Errors: kUnreachable;
  // the detail names the host and the remedy.
  Result<std::vector<SocketAddress>> take();

 private:
  struct Watched;  // one of the sockets to the servers
  struct Callbacks;

  NameQuery(ContextCore& context, const Address& address);
  size_t progress(Instant now) override;
  Instant next_timeout() override { return next_; }
  void settle_timer();
  void watch(int fd, bool readable, bool writable);

  ContextCore& context_;
  std::string host_, whole_;
  uint16_t port_;
  void* channel_ = nullptr;  // ares_channel
  std::vector<std::unique_ptr<Watched>> watched_;
  std::vector<SocketAddress> found_;
  int error_ = 0;
  bool done_ = false;
  Instant next_ = kNever;  // when c-ares asks again, or another server
};

// For tests: the servers to ask, as "127.0.0.1:5353", in place of those of /etc/resolv.conf. Empty:
// those again.
void use_name_servers(const std::string& servers);

}  // namespace sluice::tcp

#endif  // SLUICE_TCP_NAMES_H_
