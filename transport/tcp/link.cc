#include <sluice/tcp/link.h>

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <limits>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>

namespace sluice::tcp {
namespace {

constexpr const char* kOrigin = "tcp/link";

// Pieces written by one call. A round of the session queues fewer.
constexpr size_t kPiecesPerWrite = 64;

// Up to here a message is gathered by copying.
constexpr size_t kSmallMessage = 512;

// What the kernel tells us once each time it changes. One registration for life: no call
// to epoll_ctl() between connect and close.
constexpr uint32_t kEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

Counter frames_corrupt("tcp.frames_corrupt");
Counter settled_bytes("tcp.settled_bytes_copied");
Counter links_unplugged("tcp.links_unplugged");
Counter writes_blocked("tcp.writes_blocked");

iovec to_iovec(ConstBytes bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }

// send() of one run costs the kernel less than sendmsg() of several (about 60 ns).
ssize_t write_small(int fd, ConstBytes header, std::span<const ConstBytes> payload, size_t total) {
  if (payload.empty()) return ::send(fd, header.data(), total, MSG_DONTWAIT | MSG_NOSIGNAL);
  std::array<std::byte, kSmallMessage> bytes;
  std::byte* at = std::copy(header.begin(), header.end(), bytes.data());
  for (const ConstBytes& part : payload) at = std::copy(part.begin(), part.end(), at);
  return ::send(fd, bytes.data(), total, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// Writes the first pieces, if the message has more than one call takes.
ssize_t write_message(int fd, ConstBytes header, std::span<const ConstBytes> payload) {
  std::array<iovec, kPiecesPerWrite> pieces;
  size_t count = 0;
  pieces[count++] = to_iovec(header);
  for (size_t i = 0; i < payload.size() && count < pieces.size(); ++i)
    pieces[count++] = to_iovec(payload[i]);
  return write_some(fd, std::span(pieces).first(count));
}

// By the peer, and not by a machine that is gone.
bool was_reset(int os_error) { return os_error == EPIPE || os_error == ECONNRESET; }

Status broken_status(int os_error, const std::string& peer) {
  if (os_error == ETIMEDOUT || os_error == EHOSTUNREACH || os_error == ENETUNREACH) {
    return Status(
        Code::kUnreachable, Scope::kEndpoint, kOrigin,
        "the machine of " + peer + " does not answer; check its cable, its power and the route",
        os_error);
  }
  return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                "the connection to " + peer +
                    " was reset: its process ended, or it closed while we were sending; connect "
                    "again",
                os_error);
}

}  // namespace

const LinkTraits& link_traits() {
  static const LinkTraits traits = [] {
    LinkTraits t;
    t.properties = {.path = Path::kTcp, .capabilities = {}, .copies_per_fetch = 2};
    t.inline_bytes = 16u << 10;
    t.data_bytes = 1u << 20;
    t.credit_grows = true;
    t.sends_at_once = true;  // what the socket does not take is on the group's list
    t.inline_out = {.user = 1, .kernel = 1};
    t.inline_in = {.user = 1, .kernel = 1};
    t.bulk_out = {.user = 0, .kernel = 1};
    t.bulk_in = {.user = 0, .kernel = 1};
    return t;
  }();
  return traits;
}

Status TcpLink::watch() { return group_->context().watch(fd_.value(), kEvents, this); }

bool TcpLink::send(ConstBytes header, std::span<const ConstBytes> payload) {
  // What is sent on a broken connection is lost like what was sent just before.
  if (!usable() || broken_ != 0) return true;
  if (header[0] == static_cast<std::byte>(wire::MessageType::kBye)) [[unlikely]]
    end_further();
  if (queue_ != nullptr && !queue_->empty()) {
    if (queue_->append(header, payload)) {
      ++sent_;
      group_->add_todo(this);
      return true;
    }
    want_room_ = true;
    return false;
  }
  ++sent_;
  size_t total = header.size();
  for (const ConstBytes& part : payload) total += part.size();
  ssize_t sent = total <= kSmallMessage ? write_small(fd_.value(), header, payload, total)
                                        : write_message(fd_.value(), header, payload);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    note_broken(errno);
    return true;
  }
  group_->await_answer(this);
  if constexpr (kFaultPoints) {
    if (header[0] == static_cast<std::byte>(wire::MessageType::kBye)) fault_point("tcp.bye_sent");
  }
  size_t taken = sent > 0 ? static_cast<size_t>(sent) : 0;
  if (taken == total) [[likely]]
    return true;
  queue_rest(header, payload, taken);
  return true;
}

// The socket took a part, or a message of very many pieces is only begun.
void TcpLink::queue_rest(ConstBytes header, std::span<const ConstBytes> payload, size_t taken) {
  if (queue_ == nullptr) queue_ = group_->take_queue();
  (void)queue_->append(header, payload, taken);  // an empty queue has room for any message
  writes_blocked.add();
  if (taken > 0) fault_point("tcp.header_partly_sent");
  // Not known to be full: the next round tries again, and EPOLLOUT follows if it is.
  group_->add_todo(this);
}

bool TcpLink::push_by(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie,
                      bool lendable) {
  // As with send(): link_down() follows and gives the payload back.
  if (!usable() || broken_ != 0) return true;
  if (further_ != nullptr && !ending_) return push_further(header, payload, cookie, lendable);
  if (!enqueue(header, payload, cookie, lendable)) return false;
  for (const ConstBytes& part : payload) count_bulk(part.size());
  return true;
}

bool TcpLink::enqueue(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie,
                      bool lendable) {
  if (queue_ == nullptr) queue_ = group_->take_queue();
  if (!queue_->push(header, payload, cookie, lendable)) {
    want_room_ = true;
    return false;
  }
  group_->add_todo(this);
  return true;
}

void TcpLink::settle(uint64_t cookie) {
  if (queue_ != nullptr) settled_bytes.add(queue_->settle(cookie));
  for_each_further([cookie](TcpLink& stream) { stream.settle(cookie); });
}

bool TcpLink::has_unsent() const {
  bool any = queue_ != nullptr && !queue_->empty();
  for_each_further([&any](const TcpLink& stream) { any = any || stream.has_unsent(); });
  return any;
}

void TcpLink::flush() {
  for_each_further([](TcpLink& stream) { stream.flush_own(); });
  flush_own();
}

void TcpLink::flush_own() {
  if (queue_ == nullptr || blocked_ || !usable()) return;
  write_out(group_->bytes_per_write(this));
  if (want_room_ || (queue_ != nullptr && queue_->has_pushed())) group_->add_todo(this);
}

void TcpLink::write_out(size_t most) {
  std::array<iovec, kPiecesPerWrite> pieces;
  while (queue_ != nullptr && !queue_->empty() && broken_ == 0) {
    if (most == 0) return group_->add_todo(this);
    if (lending_ != Lending::kOff && may_lend()) [[unlikely]] {
      if (!write_lending(most)) return;
      continue;
    }
    size_t given = most;
    size_t count = shorten(std::span(pieces).first(queue_->gather(pieces)), given);
    ssize_t sent = write_some(fd_.value(), std::span(pieces).first(count));
    if (sent < 0 && errno != EAGAIN) return note_broken(errno);
    if (sent > 0) queue_->consume(static_cast<size_t>(sent));
    group_->await_answer(this);
    if (sent < static_cast<ssize_t>(given)) return note_blocked();
    most -= given;
  }
  return_queue_if_empty();
}

void TcpLink::note_blocked() {
  blocked_ = true;
  writes_blocked.add();
  fault_point(queue_->inside_payload() ? "tcp.data_partly_sent" : "tcp.header_partly_sent");
}

void TcpLink::return_queue_if_empty() {
  if (queue_ != nullptr && queue_->empty() && !queue_->has_pushed())
    group_->return_queue(std::move(queue_));
  if (ending_) end_writing_if_empty();
}

// Upcalls about what has left. The client may send, push or close from within.
void TcpLink::report(Instant now) {
  report_pushed(now);
  if (!usable()) return;
  return_queue_if_empty();
  if (want_room_ && (queue_ == nullptr || queue_->half_empty())) {
    want_room_ = false;
    client_->writable(now);
  }
}

void TcpLink::run(Instant now) {
  if (!usable()) return;
  if (!collect(now)) return;
  if (!blocked_) write_out(group_->bytes_per_write(this));
  report(now);
  if (usable() && (readable_ || unparsed_ || broken_ != 0)) {
    if (cut_in_ == group_->turn()) return group_->add_todo(this);  // it has had its time
    receive(now);
  }
  // What has arrived before the break was read, and nobody closed us for it.
  if (!usable() || broken_ == 0 || readable_ || unparsed_ || held_) return;
  if (first_ != nullptr) return stream_broken();
  if (stream_broke_ && !overdue_ && was_reset(broken_)) return;  // check_patience() goes on
  end_of_stream(broken_, now);
}

size_t TcpLink::poll(Instant now) {
  if (!usable()) return 0;
  return collect(now) ? receive(now) : 0;
}

void TcpLink::on_event(uint32_t epoll_events) noexcept {
  if (!usable()) return;
  Instant now = group_->context().now();
  // Where pages are out, an error alone is a notification. Every end of a connection hangs up, too.
  const uint32_t ends =
      loans_ == nullptr ? EPOLLRDHUP | EPOLLHUP | EPOLLERR : EPOLLRDHUP | EPOLLHUP;
  if ((epoll_events & ends) != 0) peer_ended_ = true;
  if (!collect(now)) return;
  if ((epoll_events & EPOLLOUT) != 0 && blocked_) {
    blocked_ = false;
    write_out(group_->bytes_per_write(this));
    report(now);
  }
  bool in = (epoll_events & ~static_cast<uint32_t>(EPOLLOUT)) != 0;
  if (usable() && in && receive(now) > 0 && usable()) group_->make_hot(this);
}

bool TcpLink::check_answered(Instant now) {
  if (!usable()) return false;
  if (held_ || (stream_broke_ && !overdue_ && was_reset(broken_))) {
    check_patience(now);
    return true;
  }
  switch (answered(fd_.value())) {
    case Answered::kAll: return false;
    case Answered::kWaiting: return true;
    case Answered::kUnplugged: break;
  }
  links_unplugged.add();
  fail(broken_status(ETIMEDOUT, peer_name_), now);
  return false;
}

void TcpLink::note_broken(int os_error) {
  broken_ = os_error;
  readable_ = true;
  peer_ended_ = true;
  group_->add_todo(this);
}

void TcpLink::end_of_stream(int os_error, Instant now) {
  const bool whole = data_left_ == 0 && block_ == nullptr;
  if (first_ != nullptr && os_error == 0 && broken_ == 0 && whole) return read_out();
  if (first_ != nullptr) {
    broken_ = os_error != 0 ? os_error : ECONNRESET;
    return stream_broken();
  }
  if (!further_read_out() && (os_error == 0 || was_reset(os_error))) {
    if (os_error != 0) broken_ = os_error;
    return hold(now);
  }
  if (os_error != 0) return fail(broken_status(os_error, peer_name_), now);
  bool cut = data_left_ > 0 || block_ != nullptr;
  fail(
      Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
             peer_name_ +
                 (cut ? " closed the connection in the middle of a message; connect again"
                      : " closed the connection: it ended, or closed its endpoint; connect again")),
      now);
}

void TcpLink::corrupt(const Status& why, Instant now) {
  if (first_ != nullptr) return first_->corrupt(why, now);
  frames_corrupt.add();
  // Told to the peer where that does not cut into a frame.
  if (queue_ == nullptr) {
    std::array<std::byte, wire::kMaxHeaderBytes> bye;
    size_t length = wire::encode(wire::Bye{.code = Code::kCorrupt}, bye);
    (void)send_all_now(fd_.value(), bye.data(), length);
  }
  fail(why, now);
}

void TcpLink::fail(const Status& why, Instant now) {
  if (!usable()) return;
  if (first_ != nullptr) return first_->fail(why, now);
  // Payload that left before the end is reported; the rest is no longer read.
  report_pushed(now);
  for_each_further([now](TcpLink& stream) { stream.report_pushed(now); });
  if (!usable()) return;
  take_down();
  for_each_further([](TcpLink& stream) { stream.take_down(); });
  client_->link_down(why, now);
}

void TcpLink::report_pushed(Instant now) {
  Pushed pushed;
  while (usable() && queue_ != nullptr && queue_->take_pushed(pushed))
    transfer_->pushed(pushed.cookie, pushed.length, now);
  if (loans_ != nullptr) report_returned(now);
}

// No event comes, nothing is written, and no payload is read any more.
void TcpLink::take_down() {
  if (!usable()) return;
  down_ = true;
  if (queue_ != nullptr) group_->return_queue(std::move(queue_));
  group_->context().unwatch(fd_.value(), this);
  group_->forget(this);
}

void TcpLink::close() {
  if (closed_) return;
  lending_ = Lending::kOff;
  if (!down_) {
    if (!blocked_) write_out(std::numeric_limits<size_t>::max());
    group_->context().unwatch(fd_.value(), this);
    group_->forget(this);
  }
  closed_ = true;
  close_further();
  if (queue_ != nullptr) group_->return_queue(std::move(queue_));
  if (!receiving_) return_block();
  end_socket();
}

}  // namespace sluice::tcp
