#include <sluice/l2/carrier/broker.h>

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <sluice/base/counters.h>

namespace sluice::l2 {
namespace {

constexpr Duration kBrokerLimit = std::chrono::seconds(2);
constexpr int kBacklog = 64;
// A connected client has so long to ask, and so many may wait at once.
constexpr Duration kAskerLimit = std::chrono::seconds(1);
constexpr int kLookMs = 500;
constexpr size_t kMostAskers = 64;
constexpr int kOutOfDescriptorsMs = 100;
// Descriptors for the process itself, for a socket to be lent, its claim and the kernel's table.
// The others are for clients.
constexpr rlim_t kOwnDescriptors = 24;
// Users times causes; beyond these refusals only count.
constexpr size_t kMostTold = 1024;
constexpr int kTriesForPort = 64;
// Of the socket's file: the uid decides who may ask, not access to the file.
constexpr mode_t kRights = 0666;
// SO_PASSRIGHTS of Linux 6.16, which older headers lack.
constexpr int kPassRights = 83;

Counter lent("l2.sockets_lent");
Counter refused("l2.sockets_refused");
Counter silent("l2.askers_silent");  // who connected and did not ask in time, or had to make room

Status cannot_listen(const std::string& path, int error) {
  const std::string what = "the broker cannot listen at " + path + ": ";
  if (error == EADDRINUSE && UnixSocketFile::is_socket(path))
    return broker_failed(Code::kWrongState,
                         what + "another broker listens there; end it, or give another --path",
                         error);
  return broker_failed(Code::kInvalidArgument,
                       what + std::strerror(error) +
                           "; give a --path that is free, in a folder that it may write to",
                       error);
}

bool hung_up(int client) {
  pollfd state{client, 0, 0};
  return ::poll(&state, 1, 0) == 1 && (state.revents & (POLLHUP | POLLERR)) != 0;
}

}  // namespace

Result<PacketSocket> borrow_packet_socket(const std::string& interface, uint16_t port) {
  BrokerRequest request{.what = Ask::kPacketSocket, .port = port};
  if (interface.size() >= sizeof(request.interface))
    return broker_failed(Code::kInvalidArgument, "there is no interface '" + interface + "'");
  std::memcpy(request.interface, interface.data(), interface.size());
  SLUICE_TRY(BrokerConnection broker, BrokerConnection::to(interface, kBrokerLimit));
  SLUICE_TRY(Loan loan, broker.ask(request, 2));
  return PacketSocket{std::move(loan.fds[0]), std::move(loan.fds[1]), loan.port};
}

Result<Broker> Broker::open(const BrokerOptions& options) {
  SLUICE_RETURN_IF_ERROR(
      open_packet_socket(options.interface, 0, true).status());  // what cannot work is told at once
  if (options.xdp) {
    Status works = OwnXdp::attach(options.interface).status();
    if (!works.ok() && works.code() != Code::kTryAgain) return works;
  }
  std::unique_ptr<XdpAttacher> attacher;
  if (options.xdp) {  // before the socket's file is there, which a refusal would leave
    SLUICE_TRY(attacher, XdpAttacher::start(options.interface));
  }
  SLUICE_TRY(sockaddr_un address, broker_address(options.path));
  Descriptor fd = broker_socket();
  if (fd.value() < 0) return no_descriptor(errno);
  ::fcntl(fd.value(), F_SETFL, O_NONBLOCK);
  // No client passes a descriptor, which the broker would have to close: of a TCP socket that
  // lingers the last close sleeps. Accepted sockets inherit it. Older kernels lack it.
  const int none = 0;
  (void)::setsockopt(fd.value(), SOL_SOCKET, kPassRights, &none, sizeof(none));
  UnixSocketFile file;
  if (int error = file.bind(fd.value(), address, kRights); error != 0)
    return cannot_listen(options.path, error);
  Broker made(options, std::move(fd), std::move(file), std::move(attacher));
  if (::listen(made.fd(), kBacklog) != 0) return cannot_listen(options.path, errno);
  return made;
}

Broker::~Broker() = default;

bool Broker::listed(uid_t user) const {
  return user == 0 ||
         std::find(options_.users.begin(), options_.users.end(), user) != options_.users.end();
}

Result<Loan> Broker::lend(uid_t user, uint16_t port) {
  SLUICE_RETURN_IF_ERROR(lent_->may_lend(user, port));
  Result<PacketSocket> socket = open_packet_socket(options_.interface, port, true);
  for (int tries = 0; socket.ok() && lent_->of_another(user, socket->port) && tries < kTriesForPort;
       ++tries) {
    socket = open_packet_socket(options_.interface, 0, true);
  }
  if (!socket.ok()) return socket.status();
  if (lent_->of_another(user, socket->port))
    return broker_failed(Code::kTryAgain,
                         "no port is free that another user has not borrowed; ask for one "
                         "by its number");
  lent_->add(user, socket->port, socket->fd.value());
  Loan loan;
  loan.fds = {std::move(socket->fd), std::move(socket->claim)};
  loan.port = socket->port;
  return loan;
}

Status Broker::ask_for_xdp(Asker& asker) {
  if (!options_.xdp)
    return answer(asker, broker_failed(Code::kAccessDenied,
                                       "it lends no AF_XDP sockets; start it with --xdp, or use "
                                       "l2://" +
                                           options_.interface));
  // The last one may have ended a moment ago.
  if (xdp_ && hung_up(xdp_->asker.fd.value())) end_xdp();
  if (xdp_) return answer(asker, xdp_is_taken(options_.interface, xdp_->asker.process));
  xdp_.emplace(XdpBorrower{std::move(asker), nullptr});
  if (!attacher_->busy()) attacher_->attach();
  return Status();
}

// The card is done. Who waits has it, also if somebody asked for it who has gone since.
Status Broker::go_on_with_xdp() {
  attacher_->look();
  if (attacher_->busy()) return Status();
  auto made = attacher_->made();
  if (made && made->ok()) return begin_xdp(*std::move(*made));
  if (!xdp_ || (!made && xdp_->loan != nullptr)) return Status();
  if (!made) {
    attacher_->attach();
    return Status();
  }
  Status status = answer(xdp_->asker, made->status());
  xdp_.reset();
  return status;
}

Status Broker::begin_xdp(std::unique_ptr<OwnXdp> own) {
  const uid_t user = xdp_ ? xdp_->asker.user : 0;
  auto loan = std::make_unique<LentXdp>(std::move(own), user, *lent_);
  if (!xdp_) {
    attacher_->detach(std::move(loan));
    return Status();
  }
  Result<Loan> first = loan->first();
  xdp_->loan = std::move(loan);
  Status status = answer(xdp_->asker, first);
  if (!first.ok()) end_xdp();
  return status;
}

// The card is not waited for.
void Broker::end_xdp() {
  if (xdp_->loan != nullptr) {
    xdp_->loan->end();
    attacher_->detach(std::move(xdp_->loan));
  }
  xdp_.reset();
}

Status Broker::serve(Asker& asker) {
  Result<BrokerRequest> request = receive_request(asker.fd.value(), options_.interface);
  if (!request.ok()) return answer(asker, request.status());
  if (request->what == Ask::kXdp) return ask_for_xdp(asker);
  if (request->what == Ask::kPacketSocket) return answer(asker, lend(asker.user, request->port));
  return answer(asker, broker_failed(Code::kCorrupt, "no request that it understands"));
}

// One ask for each look at all clients.
Status Broker::serve_xdp_borrower() {
  Asker& asker = xdp_->asker;
  if (hung_up(asker.fd.value())) {
    end_xdp();
    return Status();
  }
  if (xdp_->loan == nullptr) return Status();
  Result<BrokerRequest> request = receive_request(asker.fd.value(), options_.interface);
  Result<Loan> loan = request.ok() ? xdp_->loan->serve(*request) : Result<Loan>(request.status());
  const bool ends = loan.code() == Code::kCorrupt;
  Status status = answer(asker, loan);
  if (ends) end_xdp();
  return status;
}

Status Broker::answer(const Asker& asker, const Result<Loan>& loan) {
  (loan.ok() ? lent : refused).add();
  const bool heard = send_answer(asker.fd.value(), loan);
  // A borrower that asks and does not read has left an ask without its answer.
  if (!heard) ::shutdown(asker.fd.value(), SHUT_RDWR);
  if (loan.ok() || told_.size() >= kMostTold || !told_.insert({asker.user, loan.code()}).second)
    return Status();
  return loan.status();
}

// Ends the oldest client of the user who has most.
void Broker::make_room() {
  std::map<uid_t, size_t> of_user;
  for (const Asker& asker : askers_) ++of_user[asker.user];
  auto greedy = std::max_element(of_user.begin(), of_user.end(),
                                 [](const auto& a, const auto& b) { return a.second < b.second; });
  askers_.erase(std::find_if(askers_.begin(), askers_.end(),
                             [&](const Asker& asker) { return asker.user == greedy->first; }));
  silent.add();
}

Status Broker::let_in() {
  Descriptor peer(::accept4(listener_.value(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (peer.value() < 0) {
    // No descriptor is left: those that wait give theirs, or somebody else does.
    if ((errno == EMFILE || errno == ENFILE) && !askers_.empty())
      make_room();
    else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
      ::poll(nullptr, 0, kOutOfDescriptorsMs);
    return Status();
  }
  ucred user{};
  socklen_t length = sizeof(user);
  bool known = ::getsockopt(peer.value(), SOL_SOCKET, SO_PEERCRED, &user, &length) == 0;
  Asker asker{.fd = std::move(peer),
              .user = known ? user.uid : static_cast<uid_t>(-1),
              .process = user.pid,
              .expires = after(now(), kAskerLimit)};
  // Before a word of his is read.
  if (!known || !listed(user.uid))
    return answer(asker, broker_failed(Code::kAccessDenied,
                                       "it lends to root and to those named by --uid, not to " +
                                           std::to_string(user.uid)));
  rlimit limit{};
  const rlim_t own = kOwnDescriptors + (options_.xdp ? LentXdp::kDescriptors : 0);
  const bool scarce =
      ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && askers_.size() + own >= limit.rlim_cur;
  if (askers_.size() >= kMostAskers || (scarce && !askers_.empty())) make_room();
  askers_.push_back(std::move(asker));
  return Status();
}

Status Broker::serve_one() {
  std::vector<pollfd> ready;
  for (const Asker& asker : askers_) ready.push_back({asker.fd.value(), POLLIN, 0});
  // It may ask when it has the loan.
  const short asks = xdp_ && xdp_->loan != nullptr ? POLLIN : 0;
  ready.push_back({xdp_ ? xdp_->asker.fd.value() : -1, asks, 0});
  ready.push_back({attacher_ != nullptr ? attacher_->fd() : -1, POLLIN, 0});
  ready.push_back({listener_.value(), POLLIN, 0});
  // A late client is sent away within a second of its limit.
  if (::poll(ready.data(), ready.size(), askers_.empty() ? -1 : kLookMs) < 0) return Status();
  Status first;
  auto keep = [&](Status status) {
    if (first.ok()) first = std::move(status);
  };
  const Instant t = now();
  const size_t borrower = askers_.size();
  if (ready[borrower].revents != 0) keep(serve_xdp_borrower());
  if (ready[borrower + 1].revents != 0) keep(go_on_with_xdp());
  for (size_t i = askers_.size(); i-- > 0;) {
    if (ready[i].revents != 0) {
      keep(serve(askers_[i]));
    } else if (askers_[i].expires > t) {
      continue;
    } else {
      silent.add();
    }
    askers_.erase(askers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (ready.back().revents != 0) keep(let_in());
  return first;
}

}  // namespace sluice::l2
