#include <sluice/loopback/link.h>

#include <array>
#include <cstring>
#include <utility>

#include <sluice/base/fault_point.h>
#include <sluice/proto/whole_message.h>
#include <sluice/spi/eager.h>

namespace sluice::loopback {
namespace {

constexpr const char* kOrigin = "loopback/link";
// Queued for one side: as much as a shared-memory ring holds.
constexpr size_t kMostQueuedBytes = 128u << 10;
constexpr size_t kMessagesPerPoll = 32;

// What a view of the peer's memory holds on to: the wire, and with it the peer's arena; and the
// loans of a connection that has ended.
class WireHold final : public PeerMapping {
 public:
  WireHold(std::shared_ptr<Wire> wire, std::shared_ptr<Loans> loans)
      : wire_(std::move(wire)), loans_(std::move(loans)) {}
  void retain() noexcept override { references_.fetch_add(1, std::memory_order_relaxed); }
  void drop() noexcept override {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  std::shared_ptr<Wire> wire_;
  std::shared_ptr<Loans> loans_;
  std::atomic<uint32_t> references_{1};
};

}  // namespace

LinkTraits loopback_traits() {
  LinkTraits traits;
  traits.properties.path = Path::kLoopback;
  traits.properties.capabilities = {Capability::kViews, Capability::kZeroCopyFetch,
                                    Capability::kSealed};
  traits.sends_at_once = true;
  traits.inline_bytes = kEagerBytes;
  traits.inline_out = {.user = 1, .kernel = 0};
  traits.inline_in = {.user = 1, .kernel = 0};
  return traits;
}

void RungEnds::add(std::shared_ptr<Wire> wire, int side) {
  std::lock_guard lock(mutex_);
  ends_.emplace_back(std::move(wire), side);
  any_.store(true, std::memory_order_release);
}

void RungEnds::add_closed() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  any_.store(true, std::memory_order_release);
}

bool RungEnds::take(std::vector<End>& out) {
  std::lock_guard lock(mutex_);
  out.swap(ends_);
  any_.store(false, std::memory_order_relaxed);
  return std::exchange(closed_, false);
}

LoopbackLink::LoopbackLink(std::shared_ptr<RungEnds> rung, std::shared_ptr<Wire> wire, int side,
                           std::string name)
    : wire_(std::move(wire)), side_(side), name_(std::move(name)), traits_(loopback_traits()) {
  std::lock_guard lock(wire_->mutex);
  mine().rung = std::move(rung);
  mine().link = this;
}

// The bell only wakes the context if it sleeps.
void LoopbackLink::ring(const std::shared_ptr<Wire>& wire, Wire::Side& side) {
  if (side.rung != nullptr && !std::exchange(side.is_rung, true))
    side.rung->add(wire, &side == &wire->sides[0] ? 0 : 1);
  if (side.bell_posted || side.mailbox == nullptr) return;
  side.bell_posted = true;
  side.bell.open = [](Letter* letter) noexcept {
    auto* bell = static_cast<Wire::Bell*>(letter);
    std::shared_ptr<Wire> wire = std::move(bell->keep);
    std::lock_guard lock(wire->mutex);
    bell->side->bell_posted = false;
  };
  // The context is gone: no more bells for this side.
  side.bell.discard = [](Letter* letter) noexcept {
    std::shared_ptr<Wire> wire = std::move(static_cast<Wire::Bell*>(letter)->keep);
  };
  side.bell.side = &side;
  side.bell.keep = wire;
  side.mailbox->post(&side.bell);
}

bool LoopbackLink::send(ConstBytes header, std::span<const ConstBytes> payload) {
  if (closed_) return true;
  size_t total = header.size();
  for (ConstBytes part : payload) total += part.size();
  std::lock_guard lock(wire_->mutex);
  Wire::Side& to = theirs();
  if (to.closed) return true;
  if (to.arrived_bytes > 0 && to.arrived_bytes + total > kMostQueuedBytes) {
    to.was_full = true;
    blocked_ = true;
    return false;
  }
  std::vector<std::byte> message;
  message.reserve(total);
  message.insert(message.end(), header.begin(), header.end());
  for (ConstBytes part : payload) message.insert(message.end(), part.begin(), part.end());
  to.arrived_bytes += total;
  to.arrived.push_back(std::move(message));
  ring(wire_, to);
  return true;
}

bool LoopbackLink::due() const {
  if (closed_ || down_) return false;
  std::lock_guard lock(wire_->mutex);
  return !wire_->sides[side_].arrived.empty() || wire_->sides[1 - side_].closed;
}

size_t LoopbackLink::poll(Instant now) {
  if (closed_ || down_) return 0;
  size_t handled = 0;
  bool peer_closed = false;
  while (handled < kMessagesPerPoll && !closed_ && !down_) {
    std::vector<std::byte> message;
    {
      std::lock_guard lock(wire_->mutex);
      if (mine().arrived.empty()) {
        peer_closed = theirs().closed;
        break;
      }
      message = std::move(mine().arrived.front());
      mine().arrived.pop_front();
      mine().arrived_bytes -= message.size();
      if (mine().was_full && mine().arrived_bytes <= kMostQueuedBytes / 2) {
        mine().was_full = false;
        ring(wire_, theirs());
      }
    }
    ++handled;
    Status status = proto::hand_on(*client_, message, now);
    if (!status.ok()) {
      down_ = true;
      client_->link_down(status, now);
    }
  }
  if (peer_closed && !closed_ && !down_) {
    down_ = true;
    ++handled;
    client_->link_down(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                              "the other end was dropped; connect again"),
                       now);
  }
  if (blocked_ && !closed_ && !down_) {
    std::lock_guard lock(wire_->mutex);
    if (theirs().arrived_bytes > kMostQueuedBytes / 2) return handled;
    blocked_ = false;
  } else {
    return handled;
  }
  client_->writable(now);
  return handled + 1;
}

Result<bool> LoopbackLink::export_run(const std::byte* data, size_t length, wire::Segment& out) {
  std::optional<Arena::Place> place = mine().arena->locate(data, length);
  if (!place) return false;
  out = {.extent = place->first.id, .offset = place->extent_offset, .length = length};
  return true;
}

Result<ImportedRun> LoopbackLink::import_run(const wire::Segment& segment) {
  if (closed_)
    return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, "an offer on a closed connection");
  const std::shared_ptr<Arena>& arena = theirs().arena;
  std::optional<ExtentInfo> extent = arena->extent(segment.extent);
  if (!extent || segment.offset >= extent->length ||
      !arena->locate(arena->base() + extent->arena_offset + segment.offset, segment.length)) {
    return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                  "memory that is not in the peer's arena");
  }
  const std::byte* data = arena->base() + extent->arena_offset + segment.offset;
  return ImportedRun{.data = data, .mapping = new WireHold(wire_, theirs().loans)};
}

bool LoopbackLink::begin_copy(uint64_t withdrawals_seen) {
  mine().copying.store(true, std::memory_order_seq_cst);
  if (theirs().withdrawals.load(std::memory_order_seq_cst) == withdrawals_seen) return true;
  end_copy();
  return false;
}

void LoopbackLink::quarantine(StorageRef loan) {
  std::lock_guard lock(wire_->mutex);
  mine().loans->push_back(std::move(loan));
}

void LoopbackLink::close() {
  if (closed_) return;
  closed_ = true;
  // The handle of a closed endpoint holds neither the wire nor the loans in it.
  std::shared_ptr<Wire> wire = std::move(wire_);
  std::array<std::shared_ptr<Loans>, 2> over;  // freed without the lock
  std::lock_guard lock(wire->mutex);
  wire->sides[side_].closed = true;
  for (Wire::Side& side : wire->sides) {
    if (wire->sides[1 - side_].closed)
      over[static_cast<size_t>(&side - wire->sides)] = std::move(side.loans);
  }
  wire->sides[side_].link = nullptr;
  if (auto rung = std::move(wire->sides[side_].rung)) rung->add_closed();
  wire->sides[side_].arrived.clear();
  ring(wire, wire->sides[1 - side_]);
}

}  // namespace sluice::loopback
