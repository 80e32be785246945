#include <sluice/l2/link.h>

#include <utility>

#include <sluice/proto/whole_message.h>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/link";
constexpr uint32_t kInlineBytes = 4096;
// Of one transfer, which is cut into frames by what the network takes, and can be called back
// at any time: an operation on memory in one piece is one transfer.
constexpr uint64_t kChunkBytes = 1 << 30;

}  // namespace

proto::LinkTraits l2_traits(Path path, bool sealed) {
  proto::LinkTraits traits;
  traits.properties.path = path;
  // The sender's kernel, the receiver's kernel, and from the frame to its place.
  traits.properties.copies_per_fetch = sealed ? 5 : 3;
  traits.properties.capabilities = {Capability::kRefusalsTold, Capability::kKeysOfConnection, Capability::kReadRights};
  traits.direct = true;
  traits.sends_at_once = true;  // the provider sends what a turn has left in SLP's stream
  traits.inline_bytes = kInlineBytes;
  traits.chunk_bytes = kChunkBytes;
  // Encryption writes each byte once more, and so does decryption.
  uint8_t cipher = sealed ? 1 : 0;
  traits.inline_out = traits.inline_in = {.user = static_cast<uint8_t>(1 + cipher), .kernel = 1};
  traits.bulk_out = {.user = cipher, .kernel = 1};
  traits.bulk_in = {.user = static_cast<uint8_t>(1 + cipher), .kernel = 1};
  return traits;
}

L2Link::L2Link(Lingering& lingering, std::unique_ptr<Connection> connection)
    : lingering_(lingering),
      connection_(std::move(connection)),
      traits_(l2_traits(connection_->path(), connection_->place().secret != nullptr)),
      local_name_(connection_->local_name()),
      peer_name_(connection_->peer_name()) {
  connection_->link = this;
}

void L2Link::set_client(proto::LinkClient* client) {
  client_ = client;
  connection_->set_client(this);
}

size_t L2Link::poll(Instant now) {
  if (closed() || down_) return 0;
  size_t work = connection_->deliver(now);
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

void L2Link::go_down(Instant now) {
  down_ = true;
  connection_->stop();
  const Status why = connection_->failure();
  client_->link_down(why, now);
}

void L2Link::on_message(proto::ConstBytes message, Instant now) {
  if (down_) return;
  Status status = proto::hand_on(*client_, message, now);
  if (!status.ok() && !closed()) connection_->fail(std::move(status));
}

void L2Link::on_notice(uint32_t notice, Instant now) {
  Status status = down_ ? Status() : client_->arrived(notice, now);
  if (!status.ok() && !closed()) connection_->fail(std::move(status));
}

void L2Link::on_moved(uint64_t cookie, uint64_t length, Instant now) {
  if (!down_) client_->moved(cookie, length, Status(), now);
}

void L2Link::on_refused(uint64_t cookie, uint64_t length, const Status& why, Instant now) {
  if (!down_) client_->moved(cookie, length, why, now);
}

void L2Link::on_window_closed(uint64_t cookie, Instant now) {
  if (!down_) client_->window_closed(cookie, now);
}

bool L2Link::send(proto::ConstBytes header, std::span<const proto::ConstBytes> payload) {
  return closed() || connection_->send(header, payload);
}

Result<proto::ImportedRun> L2Link::import_run(const wire::Segment&) {
  return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, "memory to be mapped on a path that maps none");
}

Result<proto::WindowId> L2Link::open_window(std::byte* data, uint64_t length, Right rights, uint64_t cookie, bool, wire::Segment& out) {
  if (closed()) return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the connection has ended");
  return connection_->open_window(data, length, rights, cookie, out);
}

void L2Link::close_window(proto::WindowId window) {
  if (!closed()) connection_->close_window(window, true);
}

Status L2Link::revoke_window(proto::WindowId window) {
  if (!closed()) connection_->close_window(window, false);
  return Status();
}

Result<bool> L2Link::read(const wire::Segment& peer, std::span<const proto::MutableBytes> into, uint64_t cookie) {
  return closed() || connection_->read(peer, into, cookie);
}

Result<bool> L2Link::write(std::span<const proto::ConstBytes> from, const wire::Segment& peer, uint64_t cookie, const uint32_t* notice) {
  return closed() || connection_->write(from, peer, cookie, notice);
}

bool L2Link::cancel_moves(uint64_t cookie) {
  if (!closed()) connection_->cancel_moves(cookie);
  return true;
}

bool L2Link::stop() {
  down_ = true;
  if (!closed()) connection_->stop();
  return true;
}

// The connection may be the one that is calling us: it goes when its owner finds it idle.
void L2Link::close() {
  if (closed()) return;
  connection_->close_windows();  // grants end with the connection, not with its last message
  connection_->set_client(nullptr);
  connection_->link = nullptr;
  lingering_.linger(std::move(connection_));
}

}  // namespace sluice::l2
