#include <sluice/l2/kmod_link.h>

#include <array>
#include <utility>

#include <sluice/proto/whole_message.h>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/kmod_link";
constexpr uint32_t kInlineBytes = 4096;
// Pinned as long as it is under way: two of them fill what a session has under way for one
// operation, and fit the 8 MiB of locked memory that a user has by default.
constexpr uint64_t kChunkBytes = 4 << 20;

}  // namespace

// Copies as /proc/net/sluice counts them, in the kernel: of a message user, stream, frame, stream, queue,
// user (three at each end), and ours from there to its place; of memory pages to frame, frame to pages.
proto::LinkTraits kmod_traits() {
  proto::LinkTraits traits;
  traits.properties.path = Path::kModule;
  traits.properties.copies_per_fetch = 2;
  // The target's kernel answers.
  traits.properties.capabilities = {Capability::kPassiveTarget, Capability::kRefusalsTold, Capability::kKeysOfConnection, Capability::kReadRights};
  traits.direct = true;
  traits.sends_at_once = true;
  traits.inline_bytes = kInlineBytes;
  traits.chunk_bytes = kChunkBytes;
  traits.inline_out = {.user = 0, .kernel = 3};
  traits.inline_in = {.user = 1, .kernel = 3};
  traits.bulk_out = traits.bulk_in = {.user = 0, .kernel = 1};
  return traits;
}

KmodLink::KmodLink(KmodRetired& retired, std::unique_ptr<KmodConnection> connection)
    : retired_(retired), connection_(std::move(connection)), traits_(kmod_traits()), local_name_(connection_->local_name()), peer_name_(connection_->peer_name()) {
  connection_->link = this;
}

void KmodLink::set_client(proto::LinkClient* client) {
  client_ = client;
  connection_->set_client(this);
}

size_t KmodLink::poll(bool hot, Instant now) {
  if (closed() || down_) return 0;
  size_t work = connection_->turn(hot, now);
  if (closed() || down_) return work;
  if (connection_->failed()) {
    down_ = true;
    connection_->stop();
    const Status why = connection_->failure();
    client_->link_down(why, now);
    return work + 1;
  }
  if (connection_->became_writable()) {
    client_->writable(now);
    ++work;
  }
  return work;
}

void KmodLink::on_message(proto::ConstBytes message, Instant now) {
  if (down_) return;
  Status status = proto::hand_on(*client_, message, now);
  if (!status.ok() && !closed()) connection_->fail(std::move(status));
}

void KmodLink::on_notice(uint32_t notice, Instant now) {
  Status status = down_ ? Status() : client_->arrived(notice, now);
  if (!status.ok() && !closed()) connection_->fail(std::move(status));
}

void KmodLink::on_moved(uint64_t cookie, uint64_t length, Instant now) {
  if (!down_) client_->moved(cookie, length, Status(), now);
}

void KmodLink::on_refused(uint64_t cookie, uint64_t length, const Status& why, Instant now) {
  if (!down_) client_->moved(cookie, length, why, now);
}

void KmodLink::on_window_closed(uint64_t cookie, Instant now) {
  if (!down_) client_->window_closed(cookie, now);
}

bool KmodLink::send(proto::ConstBytes header, std::span<const proto::ConstBytes> payload) { return closed() || connection_->send(header, payload); }

Result<proto::ImportedRun> KmodLink::import_run(const wire::Segment&) {
  return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, "memory to be mapped on a path that maps none");
}

Result<proto::WindowId> KmodLink::open_window(std::byte* data, uint64_t length, Right rights, uint64_t cookie, bool, wire::Segment& out) {
  if (closed()) return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the connection has ended");
  return connection_->open_window(data, length, rights, cookie, out);
}

void KmodLink::close_window(proto::WindowId window) {
  if (!closed()) connection_->close_window(window, true);
}

Status KmodLink::revoke_window(proto::WindowId window) {
  if (!closed()) connection_->close_window(window, false);
  return Status();
}

Result<bool> KmodLink::read(const wire::Segment& peer, std::span<const proto::MutableBytes> into, uint64_t cookie) {
  if (closed()) return true;
  return connection_->move(true, into, peer, cookie, nullptr);
}

Result<bool> KmodLink::write(std::span<const proto::ConstBytes> from, const wire::Segment& peer, uint64_t cookie, const uint32_t* notice) {
  if (closed()) return true;
  std::array<proto::MutableBytes, proto::kMaxPlaces> pieces;
  for (size_t i = 0; i < from.size(); ++i) pieces[i] = {const_cast<std::byte*>(from[i].data()), from[i].size()};
  return connection_->move(false, {pieces.data(), from.size()}, peer, cookie, notice);
}

bool KmodLink::cancel_moves(uint64_t cookie) {
  if (!closed()) connection_->cancel_moves(cookie);
  return true;
}

bool KmodLink::stop() {
  down_ = true;
  if (!closed()) connection_->stop();
  return true;
}

// The connection may be the one that is calling us: it goes when its owner finds it idle.
void KmodLink::close() {
  if (closed()) return;
  connection_->leave();
  connection_->link = nullptr;
  retired_.retire(std::move(connection_));
}

}  // namespace sluice::l2
