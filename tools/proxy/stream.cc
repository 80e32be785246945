#include "tools/proxy/stream.h"

#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <functional>

#include <sluice/runtime/context_core.h>

namespace sluice::tools::proxy {
namespace {

// Of one socket in one turn, each way, before others get theirs.
constexpr uint64_t kBytesPerTurn = uint64_t{1} << 20;
constexpr size_t kPartsPerWrite = 16;
// Small data is joined up to this.
constexpr size_t kJoinedBytes = size_t{64} << 10;
// Before the data in a buffer, a cache line: its end is the header's place if the data is small.
constexpr size_t kHeadroom = 64;

// A service whose queue of connections is full is asked again after kDialAgain, for kDialTime.
constexpr Duration kDialAgain = std::chrono::milliseconds(10);
constexpr Duration kDialTime = std::chrono::seconds(5);
// So long the other program may take nothing of what was said before a reset.
constexpr Duration kLastWords = std::chrono::seconds(2);

Status lie(const char* what) {
  return Status(Code::kCorrupt, Scope::kEndpoint, "tools/proxy", what);
}

}  // namespace

Stream::Stream(Carrier& carrier, uint64_t id, const Windows& windows)
    : carrier_(carrier), id_(id), windows_(windows) {
  Totals& totals = carrier_.totals();
  ++totals.connections;
  totals.most_open = std::max(totals.most_open, ++totals.open);
}

Stream::~Stream() { stop(true); }

void Stream::take(Descriptor socket) {
  socket_ = std::move(socket);
  watch_what_is_needed();
}

void Stream::dial(std::span<const SocketAddress> addresses) {
  addresses_ = addresses;
  dial_by_ = after(carrier_.context().now(), kDialTime);
  try_address();
}

void Stream::try_address() {
  connecting_ = true;
  for (; !addresses_.empty(); addresses_ = addresses_.subspan(1)) {
    Result<Descriptor> socket = begin_connect(addresses_[0]);
    if (socket.ok()) {
      socket_ = std::move(*socket);
      return watch_what_is_needed();
    }
    unreached_ = socket.status();
    if (unreached_ == Code::kTryAgain && carrier_.context().now() < dial_by_)
      return carrier_.call_after(id_, kDialAgain);
  }
  carrier_.unreachable(unreached_);
  end(ResetReason::kRefused, true);
}

void Stream::on_time() {
  if (over_) return;
  if (connecting_ && !socket_) return try_address();
  if (reset_) return end(ResetReason::kSocket, false);
  // The other program may wait for us to read before it does.
  const bool stuck = !reading() && acknowledged_ == acknowledged_before_;
  if (stuck) return end(ResetReason::kSocket, true);
  acknowledged_before_ = acknowledged_;
  carrier_.call_after(id_, kLastWords);
}

void Stream::finish_connect() {
  unreached_ = connect_outcome(socket_.value(), addresses_[0]);
  if (unreached_.ok()) {
    connecting_ = false;
    return write_socket();
  }
  if (watched_ != 0) ContextCore::of(carrier_.context()).unwatch(socket_.value(), this);
  watched_ = 0;
  close_hard(socket_);  // of one that reached itself the port is free again
  addresses_ = addresses_.subspan(1);
  try_address();
}

void Stream::on_event(uint32_t events) noexcept {
  if (over_) return;
  if (connecting_) return finish_connect();
  const bool failed = (events & (EPOLLERR | EPOLLHUP)) != 0;
  if ((events & EPOLLIN) != 0 || failed) read_socket();
  if (!over_ && ((events & EPOLLOUT) != 0 || (failed && blocked_))) {
    blocked_ = false;
    write_socket();
  }
  if (!over_) watch_what_is_needed();
}

bool Stream::reading() const {
  return read_open_ && !connecting_ && !over_ && !waits_to_read_ &&
         sent_ - acknowledged_ < windows_.smaller;
}

void Stream::read_socket() {
  uint64_t budget = kBytesPerTurn;
  while (reading() && budget > 0) {
    if (!carrier_.may_read()) {
      waits_to_read_ = true;
      return carrier_.wait_to_read(id_);
    }
    if (!read_piece(budget)) return;
  }
}

// False: no more for now.
bool Stream::read_piece(uint64_t& budget) {
  int queued = 0;
  (void)::ioctl(socket_.value(), FIONREAD, &queued);
  const uint64_t room = std::min<uint64_t>(windows_.smaller - (sent_ - acknowledged_), kMostPiece);
  const size_t wanted = std::clamp<uint64_t>(static_cast<uint64_t>(std::max(queued, 1)), 1, room);
  Result<Buffer> buffer =
      carrier_.context().allocate({static_cast<int64_t>(kHeadroom + wanted)}, uint8);
  if (!buffer.ok()) {
    waits_to_read_ = true;
    carrier_.wait_to_read(id_);
    return false;
  }
  const ssize_t n = ::recv(socket_.value(), buffer->data() + kHeadroom, wanted, MSG_DONTWAIT);
  if (n < 0) {
    if (errno == EINTR) return true;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (!write_failed_) end(ResetReason::kSocket, true);
  }
  if (n <= 0) {
    if (over_) return false;
    read_open_ = false;
    // Nobody takes what was cut off for whole: after a failed write a reset follows.
    if (!write_failed_) carrier_.send({.kind = FrameKind::kEnd, .stream = id_});
    finish_if_done();
    return false;
  }
  const auto bytes = static_cast<uint64_t>(n);
  sent_ += bytes;
  budget -= std::min(budget, bytes);
  carrier_.totals().bytes_out += bytes;
  Tensor whole = std::move(*buffer).freeze();
  if (bytes <= kMostInline) {
    carrier_.send_data(
        id_, std::move(whole.slice_bytes(kHeadroom - kFrameBytes, kFrameBytes + bytes)).value());
  } else {
    ++pieces_out_;
    carrier_.announce(id_, std::move(whole.slice_bytes(kHeadroom, bytes)).value());
  }
  return true;
}

void Stream::piece_released() {
  --pieces_out_;
  finish_if_done();
}

void Stream::resume() {
  waits_to_read_ = false;
  if (over_) return;
  read_socket();
  if (!over_) watch_what_is_needed();
}

// Bytes that the peer sends, against what it was granted.
Status Stream::account(uint64_t bytes) {
  if (end_received_) return lie("data after its END");
  received_ += bytes;
  if (received_ - granted_ > windows_.own) return lie("more data than it was given credit for");
  return Status();
}

Status Stream::on_credit(uint64_t total) {
  if (total < acknowledged_ || total > sent_) return lie("credit for what was not sent");
  acknowledged_ = total;
  watch_what_is_needed();
  return Status();
}

// What is here already still goes to the program, as the kernel would have it, if it reads soon.
void Stream::on_reset(ResetReason reason) {
  chunks_.erase(std::find_if_not(chunks_.begin(), chunks_.end(), std::mem_fn(&Chunk::ready)),
                chunks_.end());
  if (chunks_.empty() || connecting_) return end(reason, false);
  reset_ = true;
  read_open_ = false;
  carrier_.call_after(id_, kLastWords);
}

Status Stream::on_frame(const Frame& frame, std::span<const std::byte> data) {
  if (reset_) return Status();  // nothing follows it but lies
  switch (frame.kind) {
    case FrameKind::kData: {
      SLUICE_RETURN_IF_ERROR(account(frame.length));
      if (write_failed_) return Status();
      const auto* text = reinterpret_cast<const char*>(data.data());
      if (chunks_.empty() || chunks_.back().piece != 0 ||
          chunks_.back().length + data.size() > kJoinedBytes)
        chunks_.emplace_back();
      Chunk& last = chunks_.back();
      last.bytes.append(text, data.size());
      last.length += data.size();
      break;
    }
    case FrameKind::kPiece:
      SLUICE_RETURN_IF_ERROR(account(frame.length));
      if (write_failed_) return Status();
      chunks_.push_back({.piece = frame.value, .length = frame.length, .tensor = {}, .bytes = {}});
      carrier_.ask(id_, frame.value);
      return Status();
    case FrameKind::kCredit: return on_credit(frame.value);
    case FrameKind::kEnd:
      if (end_received_) return lie("a second END");
      end_received_ = true;
      break;
    case FrameKind::kReset: on_reset(static_cast<ResetReason>(frame.detail)); break;
    default: return lie("a frame that belongs to no stream");
  }
  if (!blocked_ && !connecting_ && !over_) write_socket();
  if (!over_) watch_what_is_needed();
  return Status();
}

bool Stream::deliver(uint64_t piece, Tensor tensor) {
  if (over_) return true;
  for (Chunk& chunk : chunks_) {
    if (chunk.piece != piece) continue;
    if (tensor.size_bytes() != chunk.length || !tensor.descriptor().is_compact()) return false;
    chunk.tensor = std::move(tensor);
    break;
  }
  if (!blocked_ && !connecting_) write_socket();
  if (!over_) watch_what_is_needed();
  return true;
}

size_t Stream::gather(iovec* parts, size_t most) const {
  size_t count = 0;
  for (const Chunk& chunk : chunks_) {
    if (count == most || !chunk.ready()) break;
    parts[count++] = {.iov_base = const_cast<std::byte*>(chunk.data() + chunk.done),
                      .iov_len = chunk.length - chunk.done};
  }
  return count;
}

void Stream::written(size_t bytes) {
  written_ += bytes;
  carrier_.totals().bytes_in += bytes;
  while (bytes > 0) {
    Chunk& first = chunks_.front();
    const size_t step = std::min(bytes, first.length - first.done);
    first.done += step;
    bytes -= step;
    if (first.done == first.length) chunks_.pop_front();
  }
}

void Stream::write_socket() {
  uint64_t budget = kBytesPerTurn;
  while (write_open_ && budget > 0) {
    std::array<iovec, kPartsPerWrite> parts;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = gather(parts.data(), parts.size());
    if (message.msg_iovlen == 0) break;
    const ssize_t n = ::sendmsg(socket_.value(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EPIPE || errno == ECONNRESET) return stop_writing();
      if (errno != EAGAIN && errno != EWOULDBLOCK) return end(ResetReason::kSocket, true);
      blocked_ = true;
      break;
    }
    written(static_cast<size_t>(n));
    budget -= std::min(budget, static_cast<uint64_t>(n));
  }
  if (budget == 0) blocked_ = true;  // the socket's next event goes on
  if (reset_) {
    if (chunks_.empty()) end(ResetReason::kSocket, false);
    return;
  }
  if (written_ - granted_ >= windows_.smaller / 4) {
    granted_ = written_;
    carrier_.send({.kind = FrameKind::kCredit, .stream = id_, .value = granted_});
  }
  if (chunks_.empty() && end_received_ && write_open_) {
    write_open_ = false;
    ::shutdown(socket_.value(), SHUT_WR);
  }
  finish_if_done();
}

// The program has closed its end, and an answer that it sent before may lie in the socket unread:
// it goes to the peer before the reset.
void Stream::stop_writing() {
  if (reset_) return end(ResetReason::kSocket, false);
  write_failed_ = true;
  write_open_ = blocked_ = false;
  chunks_.clear();
  acknowledged_before_ = acknowledged_;
  carrier_.call_after(id_, kLastWords);
  finish_if_done();
}

void Stream::finish_if_done() {
  if (read_open_ || write_open_ || pieces_out_ > 0 || over_) return;
  if (write_failed_) return end(ResetReason::kSocket, true);
  stop(false);
  carrier_.over(id_);
}

void Stream::end(ResetReason reason, bool tell) {
  if (over_) return;
  ++carrier_.totals().reset;
  if (tell)
    carrier_.send(
        {.kind = FrameKind::kReset, .detail = static_cast<uint8_t>(reason), .stream = id_});
  stop(true);
  carrier_.over(id_);
}

void Stream::stop(bool hard) {
  if (over_) return;
  over_ = true;
  --carrier_.totals().open;
  if (watched_ != 0) ContextCore::of(carrier_.context()).unwatch(socket_.value(), this);
  watched_ = 0;
  hard ? close_hard(socket_) : socket_.reset();
  chunks_.clear();
}

// A socket that is not watched for anything is not watched at all: epoll would tell of a hang-up
// again and again.
void Stream::watch_what_is_needed() {
  if (over_ || !socket_) return;
  uint32_t wanted = reading() ? EPOLLIN : 0u;
  if (connecting_ || blocked_) wanted |= EPOLLOUT;
  if (wanted == watched_) return;
  ContextCore& context = ContextCore::of(carrier_.context());
  Status status;
  if (wanted == 0) {
    context.unwatch(socket_.value(), this);
  } else {
    status = watched_ == 0 ? context.watch(socket_.value(), wanted, this)
                           : context.rewatch(socket_.value(), wanted, this);
  }
  watched_ = wanted;
  if (status.ok()) return;
  watched_ = 0;
  end(ResetReason::kSocket, true);
}

}  // namespace sluice::tools::proxy
