// The queue pairs of one connection, and what of its traffic goes over which. Messages, what
// is small, grants and what uses them stay on the first. The bytes of a large message or fetch
// are spread: its memory is opened in as many windows as there are stripes, each on a queue
// pair of its own, and the window's address says which in its highest byte. That queue pair
// carries requests of the other end alone, so that a window opens at once and not behind bytes.
//
// A device orders what one queue pair does and nothing between two: who writes over several
// tells the peer only when all of them are done. Knows no session.
#ifndef SLUICE_VERBS_LANES_H_
#define SLUICE_VERBS_LANES_H_

#include <cstdint>
#include <deque>
#include <vector>

#include <sluice/verbs/queue_pair.h>

namespace sluice::verbs {

// Queue pairs that the bytes of one direction are spread over, at most.
inline constexpr uint32_t kMostStripes = 8;

class Lanes {
 public:
  // Stripe 0 is `first`, both ways; stripe i our requests' reaching[i - 1] and the peer's
  // reached[i - 1]. All outlive it. Requires: as many of both, kMostStripes - 1 at most.
  Lanes(QueuePair& first, std::vector<QueuePair*> reaching, std::vector<QueuePair*> reached);

  bool striped() const { return !reaching_.empty(); }
  // Those of `first` are not asked here.
  bool look() {
    bool some = false;
    for (QueuePair* lane : others_)
      some = some || lane->stopped() || lane->failed() || lane->look();
    return some;
  }
  // Hands on what moved, to the end of each write. A lane that failed fails `first`, too.
  size_t poll(proto::DirectClient& client, Instant now, int most);
  bool arm();
  void flush();
  bool all_retired() const;
  bool writable() const;
  void revoke_windows();
  void stop();
  bool stuck() const;

  // As QueuePair's.
  Result<WindowId> open_window(std::byte* data, uint64_t length, Right rights, uint64_t cookie,
                               bool whole, wire::Segment& out);
  void close_window(WindowId window);
  Status revoke_window(WindowId window);
  Result<bool> read(const wire::Segment& peer, std::span<const MutableBytes> into, uint64_t cookie);
  Result<bool> write(std::span<const ConstBytes> from, const wire::Segment& peer, uint64_t cookie,
                     const uint32_t* notice);

 private:
  // A write whose bytes are posted, and whose peer is told when they are in place.
  struct Held {
    uint32_t notice;
    uint64_t cookie, length;                    // of its last chunk
    std::array<uint64_t, kMostStripes> posted;  // at each of reaching_: what must be over before
  };
  // The windows of one operation, opened one after the other.
  struct Run {
    uint64_t cookie = 0;
    const std::byte* next = nullptr;
    uint64_t part = 0;
    uint32_t stripe = 0;
  };
  QueuePair* lane_of(wire::Segment& peer);
  uint64_t part_of_run(const std::byte* data, uint64_t length, uint64_t cookie);
  QueuePair& owner(WindowId& window);
  void hold(uint32_t notice, uint64_t cookie, uint64_t length);
  size_t tell();

  QueuePair& first_;
  std::vector<QueuePair*> reaching_, reached_;
  std::vector<QueuePair*> others_;  // both
  std::deque<Held> held_;
  Run run_;
  uint32_t turn_ = 0;  // of windows that every lane reaches
};

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_LANES_H_
