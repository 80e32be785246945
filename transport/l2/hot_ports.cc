#include <sluice/l2/hot_ports.h>

#include <algorithm>

#include <sluice/l2/port.h>

namespace sluice::l2 {
namespace {

// Looks in a row that found nothing: about a millisecond of spinning. Afterwards epoll is
// asked, which a spin does every 20 us.
constexpr uint32_t kFruitlessLooks = 4000;
// So many that found something without a sleep between them: it will be looked at again.
constexpr uint32_t kFindsToUnwatch = 64;

}  // namespace

void HotPorts::add(Port& port) noexcept {
  auto end = hot_.begin() + static_cast<ptrdiff_t>(count_);
  auto found = std::find_if(hot_.begin(), end, [&](const Hot& hot) { return hot.port == &port; });
  if (found == end && count_ < kMost) {
    hot_[count_++] = {.port = &port};
    return;
  }
  // In the place of the one that has been quiet for longest.
  if (found == end) {
    found = std::max_element(hot_.begin(), hot_.end(),
                             [](const Hot& a, const Hot& b) { return a.fruitless < b.fruitless; });
    if (!found->port->watch().ok()) return;  // of the new one epoll tells
    *found = {.port = &port};
  }
  found->fruitless = 0;
}

void HotPorts::remove(const Port& port) noexcept {
  for (size_t i = 0; i < count_; ++i) {
    if (hot_[i].port == &port) hot_[i] = hot_[--count_];
  }
}

// False: epoll takes it not, so it stays.
bool HotPorts::cool(size_t i) noexcept {
  hot_[i].fruitless = 0;
  if (!hot_[i].port->watch().ok()) return false;
  hot_[i] = hot_[--count_];
  return true;
}

size_t HotPorts::receive(ReceiveRoom& room, Instant& now) {
  size_t work = 0;
  proto::TurnBudget budget;
  if (room.owner != nullptr) work += room.owner->resume(room, now, budget);
  for (size_t i = 0; i < count_ && room.owner == nullptr;) {
    // What comes may make other ports hot, in this one's place.
    Port* port = hot_[i].port;
    size_t frames = port->receive(room, now, budget);
    work += frames;
    if (room.owner != nullptr) {
      std::rotate(hot_.begin(), hot_.begin() + static_cast<ptrdiff_t>(std::min(i + 1, count_)),
                  hot_.begin() + static_cast<ptrdiff_t>(count_));
      break;
    }
    bool still = i < count_ && hot_[i].port == port;
    if (still && frames > 0) {
      hot_[i].fruitless = 0;
      if (++hot_[i].found == kFindsToUnwatch) port->unwatch();
    }
    if (still && frames == 0 && ++hot_[i].fruitless >= kFruitlessLooks && cool(i)) continue;
    ++i;
  }
  return work;
}

bool HotPorts::watch_all() noexcept {
  for (size_t i = 0; i < count_; ++i) {
    hot_[i].found = 0;
    if (!hot_[i].port->watch().ok()) return false;
  }
  return true;
}

}  // namespace sluice::l2
