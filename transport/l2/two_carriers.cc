#include <sluice/l2/two_carriers.h>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/two_carriers";
// In a window's number: of datagrams. SLP's own leave it free: a place below 64, and a generation
// from bit 16 on.
constexpr uint32_t kOfDatagrams = 1u << 15;

}  // namespace

TwoCarriers::TwoCarriers(std::unique_ptr<Connection> frames)
    : frames_(std::move(frames)), place_(std::make_shared<Place>(this)), of_datagrams_(*this) {}

void TwoCarriers::join(std::unique_ptr<Connection> datagrams) {
  datagrams_ = std::move(datagrams);
  awaits_ = false;
  datagrams_->set_link(link);
  if (stopped_) datagrams_->stop();
  if (left_) return datagrams_->leave();
  if (client_ != nullptr) datagrams_->set_client(&of_datagrams_);
}

void TwoCarriers::set_link(proto::DirectLink* to) {
  link = to;
  frames_->set_link(to);
  if (datagrams_ != nullptr) datagrams_->set_link(to);
}

void TwoCarriers::set_client(proto::DirectClient* client) {
  client_ = client;
  frames_->set_client(client);
  if (datagrams_ != nullptr) datagrams_->set_client(&of_datagrams_);
}

size_t TwoCarriers::turn(Instant now) {
  size_t work = frames_->turn(now);
  if (datagrams_ != nullptr && !left_) work += datagrams_->turn(now);
  for (Connection* one : {frames_.get(), datagrams_.get()}) {
    if (failed_ || one == nullptr || !one->failed()) continue;
    failed_ = true;
    failure_ = one->failure();
  }
  return work;
}

bool TwoCarriers::has_news() const {
  bool broken = frames_->failed() || (datagrams_ != nullptr && datagrams_->failed());
  return broken || frames_->has_news() || (datagrams_ != nullptr && datagrams_->has_news());
}

Result<Connection*> TwoCarriers::owner_of(wire::Segment& window) {
  if ((window.extent & kOfDatagrams) == 0) return frames_.get();
  window.extent &= ~kOfDatagrams;
  if (datagrams_ == nullptr && !awaits_)
    return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                  "the peer names a window of a second session that it never began");
  early_ = early_ || datagrams_ == nullptr;
  return datagrams_.get();
}

Result<bool> TwoCarriers::read(const wire::Segment& peer, std::span<const MutableBytes> into,
                               uint64_t cookie) {
  wire::Segment window = peer;
  SLUICE_TRY(Connection * owner, owner_of(window));
  if (owner == nullptr) return false;
  return owner->read(window, into, cookie);
}

Result<bool> TwoCarriers::write(std::span<const ConstBytes> from, const wire::Segment& peer,
                                uint64_t cookie, const uint32_t* notice) {
  wire::Segment window = peer;
  SLUICE_TRY(Connection * owner, owner_of(window));
  if (owner == nullptr) return false;
  return owner->write(from, window, cookie, notice);
}

bool TwoCarriers::became_writable() {
  bool frames = frames_->became_writable(),
       datagrams = datagrams_ != nullptr && datagrams_->became_writable();
  bool joined = early_ && (datagrams_ != nullptr || !awaits_);
  early_ = early_ && !joined;
  return frames || datagrams || joined;
}

void TwoCarriers::cancel_moves(uint64_t cookie) {
  frames_->cancel_moves(cookie);
  if (datagrams_ != nullptr) datagrams_->cancel_moves(cookie);
}

Result<WindowId> TwoCarriers::open_window(std::byte* data, uint64_t length, Right rights,
                                          uint64_t cookie, wire::Segment& out) {
  if (datagrams_ == nullptr) return frames_->open_window(data, length, rights, cookie, out);
  SLUICE_TRY(WindowId window, datagrams_->open_window(data, length, rights, cookie, out));
  out.extent |= kOfDatagrams;
  return window | kOfDatagrams;
}

void TwoCarriers::close_window(WindowId window, bool tell) {
  if ((window & kOfDatagrams) == 0) return frames_->close_window(window, tell);
  if (datagrams_ != nullptr) datagrams_->close_window(window & ~kOfDatagrams, tell);
}

void TwoCarriers::leave() {
  left_ = true;
  frames_->leave();
  if (datagrams_ != nullptr) datagrams_->leave();
}

bool TwoCarriers::drained() const {
  return frames_->drained() && (datagrams_ == nullptr || datagrams_->drained());
}

void TwoCarriers::stop() {
  stopped_ = true;
  frames_->stop();
  if (datagrams_ != nullptr) datagrams_->stop();
}

}  // namespace sluice::l2
