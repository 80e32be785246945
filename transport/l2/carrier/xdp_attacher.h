// Attaches a broker's XDP program and detaches it, on a thread of its own: a card may take seconds
// for either, and others who ask the broker do not wait for it. Knows no clients.
#ifndef SLUICE_L2_CARRIER_XDP_ATTACHER_H_
#define SLUICE_L2_CARRIER_XDP_ATTACHER_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <sluice/base/result.h>
#include <sluice/l2/carrier/lent_xdp.h>
#include <sluice/l2/carrier/xdp_source.h>
#include <sluice/runtime/helper_thread.h>
#include <sluice/runtime/mailbox.h>

namespace sluice::l2 {

// One of both at a time. Thread: the broker's.
class XdpAttacher final : private HelperThread::Job {
 public:
  // Errors: kNoMemory (no thread, no descriptor).
  static Result<std::unique_ptr<XdpAttacher>> start(std::string interface);
  // Blocks: until the card is done.
  ~XdpAttacher();
  XdpAttacher(const XdpAttacher&) = delete;
  XdpAttacher& operator=(const XdpAttacher&) = delete;

  // Requires, of both: not busy().
  void attach();
  void detach(std::unique_ptr<LentXdp> loan);
  // Until look() has found that it is over, after fd() was readable.
  bool busy() const { return thread_->busy(); }
  int fd() const { return mailbox_->doorbell(); }
  void look();
  // What attach() came to, once; none: it was detach(). Requires: not busy(). Errors: those of
  // OwnXdp::attach() and confine().
  std::optional<Result<std::unique_ptr<OwnXdp>>> made() {
    return std::exchange(made_, std::nullopt);
  }

 private:
  explicit XdpAttacher(std::string interface) : interface_(std::move(interface)) {}
  void run(const std::atomic<bool>& stop) noexcept override;

  std::string interface_;
  std::shared_ptr<Mailbox> mailbox_;
  std::unique_ptr<HelperThread> thread_;
  // The thread's while it is busy.
  std::unique_ptr<LentXdp> ending_;
  std::optional<Result<std::unique_ptr<OwnXdp>>> made_;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_CARRIER_XDP_ATTACHER_H_
