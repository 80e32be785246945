// The few ports whose sockets are looked at in every turn; of the others epoll says when
// something has come. Of those that are busy while nobody sleeps it says nothing: an entry in an
// epoll set costs the kernel a call with interrupts off for each frame, at either end. Knows no
// frames.
#ifndef SLUICE_L2_HOT_PORTS_H_
#define SLUICE_L2_HOT_PORTS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include <sluice/base/clock.h>

namespace sluice::l2 {

class Port;
class ReceiveRoom;

class HotPorts {
 public:
  // Something has come there, or is about to.
  void add(Port& port) noexcept;
  void remove(const Port& port) noexcept;
  // Hands out what has come to them, while the turn has time; returns how many frames. If any:
  // `now` is when. Who was not looked at is the first in the next turn.
  size_t receive(ReceiveRoom& room, Instant& now);
  // Before the thread sleeps: epoll says of all when something comes. False: of one it cannot.
  bool watch_all() noexcept;

 private:
  // Each costs a system call in a turn in which nothing has come.
  static constexpr size_t kMost = 4;
  struct Hot {
    Port* port = nullptr;
    uint32_t fruitless = 0;  // polls in a row
    uint32_t found = 0;      // looks that found something, since the thread last slept
  };
  bool cool(size_t i) noexcept;
  std::array<Hot, kMost> hot_{};
  size_t count_ = 0;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_HOT_PORTS_H_
