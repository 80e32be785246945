#include <sluice/l2/hot_ports.h>

#include <algorithm>

#include <sluice/l2/port.h>

namespace sluice::l2 {
namespace {

// Looks in a row that found nothing: about a millisecond of spinning. Afterwards epoll is
// asked, which a spin does every 20 us.
constexpr uint32_t kFruitlessLooks = 4000;

}  // namespace

void HotPorts::add(Port& port) noexcept {
  auto end = hot_.begin() + static_cast<ptrdiff_t>(count_);
  auto found = std::find_if(hot_.begin(), end, [&](const Hot& hot) { return hot.port == &port; });
  if (found == end && count_ < kMost) {
    hot_[count_++] = {.port = &port};
    return;
  }
  // In the place of the one that has been quiet for longest.
  if (found == end) found = std::max_element(hot_.begin(), hot_.end(), [](const Hot& a, const Hot& b) { return a.fruitless < b.fruitless; });
  *found = {.port = &port};
}

void HotPorts::remove(const Port& port) noexcept {
  for (size_t i = 0; i < count_; ++i) {
    if (hot_[i].port == &port) hot_[i] = hot_[--count_];
  }
}

size_t HotPorts::receive(ReceiveRoom& room, Instant& now) {
  size_t work = 0;
  for (size_t i = 0; i < count_;) {
    // What comes may make other ports hot, in this one's place.
    Port* port = hot_[i].port;
    size_t frames = port->receive(room, now);
    work += frames;
    bool still = i < count_ && hot_[i].port == port;
    if (still && frames > 0) hot_[i].fruitless = 0;
    if (still && frames == 0 && ++hot_[i].fruitless >= kFruitlessLooks) {
      hot_[i] = hot_[--count_];
      continue;
    }
    ++i;
  }
  return work;
}

}  // namespace sluice::l2
