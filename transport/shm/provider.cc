#include <sluice/shm/provider.h>

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/proto/hello.h>

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/provider";
// A full ring empties without a bell: look again this often while asleep.
constexpr Duration kBlockedRetry = std::chrono::milliseconds(1);

Counter loans_kept("shm.loans_kept");
Counter loans_abandoned("shm.loans_abandoned");

// Keeps memory that a peer may read for ever, reachable, so that a leak checker finds only
// leaks.
void abandon(StorageRef loan) {
  static std::mutex mutex;
  static auto& abandoned = *new std::vector<StorageRef>;
  std::lock_guard lock(mutex);
  abandoned.push_back(std::move(loan));
}

class ShmListener final : public ListenerCore {
 public:
  ShmListener(ShmProvider& provider, std::unique_ptr<RendezvousListener> rendezvous, std::string address,
              const proto::SessionOptions& options)
      : provider_(provider), rendezvous_(std::move(rendezvous)), address_(std::move(address)), options_(options) {}

  std::shared_ptr<EndpointCore> accept() override {
    Meeting meeting;
    while (rendezvous_ != nullptr && rendezvous_->take(meeting)) {
      auto endpoint = provider_.make_endpoint(std::move(meeting), options_, "shm: was asked for");
      if (endpoint.ok()) return std::move(endpoint).value();
      log(LogLevel::kWarning, "lost a shared-memory peer: " + endpoint.status().to_string());
    }
    return nullptr;
  }
  std::string address() const override { return address_; }
  void close() override { rendezvous_.reset(); }

 private:
  ShmProvider& provider_;
  std::unique_ptr<RendezvousListener> rendezvous_;
  std::string address_;
  proto::SessionOptions options_;
};

}  // namespace

// Loans of a closed connection. The descriptor hangs up when the peer's process ended; the
// peer's direction ends when its last view did.
struct ShmProvider::Kept final : EventHandler {
  void on_event(uint32_t events) noexcept override {
    if (fd < 0) return;
    if ((events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) == 0) {
      if (!end_due || send_end(fd) == Code::kTryAgain) return;
      end_due = false;
      if (!loans.empty()) {
        (void)context->rewatch(fd, EPOLLRDHUP, this);
        return;
      }
    }
    loans.clear();
    context->unwatch(fd, this);
    ::close(std::exchange(fd, -1));
  }
  Context* context = nullptr;
  int fd = -1;
  bool end_due = false;
  std::vector<StorageRef> loans;
};

ShmProvider::ShmProvider(Context& context) : context_(context), sessions_(context.now()) {}

ShmProvider::~ShmProvider() {
  sessions_.detach_all();
  // Nobody can tell any more when the peers let go: the memory is never used again.
  for (auto& kept : kept_) {
    if (kept->fd < 0) continue;
    for (StorageRef& loan : kept->loans) {
      loans_abandoned.add();
      abandon(std::move(loan));
    }
    context_.unwatch(kept->fd, kept.get());
    ::close(kept->fd);
  }
}

void ShmProvider::shut_down() {
  sessions_.abort_all(Status(Code::kCancelled, Scope::kContext, kOrigin, "the context was closed"));
}

Result<std::shared_ptr<EndpointCore>> ShmProvider::connect(const Address& address, const ConnectOptions& options) {
  proto::SessionOptions session = proto::session_options(options);
  PathProperties path{.path = Path::kShm, .capabilities = {Capability::kViews, Capability::kZeroCopyFetch}};
  if (std::string why = unmet(options.require, path); !why.empty()) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin, why);
  }
  Instant deadline = after(context_.refresh_now(), options.timeout);
  SLUICE_TRY(Meeting meeting, meet(context_, socket_name(address.name), proto::hello_for(context_, session), deadline));
  return make_endpoint(std::move(meeting), session, "shm: was asked for");
}

Result<std::unique_ptr<ListenerCore>> ShmProvider::listen(const Address& address, const ListenOptions& options) {
  proto::SessionOptions session = proto::session_options(options);
  SLUICE_TRY(auto rendezvous, RendezvousListener::open(context_, socket_name(address.name), proto::hello_for(context_, session)));
  return std::unique_ptr<ListenerCore>(
      std::make_unique<ShmListener>(*this, std::move(rendezvous), address.to_string(), session));
}

Result<std::shared_ptr<EndpointCore>> ShmProvider::make_endpoint(Meeting meeting, const proto::SessionOptions& options,
                                                                 std::string reason) {
  auto link = std::make_unique<ShmLink>(context_, *this, std::move(meeting.parts));
  ShmLink* raw = link.get();
  SLUICE_RETURN_IF_ERROR(raw->watch());
  auto session = sessions_.open(std::move(link), context_.link_decorator(), proto::SessionParts{
      .arena = context_.shared_arena(),
      .mailbox = context_.mailbox(),
      .ours = meeting.ours,
      .peer = meeting.peer,
      .options = options,
      .reason = std::move(reason),
  });
  connections_.push_back({session, raw});
  in_use_ = true;
  return std::shared_ptr<EndpointCore>(session);
}

size_t ShmProvider::progress(Instant now) {
  size_t work = 0;
  for (size_t i = 0; i < connections_.size(); ++i) {
    ShmLink* link = connections_[i].link;
    if (link->closed()) {
      some_closed_ = true;
      continue;
    }
    work += link->poll(now);
  }
  work += sessions_.progress(now);
  if (some_closed_) forget_closed();
  return work;
}

void ShmProvider::forget_closed() {
  some_closed_ = false;
  std::erase_if(connections_, [](const Connection& c) { return c.link->closed() && !c.session->has_work(); });
  in_use_ = !connections_.empty() || sessions_.size() > 0;
  std::erase_if(kept_, [](const std::unique_ptr<Kept>& kept) { return kept->fd < 0; });
}

bool ShmProvider::begin_sleep() {
  bool quiet = !sessions_.has_work();
  for (Connection& connection : connections_) quiet = connection.link->begin_sleep() && quiet;
  return quiet;
}

void ShmProvider::end_sleep() {
  for (Connection& connection : connections_) connection.link->end_sleep();
}

Instant ShmProvider::next_timeout() {
  Instant next = sessions_.next_timeout();
  for (Connection& connection : connections_) {
    if (connection.link->blocked()) next = std::min(next, after(context_.now(), kBlockedRetry));
  }
  return next;
}

void ShmProvider::keep(int fd, std::vector<StorageRef> loans, bool end_due) {
  loans_kept.add(loans.size());
  auto kept = std::make_unique<Kept>();
  kept->context = &context_;
  kept->fd = fd;
  kept->end_due = end_due;
  kept->loans = std::move(loans);
  // Packets that still come are not read.
  if (!context_.watch(fd, EPOLLRDHUP | (end_due ? static_cast<uint32_t>(EPOLLOUT) : 0), kept.get()).ok()) log(LogLevel::kWarning, "loans to a closed peer cannot be watched; they stay out of use");
  kept_.push_back(std::move(kept));
}

std::string ShmProvider::explain() const { return "usable between processes of one user in one network namespace"; }

}  // namespace sluice::shm
