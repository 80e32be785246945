// Frames of docs/slp.md, written from that page alone, and what carries them: UDP, or raw Ethernet
// with any source address. Knows no sessions.
#ifndef SLUICE_TESTS_HOSTILE_ATTACKER_FRAME_H_
#define SLUICE_TESTS_HOSTILE_ATTACKER_FRAME_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/hostile/attacker/bytes.h"
#include "tests/hostile/attacker/siege.h"

namespace hostile {

enum FrameType : uint8_t {
  kSlpHello = 1,
  kSlpHelloAck,
  kSlpRetry,
  kSlpNack,
  kSlpBye,
  kSlpAck,
  kSlpPing,
  kSlpEager,
  kSlpData,
  kSlpFind = 16,
  kSlpFound = 17
};
inline constexpr uint8_t kFlagAck = 2, kFlagAckReq = 4, kFlagAgain = 8, kFlagSealed = 16,
                         kFlagPcrc = 32;
inline constexpr size_t kBaseBytes = 40, kUnit = 1344;

uint32_t crc32c(const uint8_t* bytes, size_t length, uint32_t crc = 0);

struct Frame {
  uint8_t type = 0, flags = 0, version = 1;
  uint16_t source_port = 0, destination_port = 0;
  uint32_t connection = 0, number = 0, ack = 0;
  uint16_t run = 0, age = 0, credit = 0, marks = 0;
  uint32_t payload_crc = 0, session = 0;
  Bytes extension, payload;

  // With its checksums.
  Bytes whole() const;
  // False: not a frame. Checksums are not looked at: the other end is honest.
  bool parse(const uint8_t* bytes, size_t length);
};

struct Greeting {
  uint64_t nonce = 0, peer_nonce = 0, cookie = 0;
  uint32_t connection = 0;
  uint16_t min_version = 1, max_version = 1, capabilities = 0, mtu = 1452;
  Bytes extension() const;
  void parse(const Bytes& extension);
};

// One end of a carrier: a UDP socket, or a port of this process's packet socket.
class Carrier {
 public:
  virtual ~Carrier() = default;
  virtual bool send(const Bytes& frame) = 0;
  // The next frame; false: none now.
  virtual bool receive(Frame& out) = 0;
  virtual int fd() const = 0;
  uint16_t own_port = 0, peer_port = 0;
};
// By the siege's path and address, from its source or from `source`: an IP address or a MAC
// address.
std::unique_ptr<Carrier> open_carrier(Siege& siege, const std::string& source = {});

}  // namespace hostile

#endif  // SLUICE_TESTS_HOSTILE_ATTACKER_FRAME_H_
