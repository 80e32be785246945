// Peers that were met by a path that does not find them by token itself, and whose greeting over
// TCP has not said so yet.
#ifndef SLUICE_SELECT_UNPAIRED_H_
#define SLUICE_SELECT_UNPAIRED_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <sluice/base/clock.h>
#include <sluice/spi/path_choice.h>

namespace sluice::select {

class Unpaired {
 public:
  // Of one path at one listener. With more, the oldest goes, whose connect() has returned: so there
  // is room for twice as many as may wait for accept() (128).
  static constexpr size_t kMost = 256;

  void add(std::unique_ptr<MetPeer> peer, Instant now) {
    if (all_.size() >= kMost) all_.erase(all_.begin());
    all_.push_back({std::move(peer), after(now, kPairingLimit)});
  }
  // The one that was met with this token, or null.
  std::unique_ptr<MetPeer> take(const wire::Uuid& token) {
    auto found = std::find_if(all_.begin(), all_.end(),
                              [&](const Entry& e) { return e.peer->token() == token; });
    if (found == all_.end()) return nullptr;
    std::unique_ptr<MetPeer> peer = std::move(found->peer);
    all_.erase(found);
    return peer;
  }
  void expire(Instant now) {
    put_off_missed_limits(all_, now);
    std::erase_if(all_, [now](const Entry& e) { return e.expires <= now; });
  }

 private:
  struct Entry {
    std::unique_ptr<MetPeer> peer;
    Instant expires;
  };
  std::vector<Entry> all_;  // the oldest first
};

}  // namespace sluice::select

#endif  // SLUICE_SELECT_UNPAIRED_H_
