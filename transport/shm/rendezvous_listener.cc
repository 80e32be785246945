// The side of a rendezvous that accepts.
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/base/log.h>
#include <sluice/runtime/context_core.h>
#include <sluice/shm/rendezvous.h>
#include <sluice/spi/path_choice.h>

#include "transport/shm/handshake.h"

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/rendezvous";
// Connections accepted before other events have their turn: a flood must not keep those waiting.
constexpr int kAcceptsPerEvent = 16;
// Meetings that nobody has taken: as many as the kernel's queue of a listener holds before us. Each
// has a descriptor and two regions of 132 KiB.
constexpr size_t kMostMet = 128;
constexpr int kBacklog = 128;
// Where the process has no descriptor left, it looks again this often.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
// Users of whom it is remembered that a refusal was logged.
constexpr size_t kMostTold = 256;

Counter refused("shm.meetings_refused");
Counter expired("shm.meetings_expired");
Counter displaced("shm.meetings_displaced");
Counter paused("shm.accepting_paused");

Status failure(Code code, const std::string& why, int error = 0) {
  return Status(code, Scope::kEndpoint, kOrigin, why, error);
}

// The oldest entry of the process that has most. Requires: entries are in order of arrival.
template <typename Entries, typename PidOf>
size_t oldest_of_most(const Entries& entries, PidOf pid_of) {
  std::unordered_map<uint32_t, size_t> count;
  size_t most = 0;
  for (const auto& entry : entries) most = std::max(most, ++count[pid_of(entry)]);
  for (size_t i = 0; i < entries.size(); ++i) {
    if (count[pid_of(entries[i])] == most) return i;
  }
  return 0;
}

}  // namespace

class RendezvousListener::Alarm final : public EventHandler {
 public:
  explicit Alarm(RendezvousListener& owner) : owner_(owner) {}
  ~Alarm() {
    if (fd_) owner_.context_.unwatch(fd_.value(), this);
  }
  Status open() {
    fd_ = Descriptor(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (!fd_) return failure(Code::kNoMemory, "no descriptor for a timer; raise ulimit -n", errno);
    return owner_.context_.watch(fd_.value(), EPOLLIN, this);
  }
  // An alarm that is set for an earlier time rings once without effect, and is then set again.
  void set(Instant when) {
    if (when >= set_) return;
    int64_t at = std::max<int64_t>(when.time_since_epoch().count(), 1);  // zero would stop it
    itimerspec spec{};
    spec.it_value = {.tv_sec = at / 1'000'000'000, .tv_nsec = at % 1'000'000'000};
    if (::timerfd_settime(fd_.value(), TFD_TIMER_ABSTIME, &spec, nullptr) == 0) set_ = when;
  }
  void on_event(uint32_t) noexcept override {
    uint64_t times;
    [[maybe_unused]] ssize_t n = ::read(fd_.value(), &times, sizeof(times));
    set_ = kNever;
    owner_.ring_alarm();
  }

 private:
  RendezvousListener& owner_;
  Descriptor fd_;
  Instant set_ = kNever;
};

struct RendezvousListener::HalfOpen final : EventHandler {
  HalfOpen(RendezvousListener& owner, std::shared_ptr<Socket> connection, const PeerUser& peer,
           PeerCharge place, Instant limit)
      : listener(owner),
        socket(std::move(connection)),
        user(peer),
        charge(std::move(place)),
        deadline(limit) {}
  void on_event(uint32_t) noexcept override {
    if (socket) listener.finish(*this);
  }
  RendezvousListener& listener;
  std::shared_ptr<Socket> socket;  // null: over
  PeerUser user;
  PeerCharge charge;
  Instant deadline;
  bool refusal_logged = false;
};

RendezvousListener::RendezvousListener(ContextCore& context, const wire::Hello& ours,
                                       RendezvousOptions options)
    : context_(context), ours_(ours), options_(std::move(options)) {}

Result<std::unique_ptr<RendezvousListener>> RendezvousListener::open(ContextCore& context,
                                                                     const std::string& name,
                                                                     const wire::Hello& ours,
                                                                     RendezvousOptions options) {
  std::unique_ptr<RendezvousListener> listener(
      new RendezvousListener(context, ours, std::move(options)));
  SLUICE_RETURN_IF_ERROR(listener->begin(name));
  return listener;
}

Status RendezvousListener::begin(const std::string& name) {
  Descriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failure(Code::kNoMemory, "no descriptor for a socket; raise ulimit -n", errno);
  socklen_t length;
  sockaddr_un address = abstract_address(name, length);
  if (::bind(fd.value(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    bool taken = errno == EADDRINUSE;
    return failure(taken ? Code::kInvalidArgument : Code::kInternal,
                   taken ? shown(name) + " is taken by another listener; choose another name"
                         : "bind to " + shown(name) + " failed",
                   errno);
  }
  if (::listen(fd.value(), kBacklog) != 0)
    return failure(Code::kInternal, "listen at " + shown(name) + " failed", errno);
  alarm_ = std::make_unique<Alarm>(*this);
  SLUICE_RETURN_IF_ERROR(alarm_->open());
  SLUICE_RETURN_IF_ERROR(context_.watch(fd.value(), EPOLLIN, this));
  fd_ = std::move(fd);
  reserve_.fill();
  return Status();
}

RendezvousListener::~RendezvousListener() {
  for (auto& half : half_open_) context_.unwatch(half->socket->fd(), half.get());
  if (fd_) context_.unwatch(fd_.value(), this);
}

bool RendezvousListener::take(Meeting& out) {
  forgotten_.clear();
  if (met_.empty()) return false;
  out = std::move(met_.front().meeting);
  met_.pop_front();
  return true;
}

bool RendezvousListener::take_by(const wire::Uuid& token, Meeting& out) {
  forgotten_.clear();
  auto found = std::find_if(met_.begin(), met_.end(),
                            [&](const Met& met) { return met.meeting.peer.token == token; });
  if (found == met_.end()) return false;
  out = std::move(found->meeting);
  met_.erase(found);
  return true;
}

void RendezvousListener::on_event(uint32_t) noexcept {
  forgotten_.clear();
  accept_some();
  set_alarm();
}

void RendezvousListener::accept_some() {
  for (int i = 0; i < kAcceptsPerEvent; ++i) {
    int fd = ::accept4(fd_.value(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      accept_one(fd);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return pause_accepting();
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

// Callers that wait to be accepted would wake us for ever.
void RendezvousListener::pause_accepting() {
  if (paused.value() == 0)
    log(LogLevel::kWarning,
        "no descriptor for a shared-memory peer; raise ulimit -n (further cases are counted in "
        "shm.accepting_paused)");
  paused.add();
  reserve_.turn_away(fd_.value(), [&](Descriptor caller) {
    const Socket socket(caller.release());
    refuse(socket.fd(), {}, failure(Code::kNoMemory, "no descriptor"), true);
  });
  (void)context_.rewatch(fd_.value(), 0, this);
  paused_until_ = after(context_.now(), kAcceptPause);
}

void RendezvousListener::accept_one(int fd) {
  auto socket = std::make_shared<Socket>(fd);
  Result<PeerUser> user = check_peer(fd);
  if (!user.ok()) return refuse(fd, {}, user.status());
  std::shared_ptr<PeerAccount> account =
      context_.peer_accounts().open(PeerIdentity::of_user(user->uid));
  Status place = account->charge(PeerResource::kHalfOpen);
  if (!place.ok() && !half_open_.empty()) {
    displaced.add();
    send_away(
        *half_open_[oldest_of_most(half_open_, [](const auto& half) { return half->user.pid; })]);
    place = account->charge(PeerResource::kHalfOpen);
  }
  if (!place.ok())
    return refuse(fd, *user, failure(Code::kTimedOut, "too many peers greet at once"), true);
  PeerCharge charge(account, PeerResource::kHalfOpen);
  Instant limit = after(context_.now(), options_.half_open_limit);
  auto half = std::make_unique<HalfOpen>(*this, socket, *user, std::move(charge), limit);
  Status watched = context_.watch(fd, EPOLLIN | EPOLLRDHUP, half.get());
  if (!watched.ok()) return refuse(fd, *user, watched);
  half_open_.push_back(std::move(half));
}

void RendezvousListener::refuse(int fd, const PeerUser& peer, const Status& why, bool logged) {
  refused.add();
  send_bye(fd, why.code());
  if (logged || told_.size() >= kMostTold || !told_.insert(peer.uid).second) return;
  log(LogLevel::kWarning, "refused a shared-memory peer: " + why.to_string() +
                              " (further refusals are counted in shm.meetings_refused)");
}

void RendezvousListener::ring_alarm() {
  forgotten_.clear();
  const Instant now = context_.refresh_now();
  while (!half_open_.empty() && half_open_.front()->deadline <= now) {
    expired.add();
    send_away(*half_open_.front());
  }
  put_off_missed_limits(met_, now);
  while (!met_.empty() && met_.front().expires <= now) {
    expired.add();
    met_.pop_front();
  }
  if (paused_until_ <= now) {
    paused_until_ = kNever;
    reserve_.fill();
    (void)context_.rewatch(fd_.value(), EPOLLIN, this);
  }
  set_alarm();
}

void RendezvousListener::set_alarm() {
  Instant when = paused_until_;
  if (!half_open_.empty()) when = std::min(when, half_open_.front()->deadline);
  if (!met_.empty()) when = std::min(when, met_.front().expires);
  alarm_->set(when);
}

// An honest caller was slower than others, and calls again.
void RendezvousListener::send_away(HalfOpen& half) {
  if (half.socket) send_bye(half.socket->fd(), Code::kTimedOut);
  forget(half);
}

void RendezvousListener::forget(HalfOpen& half) {
  if (half.socket) context_.unwatch(half.socket->fd(), &half);
  half.socket = nullptr;
  half.charge.end();
  auto found = std::find_if(half_open_.begin(), half_open_.end(),
                            [&](const auto& one) { return one.get() == &half; });
  if (found == half_open_.end()) return;
  forgotten_.push_back(std::move(*found));
  half_open_.erase(found);
}

void RendezvousListener::finish(HalfOpen& half) {
  Meeting meeting;
  Result<std::optional<Greeting>> greeting = receive_hello(half.socket->fd(), ours_);
  if (greeting.ok() && !*greeting) return;
  Status status = greeting.status();
  if (greeting.ok()) {
    fault_point("shm.accepted");
    meeting.peer = (*greeting)->hello;
    meeting.parts.peer = std::move((*greeting)->region);
    status = settle_in(half, meeting);
  }
  if (!status.ok()) {
    refuse(half.socket->fd(), half.user, status, half.refusal_logged);
    return forget(half);
  }
  context_.unwatch(half.socket->fd(), &half);
  meeting.parts.socket = std::move(half.socket);
  Instant expires =
      options_.met_limit > Duration(0) ? after(context_.now(), options_.met_limit) : kNever;
  met_.push_back({std::move(meeting), expires});
  forget(half);
  set_alarm();
}

// All that the connection needs here, and the answer.
Status RendezvousListener::settle_in(HalfOpen& half, Meeting& meeting) {
  SLUICE_RETURN_IF_ERROR(admit(half, meeting.peer, meeting.parts.account));
  meeting.user = half.user;
  meeting.ours = ours_;
  meeting.ours.token = meeting.peer.token;
  meeting.ours.has_rendezvous = meeting.peer.has_rendezvous;
  SLUICE_TRY(meeting.parts.own, OwnRegion::create(meeting.ours.incarnation));
  meeting.parts.peer_arena_bytes = meeting.peer.arena_bytes;
  meeting.parts.local_name = "pid " + std::to_string(::getpid());
  meeting.parts.peer_name = "pid " + std::to_string(meeting.peer.pid);
  return send_hello(half.socket->fd(), meeting.ours, meeting.parts.own->fd());
}

Status RendezvousListener::admit(HalfOpen& half, const wire::Hello& hello,
                                 std::shared_ptr<ConnectionAccount>& account) {
  const std::string name = "pid " + std::to_string(hello.pid);
  const PeerIntroduction introduction{.path = Path::kShm,
                                      .address = name,
                                      .user_id = half.user.uid,
                                      .process_id = half.user.pid,
                                      .incarnation = hello.incarnation,
                                      .said_process_id = hello.pid};
  if (met_.size() >= kMostMet && !make_room_among_met(half.user.pid)) {
    return failure(Code::kTimedOut,
                   std::to_string(kMostMet) + " peers wait for Listener::accept() already");
  }
  proto::ConnectionTicket ticket;
  if (options_.admit) {
    Result<proto::ConnectionTicket> given =
        options_.admit(PeerIdentity::of_user(half.user.uid), introduction);
    half.refusal_logged = !given.ok();
    if (!given.ok()) return given.status();
    ticket = std::move(given).value();
  }
  account = std::make_shared<ConnectionAccount>(half.charge.account(), std::move(ticket));
  return Status();
}

// The process that has most makes room for others and none for itself.
bool RendezvousListener::make_room_among_met(uint32_t newcomer) {
  auto pid_of = [](const Met& met) { return met.meeting.user.pid; };
  size_t goes = oldest_of_most(met_, pid_of);
  const uint32_t greedy = pid_of(met_[goes]);
  if (greedy == newcomer) return false;
  // Its connect() has returned: the only peer of a process stays, and the newcomer calls again.
  if (std::count_if(met_.begin(), met_.end(),
                    [&](const Met& met) { return pid_of(met) == greedy; }) == 1)
    return false;
  displaced.add();
  met_.erase(met_.begin() + static_cast<long>(goes));
  return true;
}

}  // namespace sluice::shm
