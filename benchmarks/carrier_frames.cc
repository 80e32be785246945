// Question: what do frames cost over the packet ring, and over AF_XDP? The carriers that ship
// (transport/l2/carrier), both ends of the wire of benchmarks/wire.py in one thread, without
// sessions.
//
// --mode packet_trip, xdp_trip      one frame forth and one back: seconds of the round trip
//        packet_frames, xdp_frames  --under-way frames in one call, until all of them have come:
//                                   seconds of each frame, so that 1 / seconds are frames a second
// The veth pair hands frames over within the sender's call: a time has both ends.
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <sluice/l2/carrier/frames.h>
#include <sluice/l2/carrier/xdp_carrier.h>

#include "benchmarks/bare/program.h"
#include "benchmarks/bare/wire.h"
#include "kernel_compat/slp/slp_wire.h"

namespace {

using namespace sluice;
using namespace sluice::l2;

constexpr uint64_t kWarmUp = 200;
// What is not there by then was lost.
constexpr uint64_t kLimitNs = 1'000'000'000;

struct EndOfWire {
  EndOfWire(bare::End which, bool xdp) {
    bare::enter(which);
    const char* interface = bare::interface_of(which);
    auto made = xdp ? open_xdp_carrier(interface, 0) : open_packet_carrier(interface, 0, true);
    if (!made.ok()) {
      std::fprintf(stderr, "carrier_frames: %s\n", made.status().to_string().c_str());
      std::_Exit(bare::kExitNothingToRunOn);
    }
    opened = std::move(made).value();
    room.reserve(opened.carrier->slot_bytes());
  }
  OpenedCarrier opened;
  ReceiveRoom room;
};

class Frames {
 public:
  Frames(const bare::Options& options, const EndOfWire& to, size_t count)
      : to_(to.opened.carrier->own_address()),
        bytes_(std::max<size_t>(options.size, SLP_BASE_BYTES)),
        memory_(count * bytes_),
        frames_(count) {
    for (size_t i = 0; i < count; ++i) {
      memory_[i * bytes_] = SLP_VERSION << 5;
      slp_store16(&memory_[i * bytes_ + 4], to.opened.port);
      frames_[i].to = &to_;
      frames_[i].count = 1;
      frames_[i].pieces[0] = {&memory_[i * bytes_], bytes_};
    }
  }
  void number(uint32_t first) {
    for (size_t i = 0; i < frames_.size(); ++i)
      slp_store32(&memory_[i * bytes_ + 8], first + static_cast<uint32_t>(i));
  }
  void flip_one() { memory_[8] ^= 1; }
  std::span<const FrameOut> all() const { return frames_; }

 private:
  PeerAddress to_;
  size_t bytes_;
  std::vector<uint8_t> memory_;
  std::vector<FrameOut> frames_;
};

// Frames from number `next` on; how many came as they should before the limit.
uint64_t receive(EndOfWire& end, uint32_t next, uint64_t count) {
  const uint64_t limit = bare::now_ns() + kLimitNs;
  uint64_t came = 0;
  while (came < count && bare::now_ns() < limit) {
    for (const FrameIn& frame : end.opened.carrier->receive(end.room)) {
      if (slp_load32(frame.data + 8) == next + came) ++came;
    }
    end.opened.carrier->release();
  }
  return came;
}

int measure(const bare::Options& options, bool xdp, bool trip) {
  EndOfWire near(bare::End::kNear, xdp), far(bare::End::kFar, xdp);
  const uint64_t count = trip ? 1 : options.under_way;
  Frames forth(options, far, count), back(options, near, count);
  bare::Samples seconds;
  double cpu = 0;
  for (uint64_t i = 0; i < kWarmUp + options.iterations; ++i) {
    const auto first = static_cast<uint32_t>(i * count);
    forth.number(first);
    back.number(first);
    if (options.corrupt && i == kWarmUp) forth.flip_one();
    const double before = bare::process_cpu_seconds();
    const uint64_t start = bare::now_ns();
    bare::burn_ns(options.slow_ns);
    near.opened.carrier->send(forth.all());
    uint64_t came = receive(far, first, count);
    if (trip) {
      far.opened.carrier->send(back.all());
      came = std::min(came, receive(near, first, count));
    }
    const auto took = static_cast<double>(bare::now_ns() - start) * 1e-9;
    if (came != count) return bare::refuse(options, "a frame was lost or was another one");
    if (i < kWarmUp) continue;
    cpu += bare::process_cpu_seconds() - before;
    seconds.add(took / static_cast<double>(count));
  }
  seconds.sort();
  return bare::JsonLine(options)
      .raw("seconds", seconds.json())
      .number("cpu_seconds", cpu)
      .number("frames_per_call", static_cast<double>(count))
      .print_verified();
}

}  // namespace

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "carrier_frames";
  options.modes = {"packet_trip", "xdp_trip", "packet_frames", "xdp_frames"};
  options.mode = "packet_trip";
  options.iterations = 20'000;
  options.under_way = 32;
  bare::parse_or_exit(options, argc, argv);
  bare::pin_to_cpu(0);
  return measure(options, options.mode.starts_with("xdp"),
                 options.mode.find("trip") != std::string::npos);
}
