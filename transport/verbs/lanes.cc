#include <sluice/verbs/lanes.h>

#include <algorithm>
#include <utility>

#include <sluice/base/counters.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/lanes";
// In the highest byte of a window's address, where no address of a process has a bit: the
// stripe, or that every lane reaches it.
constexpr int kStripeShift = 56;
constexpr uint64_t kAddressMask = (uint64_t{1} << kStripeShift) - 1;
constexpr uint64_t kEveryStripe = 0xFF;
// In a WindowId, above the lane's own number (8192 at most, window_table.h).
constexpr int kWindowShift = 24;
// So that the windows of one operation do not share a page.
constexpr uint64_t kPartAlignment = 4096;
// The cookie of bytes that nobody waits for by themselves: what follows them counts for them.
// No operation has it.
constexpr uint64_t kNobody = 0;

Counter chunks_striped("verbs.chunks_striped");
Counter notices_held("verbs.notices_held");
Counter stripes_refused("verbs.stripes_refused");

}  // namespace

Lanes::Lanes(QueuePair& first, std::vector<QueuePair*> reaching, std::vector<QueuePair*> reached)
    : first_(first),
      reaching_(std::move(reaching)),
      reached_(std::move(reached)),
      others_(reaching_) {
  others_.insert(others_.end(), reached_.begin(), reached_.end());
}

size_t Lanes::poll(proto::DirectClient& client, Instant now, int most) {
  size_t work = 0;
  for (QueuePair* lane : others_) {
    work += lane->poll(client, now, most);
    if (lane->failed()) first_.fail(lane->failure());
  }
  return work + tell();
}

bool Lanes::arm() {
  bool quiet = true;
  for (QueuePair* lane : others_) {
    quiet = lane->arm() && !lane->failed() && quiet;
    if (lane->failed()) first_.fail(lane->failure());
  }
  return quiet;
}

void Lanes::flush() {
  for (QueuePair* lane : others_) (void)lane->flush();
}

bool Lanes::writable() const {
  return std::all_of(others_.begin(), others_.end(),
                     [](const QueuePair* lane) { return lane->room_for_transfer(false); });
}

void Lanes::revoke_windows() {
  for (QueuePair* lane : others_) lane->revoke_windows();
}

void Lanes::stop() {
  held_.clear();
  for (QueuePair* lane : others_) lane->stop();
}

bool Lanes::stuck() const {
  return std::any_of(others_.begin(), others_.end(),
                     [](const QueuePair* lane) { return lane->stuck(); });
}

// How much of [data, data + length) the next window of this operation takes.
uint64_t Lanes::part_of_run(const std::byte* data, uint64_t length, uint64_t cookie) {
  if (run_.cookie != cookie || run_.next != data) {
    const uint64_t stripes = reached_.size() + 1;
    const uint64_t part = (length + stripes - 1) / stripes;
    run_ = {.cookie = cookie,
            .next = data,
            .part = std::max((part + kPartAlignment - 1) / kPartAlignment * kPartAlignment,
                             first_.chunk_limit())};
  }
  return std::min(run_.part, length);
}

Result<WindowId> Lanes::open_window(std::byte* data, uint64_t length, Right rights, uint64_t cookie,
                                    bool whole, wire::Segment& out) {
  const bool spread =
      striped() && !whole &&
      (length > first_.chunk_limit() || (run_.cookie == cookie && run_.next == data));
  if (!spread || !first_.device().limits().windows) {
    Result<WindowId> opened = first_.open_window(data, length, rights, cookie, whole, out);
    if (spread && opened.ok() && first_.is_narrow(*opened))
      out.offset |= kEveryStripe << kStripeShift;
    return opened;
  }
  const uint64_t part = part_of_run(data, length, cookie);
  const uint32_t stripe = run_.stripe;
  QueuePair& lane = stripe == 0 ? first_ : *reached_[stripe - 1];
  Result<WindowId> opened = lane.open_window(data, part, rights, cookie, false, out);
  if (lane.failed()) first_.fail(lane.failure());
  if (!opened.ok()) return opened;
  run_.next = data + out.length;
  run_.stripe = static_cast<uint32_t>((stripe + 1) % (reached_.size() + 1));
  const uint64_t mark = lane.is_narrow(*opened) ? kEveryStripe : stripe;
  out.offset |= mark << kStripeShift;
  return *opened | stripe << kWindowShift;
}

QueuePair& Lanes::owner(WindowId& window) {
  const uint32_t stripe = window >> kWindowShift;
  window &= (1u << kWindowShift) - 1;
  return stripe == 0 ? first_ : *reached_[stripe - 1];
}

void Lanes::close_window(WindowId window) {
  QueuePair& lane = owner(window);
  lane.close_window(window);
}

Status Lanes::revoke_window(WindowId window) {
  QueuePair& lane = owner(window);
  return lane.revoke_window(window);
}

// The lane that reaches it, and the address without the mark. Null: the peer lies.
QueuePair* Lanes::lane_of(wire::Segment& peer) {
  if (!striped() || first_.failed()) return &first_;
  uint64_t stripe = peer.offset >> kStripeShift;
  peer.offset &= kAddressMask;
  if (stripe == kEveryStripe) stripe = turn_++ % (reaching_.size() + 1);
  if (stripe == 0) return &first_;
  if (stripe <= reaching_.size()) {
    chunks_striped.add();
    return reaching_[stripe - 1];
  }
  stripes_refused.add();
  first_.fail(Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                     "a window on queue pair " + std::to_string(stripe) +
                         " of a connection that has " + std::to_string(reaching_.size() + 1)));
  return nullptr;
}

Result<bool> Lanes::read(const wire::Segment& peer, std::span<const MutableBytes> into,
                         uint64_t cookie) {
  wire::Segment there = peer;
  QueuePair* lane = lane_of(there);
  return lane != nullptr ? lane->read(there, into, cookie) : Result<bool>(true);
}

Result<bool> Lanes::write(std::span<const ConstBytes> from, const wire::Segment& peer,
                          uint64_t cookie, const uint32_t* notice) {
  wire::Segment there = peer;
  QueuePair* lane = lane_of(there);
  if (lane == nullptr) return true;
  if (notice == nullptr || (lane == &first_ && all_retired()))
    return lane->write(from, there, cookie, notice);
  Result<bool> posted = lane->write(from, there, kNobody, nullptr);
  if (posted.ok() && *posted) hold(*notice, cookie, peer.length);
  return posted;
}

bool Lanes::all_retired() const {
  return std::all_of(reaching_.begin(), reaching_.end(),
                     [](const QueuePair* lane) { return lane->drained(); });
}

void Lanes::hold(uint32_t notice, uint64_t cookie, uint64_t length) {
  notices_held.add();
  Held& held =
      held_.emplace_back(Held{.notice = notice, .cookie = cookie, .length = length, .posted = {}});
  for (size_t i = 0; i < reaching_.size(); ++i) held.posted[i] = reaching_[i]->posted();
}

// A lane's requests are over in their order, and a write is over when the peer's device has
// answered it: what was posted before a notice was held is in place when as many are over.
// What goes over `first` itself is ordered there.
size_t Lanes::tell() {
  size_t told = 0;
  auto over = [&](const Held& held) {
    for (size_t i = 0; i < reaching_.size(); ++i) {
      if (reaching_[i]->retired() < held.posted[i]) return false;
    }
    return true;
  };
  while (!held_.empty() && over(held_.front()) &&
         first_.notify(held_.front().notice, held_.front().cookie, held_.front().length)) {
    held_.pop_front();
    ++told;
  }
  if (told > 0) (void)first_.flush();
  return told;
}

}  // namespace sluice::verbs
