// A peer that speaks SLP by the core alone, on a raw socket: from any address and port, and
// only as far as a test lets it.
#ifndef SLUICE_TESTS_L2_RAW_PEER_H_
#define SLUICE_TESTS_L2_RAW_PEER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <sluice/base/clock.h>

#include "kernel_compat/slp/slp.h"
#include "tests/l2/wire.h"

namespace sluice::test {

// An Ethernet frame around a frame of SLP's.
std::vector<uint8_t> ethernet(const Mac& to, const Mac& from, std::span<const uint8_t> frame,
                              uint16_t type = SLP_ETHERTYPE);
inline constexpr size_t kEthernetBytes = 14;

class RawPeer {
 public:
  struct Place {
    Mac own, peer;
    uint16_t port, peer_port;
  };
  RawPeer(const Place& place, uint64_t nonce);
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  // What came from the wire; others' is ignored.
  void take(std::span<const uint8_t> frame, Instant now);
  // Timers, and everything that is to be sent.
  void turn(RawWire& wire, Instant now);

  slp_session* session() { return session_; }
  slp_state state() const { return slp_state_of(session_); }
  slp_status why() const { return slp_why_of(session_); }
  bool say(std::span<const uint8_t> message);
  // How transfers ended, in order.
  std::vector<slp_status> ended;
  std::vector<uint8_t> memory;  // that transfers move

 private:
  struct Ops;
  Place place_;
  slp_node node_;
  std::vector<uint64_t> room_;
  slp_session* session_ = nullptr;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_L2_RAW_PEER_H_
