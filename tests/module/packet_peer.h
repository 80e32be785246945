// The other end without the module: SLP's core over a packet socket, as transport/l2 has it.
// Runs when it is told to; drops and injects what a test asks for.
#ifndef SLUICE_TESTS_MODULE_PACKET_PEER_H_
#define SLUICE_TESTS_MODULE_PACKET_PEER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kernel_compat/slp/slp.h"
#include "tests/module/wire.h"

namespace sluice::module_test {

class PacketPeer {
 public:
  PacketPeer(const End& end, uint16_t port);
  ~PacketPeer();

  void listen();
  void connect(const uint8_t mac[6], uint16_t port);
  // Frames in, time, frames out; waits for a frame up to `wait_ms` if there is none.
  void turn(int wait_ms = 0);
  bool send(const std::string& text);  // false: no room now
  slp_session* session() { return session_; }
  bool up() const { return session_ != nullptr && slp_state_of(session_) == SLP_UP; }
  bool over() const { return session_ != nullptr && slp_state_of(session_) == SLP_DOWN; }

  std::deque<std::string> messages;
  std::vector<std::pair<uint64_t, slp_status>> ended;  // pulls and pushes of this end: cookie, how
  std::vector<uint32_t> notices;
  std::vector<uint8_t> memory;  // what handles, pulls and pushes of this end name
  unsigned drop_every = 0;      // each so many-th frame is lost, both ways
  bool checksums = false;       // asks for them
  unsigned damage_every = 0;    // in each so many-th payload a bit is changed on its way, both ways
  // What comes is changed in a byte or two and sent on to the module as well.
  void inject(const std::vector<uint8_t>& frame);
  std::vector<std::vector<uint8_t>> seen;  // frames that came and left, kept if `keep`
  bool keep = false;

 private:
  struct Ops;
  void configure(slp_config& config, uint16_t peer_port);
  void take(const uint8_t* data, size_t bytes, const uint8_t mac[6]);
  void flush();
  bool lost();
  void damage(std::vector<uint8_t>& frame);

  Fd fd_;
  uint32_t ifindex_;
  uint16_t port_;
  uint8_t peer_mac_[6] = {};
  uint64_t peer_nonce_ = 0;
  bool listening_ = false;
  slp_listener listener_{};
  slp_node node_{};
  std::unique_ptr<uint64_t[]> room_;
  slp_session* session_ = nullptr;
  unsigned frames_ = 0, payloads_ = 0;
};

}  // namespace sluice::module_test

#endif  // SLUICE_TESTS_MODULE_PACKET_PEER_H_
