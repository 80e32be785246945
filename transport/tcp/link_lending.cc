// Payload of a TcpLink that the kernel sends out of the tensors' pages: when, and until when.
#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/tcp/link.h>
#include <sluice/tcp/route.h>

namespace sluice::tcp {
namespace {

constexpr size_t kPiecesPerCall = 64;

Counter refused("tcp.zerocopy_refused");
Counter no_room("tcp.zerocopy_no_room");
Counter turned_off("tcp.zerocopy_turned_off");

// Not this way: a kernel without it, memory that cannot be pinned.
bool cannot_lend(int os_error) {
  return os_error == EOPNOTSUPP || os_error == EINVAL || os_error == EPERM || os_error == EFAULT;
}

}  // namespace

bool TcpLink::may_lend() {
  if (lending_ == Lending::kOff || queue_->borrowed_bytes() < group_->lending_.least_bytes)
    return false;
  if (lending_ == Lending::kUndecided) start_lending();
  return lending_ == Lending::kOn && loans_->room();
}

// Asked once, with the first bulk.
void TcpLink::start_lending() {
  lending_ = Lending::kOff;
  const LendingRules& rules = group_->lending_;
  if (!rules.wanted) return;
  if (!rules.anywhere && (peer_is_local(fd_.value()) || !card_takes_pieces(fd_.value()))) return;
  const int yes = 1;
  if (::setsockopt(fd_.value(), SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof(yes)) != 0)
    return refused.add();
  loans_ = std::make_unique<PageLoans>();
  lending_ = Lending::kOn;
}

// One call, or two where the pages cannot be lent. False: the socket takes no more for now.
bool TcpLink::write_lending(size_t& most) {
  const size_t least = group_->lending_.least_bytes;
  std::array<iovec, kPiecesPerCall> room;
  Gathered gathered = queue_->gather_apart(room, least);
  size_t given = most;
  const std::span<iovec> pieces =
      std::span(room).first(shorten(std::span(room).first(gathered.count), given));
  group_->await_answer(this);
  if (gathered.lendable && given >= least) {
    const ssize_t lent = loans_->send(fd_.value(), pieces);
    if (lent > 0) {
      // Less than all does not mean that there is no room: EPOLLOUT need not follow. The next call
      // says it.
      queue_->consume(static_cast<size_t>(lent), loans_.get());
      most -= static_cast<size_t>(lent);
      return true;
    }
    if (errno == EAGAIN) return note_blocked(), false;
    if (errno != ENOBUFS && !cannot_lend(errno)) return note_broken(errno), false;
    if (errno == ENOBUFS && loans_->any_out()) {
      no_room.add();
    } else {
      refused.add();
      lending_ = Lending::kOff;
    }
  }
  // The payload that was kept apart follows at once.
  const ssize_t sent = write_some(fd_.value(), pieces, gathered.cut ? MSG_MORE : 0);
  if (sent < 0 && errno != EAGAIN) return note_broken(errno), false;
  if (sent > 0) queue_->consume(static_cast<size_t>(sent));
  if (sent < static_cast<ssize_t>(given)) return note_blocked(), false;
  most -= given;
  return true;
}

uint64_t TcpLink::uncopied_out(uint64_t bytes) {
  const uint64_t uncopied = std::min(uncopied_, bytes);
  uncopied_ -= uncopied;
  return uncopied;
}

bool TcpLink::collect_loans(Instant now) {
  if (!loans_->any_out() || loans_->collect(fd_.value()) == 0) return true;
  if (lending_ == Lending::kOn && group_->lending_.stops_if_copied && loans_->always_copied()) {
    lending_ = Lending::kOff;
    turned_off.add();
  }
  report_returned(now);
  return usable();
}

void TcpLink::report_returned(Instant now) {
  PageLoans::Returned back;
  while (usable() && loans_->take_returned(back)) {
    (first_ != nullptr ? first_ : this)->uncopied_ = back.copied ? 0 : back.length;
    transfer_->pushed(back.cookie, back.length, now);
  }
}

bool TcpLink::any_lent() const {
  bool any = loans_ != nullptr && loans_->any_out();
  for_each_further([&any](const TcpLink& stream) { any = any || stream.any_lent(); });
  return any;
}

void TcpLink::quarantine(StorageRef memory) {
  if (!any_lent()) return;
  if (remains_ == nullptr) remains_ = std::make_unique<SocketRemains>();
  remains_->memory.push_back(std::move(memory));
}

// The last of close(). Of a further stream before that of the first one.
void TcpLink::end_socket() {
  if (loans_ != nullptr && loans_->any_out()) loans_->collect(fd_.value());
  if (loans_ != nullptr && loans_->any_out()) {
    ::shutdown(fd_.value(), SHUT_WR);
    std::unique_ptr<SocketRemains>& remains = (first_ != nullptr ? first_ : this)->remains_;
    if (remains == nullptr) remains = std::make_unique<SocketRemains>();
    remains->sockets.push_back({std::move(fd_), std::move(loans_)});
  } else {
    close_gently(std::move(fd_));
  }
  if (remains_ != nullptr && !remains_->sockets.empty())
    group_->remains_.add(std::move(remains_), group_->context().now());
  remains_.reset();
}

}  // namespace sluice::tcp
