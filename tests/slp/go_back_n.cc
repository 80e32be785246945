#include <algorithm>
#include <queue>
#include <utility>

#include "tests/slp/incast.h"

namespace sluice::slp {
namespace {

// SLP's own, so that the two carry alike.
constexpr uint64_t kHeaderBytes = 56, kOverheadBytes = 38;

struct Back {
  double at;      // when the sender hears it
  uint64_t from;  // where it begins again
  bool operator<(const Back& other) const { return at > other.at; }
};

}  // namespace

double go_back_n(const Setting& setting) {
  uint64_t payload = setting.mtu - kHeaderBytes,
           total = (setting.bytes_each + payload - 1) / payload;
  double frame_time = static_cast<double>(setting.mtu + kOverheadBytes) / setting.bytes_per_ns,
         way = 2 * static_cast<double>(setting.delay);
  std::priority_queue<Back> backs;
  uint64_t chance = 1, next = 0, expected = 0;
  double now = 0, last = 0;
  bool told = false;  // of this pass of the sender's: the hole has been told
  while (expected < total) {
    // At the end of a pass the last frames' loss shows by silence alone.
    if (next == total && backs.empty()) backs.push({now + 2 * way + frame_time, expected});
    if (next == total) now = std::max(now, backs.top().at);
    if (!backs.empty() && backs.top().at <= now) {
      next = backs.top().from;
      backs = {};
      told = false;
    }
    now += frame_time;
    uint64_t number = next++;
    chance = chance * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    if ((chance >> 33) % 1000 < setting.lost_per_mille) continue;
    last = now + way;
    if (number == expected)
      ++expected;
    else if (number > expected && !std::exchange(told, true))
      backs.push({last + way, expected});
  }
  return static_cast<double>(setting.bytes_each) / (last * setting.bytes_per_ns);
}

}  // namespace sluice::slp
