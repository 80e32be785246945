#include <sluice/l2/carrier/lent_xdp.h>

#include <errno.h>
#include <fcntl.h>

namespace sluice::l2 {
namespace {

constexpr int kTriesForPort = 64;
// Pairs that a loan may have in the place of others: the borrower can keep those, and the memory
// that the kernel has for them.
constexpr size_t kMostReplaced = kMostXdpPorts;

Result<Descriptor> copy_of(int fd) {
  Descriptor copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (copy.value() < 0) return no_descriptor(errno);
  return copy;
}

}  // namespace

LentXdp::~LentXdp() {
  own_.reset();  // before the sockets go
}

void LentXdp::end() {
  for (Pair& pair : pairs_) close(pair);
  // Until the card is done, the interface is this process's again.
  (void)announce_xdp(own_->claim());
}

Result<Loan> LentXdp::first() {
  Loan loan;
  loan.number = own_->place().queue;
  loan.fds[0] = own_->take_base();
  SLUICE_TRY(loan.fds[1], copy_of(own_->claim()));
  return loan;
}

Result<Loan> LentXdp::serve(const BrokerRequest& request) {
  switch (request.what) {
    case Ask::kXdpSockets: return make_sockets(request.number);
    case Ask::kXdpOpen: return open(request.number, request.port);
    case Ask::kXdpClose:
      for (Pair& pair : pairs_)
        if (pair.port != 0 && pair.port == request.port) close(pair);
      return Loan();
    default: return broker_failed(Code::kCorrupt, "no request that it understands");
  }
}

// The borrower's last try may have failed after this: it then asks for the same number.
Result<Loan> LentXdp::make_sockets(uint32_t number) {
  if (number > pairs_.size() || (number < pairs_.size() && pairs_[number].port != 0))
    return broker_failed(Code::kInvalidArgument, "that is no number for sockets");
  if (number == kMostXdpPorts)
    return broker_failed(Code::kTryAgain, std::to_string(kMostXdpPorts) +
                                              " ports of l2://xdp/ are lent; close connections");
  const bool anew = number < pairs_.size();
  if (anew && replaced_ == kMostReplaced)
    return broker_failed(Code::kTryAgain,
                         "sockets were asked for anew " + std::to_string(kMostReplaced) +
                             " times; close all ports of l2://xdp/ there, and connect again");
  SLUICE_TRY(XdpSockets made, own_->sockets(number));
  Loan loan;
  loan.number = number;
  Pair pair;
  SLUICE_TRY(pair.receive, copy_of(made.receive.value()));
  loan.fds = {std::move(made.receive), std::move(made.send)};
  if (anew)
    ++replaced_;
  else
    pairs_.emplace_back();
  pairs_[number] = std::move(pair);
  return loan;
}

Result<Loan> LentXdp::open(uint32_t number, uint16_t port) {
  if (number >= pairs_.size() || pairs_[number].port != 0)
    return broker_failed(Code::kInvalidArgument, "those sockets are not there, or have a port");
  SLUICE_RETURN_IF_ERROR(ports_->may_lend(user_, port));
  Pair& pair = pairs_[number];
  Loan loan;
  Result<PortClaim> claimed = own_->open(number, pair.receive.value(), port);
  for (int tries = 0; claimed.ok() && ports_->of_another(user_, claimed->port); ++tries) {
    own_->close(claimed->port);
    if (tries == kTriesForPort)
      return broker_failed(Code::kTryAgain,
                           "no port is free that another user has not borrowed; ask for one by its "
                           "number");
    claimed = own_->open(number, pair.receive.value(), 0);
  }
  if (!claimed.ok()) return claimed.status();
  Result<Descriptor> kept = copy_of(claimed->claim.value());
  if (!kept.ok()) {
    own_->close(claimed->port);
    return kept.status();
  }
  pair.claim = std::move(*kept);
  pair.port = loan.port = claimed->port;
  loan.fds[0] = std::move(claimed->claim);
  ports_->hold(user_, pair.port);
  return loan;
}

void LentXdp::close(Pair& pair) {
  if (pair.port == 0) return;
  own_->close(pair.port);
  ports_->let_go(pair.port);
  pair.claim.reset();
  pair.port = 0;
}

}  // namespace sluice::l2
