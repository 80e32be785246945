#include <sluice/shm/provider.h>

#include <errno.h>
#include <sys/epoll.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/proto/hello.h>
#include <sluice/proto/listener_limits.h>
#include <sluice/runtime/awaits.h>
#include <sluice/shm/properties.h>

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/provider";
// A full ring empties without a bell: look again this often while asleep.
constexpr Duration kBlockedRetry = std::chrono::milliseconds(1);

// Whether views of closed connections have ended is looked at this often: it is no event.
constexpr uint32_t kTurnsPerSettling = 64;
// If there are more links than this, a link rests in which so many polls in a row found nothing: to
// poll 4,000 idle ones took 60 us of a turn. The peer wakes a resting link by its doorbell, some
// 20 us later.
constexpr size_t kMostPolledIdle = 16;
constexpr uint32_t kIdlePolls = 4096;
// So does one on which nothing came over so many sleeps of the context: who sleeps a lot polls
// little, and each sleep had a look at all of them.
constexpr uint32_t kIdleSleeps = 4;

Counter links_rested("shm.links_rested");
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

Status check_requirements(const Requirements& require, const Address& address) {
  std::string why = unmet(require, shm_properties());
  if (why.empty()) return Status();
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                address.to_string() + " cannot meet the requirements: " + why +
                    "; use sluice:// or relax them");
}

class ShmListener final : public ListenerCore {
 public:
  ShmListener(ShmProvider& provider, std::unique_ptr<RendezvousListener> rendezvous,
              std::string address, const proto::SessionOptions& options)
      : provider_(provider),
        rendezvous_(std::move(rendezvous)),
        address_(std::move(address)),
        options_(options) {}

  std::shared_ptr<EndpointCore> accept() override {
    Meeting meeting;
    while (rendezvous_ != nullptr && rendezvous_->take(meeting)) {
      const std::string who = meeting.parts.peer_name;
      auto endpoint = provider_.make_endpoint(std::move(meeting), options_, "shm: was asked for");
      if (endpoint.ok()) return std::move(endpoint).value();
      lost_.log(LogLevel::kWarning,
                "lost the peer " + who + " at " + address_ + ": " + endpoint.status().to_string());
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
  LogThrottle lost_;
};

}  // namespace

// What is left of a closed connection. Its socket hangs up when the peer's process ended; the
// peer's direction ends when its last view did.
struct ShmProvider::Kept final : EventHandler {
  Kept(ContextCore& owner, Remains all) : context(owner), remains(std::move(all)) {}

  void on_event(uint32_t events) noexcept override {
    if (!watched) return;
    const int fd = remains.socket->fd();
    if ((events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) == 0) {
      if (!remains.end_due || send_end(fd) == Code::kTryAgain) return;
      remains.end_due = false;
      if (!remains.loans.empty()) {
        (void)context.rewatch(fd, EPOLLRDHUP, this);
        return;
      }
    }
    remains.loans.clear();
    stop();
  }
  void stop() {
    if (std::exchange(watched, false)) context.unwatch(remains.socket->fd(), this);
    remains.socket = nullptr;
  }
  bool over() const { return remains.socket == nullptr && !remains.account->is_mapped(); }

  ContextCore& context;
  Remains remains;
  bool watched = false;
};

ShmProvider::ShmProvider(ContextCore& context) : context_(context), sessions_(context.now()) {}

ShmProvider::~ShmProvider() {
  sessions_.detach_all();
  // Nothing tells any more when the peers release it, so the memory is never used again.
  for (auto& kept : kept_) {
    for (StorageRef& loan : kept->remains.loans) {
      loans_abandoned.add();
      abandon(std::move(loan));
    }
    kept->stop();
    // Views that are left end on threads that may not touch the accounts.
    kept->remains.account->settle();
  }
}

void ShmProvider::shut_down() {
  sessions_.abort_all(Status(Code::kCancelled, Scope::kContext, kOrigin, "the context was closed"));
}

Task<Result<std::shared_ptr<EndpointCore>>> ShmProvider::start_connect(
    const Address& address, const ConnectOptions& options) {
  SLUICE_CO_RETURN_IF_ERROR(check_requirements(options.require, address));
  const proto::SessionOptions session = proto::session_options(options);
  const Instant deadline = after(context_.refresh_now(), options.timeout);
  SLUICE_CO_TRY(Meeting meeting,
                co_await meet(context_, socket_name(address.name),
                              proto::hello_for(context_, session), deadline, deadline));
  co_return make_endpoint(std::move(meeting), session, "shm: was asked for");
}

Result<std::unique_ptr<ListenerCore>> ShmProvider::listen(const Address& address,
                                                          const ListenOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_requirements(options.require, address));
  proto::SessionOptions session = proto::session_options(options);
  auto limits = std::make_shared<proto::ListenerLimits>(context_, options, address.to_string());
  RendezvousOptions rules;
  rules.admit = [limits](const PeerIdentity& identity, const PeerIntroduction& who) {
    return limits->admit(identity, who);
  };
  SLUICE_TRY(auto rendezvous,
             RendezvousListener::open(context_, socket_name(address.name),
                                      proto::hello_for(context_, session), std::move(rules)));
  return std::unique_ptr<ListenerCore>(
      std::make_unique<ShmListener>(*this, std::move(rendezvous), address.to_string(), session));
}

Result<std::shared_ptr<EndpointCore>> ShmProvider::make_endpoint(
    Meeting meeting, const proto::SessionOptions& options, std::string reason) {
  settle();
  std::shared_ptr<PeerAccount> account = meeting.parts.account->peer();
  auto link = std::make_unique<ShmLink>(context_, *this, std::move(meeting.parts));
  ShmLink* raw = link.get();
  SLUICE_RETURN_IF_ERROR(raw->watch());
  auto session = sessions_.open(std::move(link), context_.link_decorator(),
                                proto::SessionParts{
                                    .arena = context_.shared_arena(),
                                    .population = &context_.population(),
                                    .mailbox = context_.mailbox(),
                                    .ours = meeting.ours,
                                    .peer = meeting.peer,
                                    .options = options,
                                    .reason = std::move(reason),
                                    .account = std::move(account),
                                });
  connections_.push_back({session, raw});
  polled_.push_back(raw);
  in_use_ = true;
  return std::shared_ptr<EndpointCore>(session);
}

// One after the other, until the turn is over; the next turn goes on there.
size_t ShmProvider::poll_links(Instant now) {
  size_t work = 0;
  Turn turn;
  if (next_ >= polled_.size()) next_ = 0;
  // A link that rests gives its place to the last one, which has its turn there.
  for (size_t left = polled_.size(); left > 0 && !turn.over(); --left) {
    ShmLink* link = polled_[next_];
    const size_t done = link->poll(now, turn);
    work += done;
    if (done > 0) {
      link->idle_polls = link->idle_sleeps = 0;
    } else if (polled_.size() > kMostPolledIdle && ++link->idle_polls > kIdlePolls) {
      link->idle_polls = 0;
      if (link->rest()) {
        links_rested.add();
        polled_[next_] = polled_.back();
        polled_.pop_back();
        if (next_ >= polled_.size()) next_ = 0;
        continue;
      }
    }
    if (++next_ >= polled_.size()) next_ = 0;
  }
  return work;
}

size_t ShmProvider::progress(Instant now) {
  size_t work = 0;
  if (polled_.size() == 1) {  // what comes on it takes 8 ns more by way of poll_links()
    if (Turn turn; polled_[0]->due()) work = polled_[0]->poll(now, turn);
    // What came is the program's first. Of several connections, the others wait for this turn too.
    if (sessions_.size() == 1 && short_turns_.ends_after(work)) return work;
  } else {
    work = poll_links(now);
  }
  work += sessions_.progress(now);
  if (some_closed_) forget_closed();
  if (!kept_.empty() && ++turns_ % kTurnsPerSettling == 0) settle();
  return work;
}

void ShmProvider::forget_closed() {
  some_closed_ = false;
  std::erase_if(polled_, [](const ShmLink* link) { return link->closed(); });
  std::erase_if(connections_, [this](const Connection& c) {
    if (!c.link->closed()) return false;
    const bool busy = c.session->has_work();
    some_closed_ = some_closed_ || busy;
    return !busy;
  });
  settle();
}

void ShmProvider::settle() {
  std::erase_if(kept_, [](const std::unique_ptr<Kept>& kept) {
    if (!kept->over()) return false;
    kept->remains.account->settle();
    return true;
  });
  in_use_ = !connections_.empty() || sessions_.size() > 0 || !kept_.empty();
}

bool ShmProvider::begin_sleep() {
  bool quiet = !sessions_.has_work();
  for (size_t i = 0; i < polled_.size();) {
    ShmLink* link = polled_[i];
    if (polled_.size() > kMostPolledIdle && ++link->idle_sleeps > kIdleSleeps && link->rest()) {
      links_rested.add();
      link->idle_polls = link->idle_sleeps = 0;
      polled_[i] = polled_.back();
      polled_.pop_back();
      continue;
    }
    quiet = link->begin_sleep() && quiet;
    ++i;
  }
  return quiet;
}

void ShmProvider::end_sleep() {
  for (ShmLink* link : polled_) link->end_sleep();
}

Instant ShmProvider::next_timeout() {
  Instant next = sessions_.next_timeout();
  for (const ShmLink* link : polled_) {
    if (link->blocked()) next = std::min(next, after(context_.now(), kBlockedRetry));
  }
  return next;
}

void ShmProvider::keep(Remains remains) {
  loans_kept.add(remains.loans.size());
  // Where nothing else holds the socket, its end tells the peer as well: it need not have room for
  // that.
  if (remains.loans.empty() && !remains.account->is_mapped()) remains.end_due = false;
  auto kept = std::make_unique<Kept>(context_, std::move(remains));
  const Remains& left = kept->remains;
  if (left.loans.empty() && !left.end_due) {
    kept->stop();
  } else {
    // Packets that still come are not read.
    uint32_t events = EPOLLRDHUP | (left.end_due ? static_cast<uint32_t>(EPOLLOUT) : 0);
    kept->watched = context_.watch(left.socket->fd(), events, kept.get()).ok();
    if (!kept->watched)
      log(LogLevel::kWarning, "loans to a closed peer cannot be watched; they stay out of use");
  }
  kept_.push_back(std::move(kept));
  some_closed_ = true;
  in_use_ = true;
}

std::string ShmProvider::explain() const {
  return "usable between processes of one user in one network namespace";
}

}  // namespace sluice::shm
