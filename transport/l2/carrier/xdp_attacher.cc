#include <sluice/l2/carrier/xdp_attacher.h>

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace sluice::l2 {
namespace {

Result<std::unique_ptr<OwnXdp>> confined(const std::string& interface) {
  SLUICE_TRY(std::unique_ptr<OwnXdp> own, OwnXdp::attach(interface));
  SLUICE_RETURN_IF_ERROR(own->confine());
  return own;
}

}  // namespace

Result<std::unique_ptr<XdpAttacher>> XdpAttacher::start(std::string interface) {
  std::unique_ptr<XdpAttacher> made(new XdpAttacher(std::move(interface)));
  const int doorbell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (doorbell < 0) return no_descriptor(errno);
  made->mailbox_ = std::make_shared<Mailbox>(doorbell);
  (void)made->mailbox_->begin_sleep();  // for good: all news ring
  Result<std::unique_ptr<HelperThread>> thread = HelperThread::start(made->mailbox_);
  if (!thread.ok())
    return broker_failed(Code::kNoMemory,
                         "no thread for the XDP program; raise `ulimit -u` or the cgroup's "
                         "pids.max, or start the broker without --xdp",
                         thread.status().os_error());
  made->thread_ = *std::move(thread);
  return made;
}

XdpAttacher::~XdpAttacher() {
  thread_.reset();
  if (mailbox_ != nullptr) mailbox_->close();  // its last news are nobody's
}

void XdpAttacher::attach() { thread_->begin(*this); }

void XdpAttacher::detach(std::unique_ptr<LentXdp> loan) {
  ending_ = std::move(loan);
  thread_->begin(*this);
}

void XdpAttacher::run(const std::atomic<bool>&) noexcept {
  if (ending_ != nullptr)
    ending_.reset();
  else
    made_ = confined(interface_);
}

void XdpAttacher::look() {
  uint64_t rings;
  [[maybe_unused]] ssize_t bytes = ::read(fd(), &rings, sizeof(rings));
  mailbox_->open_all();
}

}  // namespace sluice::l2
