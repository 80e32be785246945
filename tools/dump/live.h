// Frames from an interface as they pass, both ways, for any receiver. One of the two
// doors to packet sockets; the other is transport/l2/carrier.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sluice/base/result.h>

#include "tools/dump/packet.h"

namespace sluice::tools::dump {

class LiveCapture {
 public:
  // `promiscuous`: also what the interface would not take for itself.
  // Errors: kAccessDenied (CAP_NET_RAW), kInvalidArgument (no such interface), kUnsupported.
  static Result<std::unique_ptr<LiveCapture>> open(const std::string& interface,
                                                   const Carriers& carriers, bool promiscuous);
  ~LiveCapture();

  // The next packet, VLAN tag in place; none when SIGINT or SIGTERM came. Blocks.
  // Errors: kUnreachable (the interface went away).
  Result<std::optional<Captured>> next();
  // Packets that the kernel could not keep for us since the last call.
  uint64_t missed();

 private:
  LiveCapture() = default;
  bool receive(Captured& out, Status& status);

  int socket_ = -1, signals_ = -1;
  std::string name_;
  bool loopback_ = false;
  uint32_t after_signal_ = 0;
  std::vector<uint8_t> room_;
};

}  // namespace sluice::tools::dump
