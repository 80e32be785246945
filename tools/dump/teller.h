// From packets to what is printed of them, with what went before remembered. Knows no file
// and no socket.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/dump/frame.h"
#include "tools/dump/packet.h"

namespace sluice::tools::dump {

struct Wishes {
  Carriers carriers{.ethertype = SLP_ETHERTYPE};
  std::optional<uint16_t> port;  // SLP's, at either end
  uint64_t count = 0;            // frames; 0: all
  bool json = false;
  bool payload = false;
};

struct Sums {
  uint64_t packets = 0;
  uint64_t frames = 0;       // told
  uint64_t damaged = 0;      // of these
  uint64_t cut = 0;          // of these: the capture has less than there was
  uint64_t fragments = 0;    // IP fragments to the UDP port that was asked for
  uint64_t untellable = 0;   // packets cut before it could be told whose they are
  uint64_t other_links = 0;  // packets of link types that are not understood
};

class Teller {
 public:
  explicit Teller(const Wishes& wishes) : wishes_(wishes) {}
  // A line for each frame that is wanted; none: the packet has none.
  std::vector<std::string> take(const Captured& packet);
  bool full() const { return wishes_.count > 0 && sums_.frames >= wishes_.count; }
  const Sums& sums() const { return sums_; }

 private:
  bool open(const Captured& packet, Envelope& envelope);
  bool wanted(const Frame& frame, std::span<const uint8_t> bytes) const;

  Wishes wishes_;
  Streams streams_;
  Sums sums_;
};

// "12 frames, 1 damaged, ..."
std::string to_string(const Sums& sums);

}  // namespace sluice::tools::dump
