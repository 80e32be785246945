#include "tests/l2/relay.h"

#include <utility>

namespace sluice::test {
namespace {

// Frames of one way in one turn.
constexpr int kFramesPerTurn = 128;

}  // namespace

Relay::Relay(const std::string& one, const std::string& other, uint64_t seed)
    : ways_{Way(one), Way(other)}, seed_(seed), state_(seed) {}

// SplitMix64 (Steele, Lea, Flood, 2014).
uint64_t Relay::random() {
  uint64_t x = state_ += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

size_t Relay::turn(Instant now) {
  size_t work = 0;
  for (int w : {0, 1}) {
    Way& way = ways_[w];
    RawWire& out = ways_[1 - w].in;
    for (int i = 0; i < kFramesPerTurn; ++i, ++work) {
      std::span<const uint8_t> frame = way.in.receive();
      if (frame.empty()) break;
      pass(out, way, frame, now);
      work += let_go(out, way, now, true);
    }
    work += let_go(out, way, now, false);
  }
  return work;
}

void Relay::pass(RawWire& out, Way& way, std::span<const uint8_t> frame, Instant now) {
  if (harm_.largest != 0 && frame.size() > harm_.largest) return (void)++done_.too_large;
  if (chance(harm_.drop)) return (void)++done_.dropped;
  if (chance(harm_.corrupt)) {
    ++done_.corrupted;
    damaged_.assign(frame.begin(), frame.end());
    for (uint64_t bits = 1 + random() % 3; bits > 0; --bits) {
      uint64_t bit = random() % (8 * damaged_.size());
      damaged_[bit / 8] = static_cast<uint8_t>(damaged_[bit / 8] ^ 1u << bit % 8);
    }
    frame = damaged_;
  }
  bool twice = chance(harm_.duplicate);
  done_.duplicated += twice ? 1 : 0;
  for (int copy = twice ? 2 : 1; copy > 0; --copy) {
    if (chance(harm_.hold)) {
      ++done_.held;
      way.held.push_back({{frame.begin(), frame.end()},
                          1 + static_cast<uint32_t>(random() % kMostOvertaking),
                          now});
    } else {
      ++done_.passed;
      (void)out.send(frame);
    }
  }
}

size_t Relay::let_go(RawWire& out, Way& way, Instant now, bool overtaken) {
  size_t gone = 0;
  for (size_t i = 0; i < way.held.size();) {
    Held& held = way.held[i];
    if (overtaken && held.behind > 0) --held.behind;
    if (held.behind > 0 && now - held.since < kLongestHold) {
      ++i;
      continue;
    }
    ++gone;
    ++done_.passed;
    (void)out.send(held.frame);
    way.held.erase(way.held.begin() + static_cast<long>(i));
  }
  return gone;
}

Relay::Done Relay::done() {
  done_.missed = ways_[0].in.missed() + ways_[1].in.missed();
  return done_;
}

std::string Relay::story() {
  Done d = done();
  auto part = [](uint64_t count, const char* what) {
    return ", " + std::to_string(count) + " " + what;
  };
  return "seed " + std::to_string(seed_) + ": " + std::to_string(d.passed) + " passed" +
         part(d.dropped, "dropped") + part(d.duplicated, "duplicated") + part(d.held, "held back") +
         part(d.corrupted, "damaged") + part(d.too_large, "too large") +
         part(d.missed, "missed by the relay");
}

}  // namespace sluice::test
