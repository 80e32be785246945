#include <sluice/proto/direct_link.h>

#include <utility>

#include <sluice/proto/whole_message.h>

namespace sluice::proto {
namespace {

constexpr const char* kOrigin = "proto/direct_link";

// What a message costs with its frame and its answer, which the link cannot time: with 1 us, a
// flood of wants kept half of the thread (docs/performance.md, "Beside an attack").
constexpr Duration kMessageTime = std::chrono::microseconds(4);

}  // namespace

DirectLink::DirectLink(Lingering& lingering, std::unique_ptr<DirectConnection> connection,
                       const LinkTraits& traits)
    : lingering_(lingering),
      connection_(std::move(connection)),
      traits_(traits),
      local_name_(connection_->local_name()),
      peer_name_(connection_->peer_name()) {
  connection_->set_link(this);
}

void DirectLink::set_client(LinkClient* session, DeviceClient* transfer) {
  client_ = session;
  transfer_ = transfer;
  connection_->set_client(this);
}

size_t DirectLink::poll(Instant now) {
  if (closed() || down_) return 0;
  size_t work = connection_->turn(now);
  if (closed() || down_) return work;
  if (connection_->failed()) {
    go_down(now);
    return work + 1;
  }
  if (connection_->became_writable()) {
    client_->writable(now);
    ++work;
  }
  return work;
}

void DirectLink::go_down(Instant now) {
  down_ = true;
  connection_->stop();
  const Status why = connection_->failure();
  client_->link_down(why, now);
}

void DirectLink::on_message(ConstBytes message, Instant now) {
  if (down_) return;
  Status status = hand_on(*client_, message, now);
  if (!status.ok() && !closed()) connection_->fail(std::move(status));
  idle_talk_.count();
  if (idle_talk_.due() && !closed() && !down_)
    idle_talk_.look(*client_, idle_talk_.messages() * kMessageTime, now);
}

bool DirectLink::takes_messages(Instant now) {
  return down_ || closed() || !idle_talk_.rests(*client_, now);
}

void DirectLink::on_notice(uint32_t notice, Instant now) {
  Status status = down_ ? Status() : transfer_->arrived(notice, now);
  if (!status.ok() && !closed()) connection_->fail(std::move(status));
}

void DirectLink::on_moved(uint64_t cookie, uint64_t length, Instant now) {
  if (!down_) transfer_->transfer_done(cookie, length, Status(), now);
}

void DirectLink::on_refused(uint64_t cookie, uint64_t length, const Status& why, Instant now) {
  if (!down_) transfer_->transfer_done(cookie, length, why, now);
}

void DirectLink::on_window_closed(uint64_t cookie, Instant now) {
  if (!down_) transfer_->window_closed(cookie, now);
}

bool DirectLink::send(ConstBytes header, std::span<const ConstBytes> payload) {
  return closed() || connection_->send(header, payload);
}

Result<WindowId> DirectLink::open_window(std::byte* data, uint64_t length, Right rights,
                                         uint64_t cookie, bool, wire::Segment& out) {
  if (closed())
    return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the connection has ended");
  return connection_->open_window(data, length, rights, cookie, out);
}

void DirectLink::close_window(WindowId window) {
  if (!closed()) connection_->close_window(window, true);
}

Status DirectLink::revoke_window(WindowId window) {
  if (!closed()) connection_->close_window(window, false);
  return Status();
}

Result<bool> DirectLink::read(const wire::Segment& peer, std::span<const MutableBytes> into,
                              uint64_t cookie) {
  if (closed()) return true;
  return connection_->read(peer, into, cookie);
}

Result<bool> DirectLink::write(std::span<const ConstBytes> from, const wire::Segment& peer,
                               uint64_t cookie, const uint32_t* notice) {
  if (closed()) return true;
  return connection_->write(from, peer, cookie, notice);
}

bool DirectLink::cancel_moves(uint64_t cookie) {
  if (!closed()) connection_->cancel_moves(cookie);
  return true;
}

bool DirectLink::stop() {
  down_ = true;
  if (!closed()) connection_->stop();
  return true;
}

// The connection may be the one that is calling us: it goes when its owner finds it idle.
void DirectLink::close() {
  if (closed()) return;
  connection_->set_link(nullptr);
  lingering_.linger(std::move(connection_));
}

}  // namespace sluice::proto
