#include "tests/hostile/attacker/frame.h"

#include <algorithm>

namespace hostile {
namespace {

// Of 0x1edc6f41, reflected (RFC 3720).
const std::array<uint32_t, 256>& crc_table() {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ ((value & 1) != 0 ? 0x82f63b78u : 0);
      made[i] = value;
    }
    return made;
  }();
  return table;
}

}  // namespace

uint32_t crc32c(const uint8_t* bytes, size_t length, uint32_t crc) {
  crc = ~crc;
  for (size_t i = 0; i < length; ++i) crc = crc >> 8 ^ crc_table()[(crc ^ bytes[i]) & 255];
  return ~crc;
}

Bytes Frame::whole() const {
  Bytes b;
  put<uint8_t>(b, static_cast<uint8_t>(version << 5 | type));
  put<uint8_t>(b, flags);
  put(b, source_port);
  put(b, destination_port);
  put(b, static_cast<uint16_t>(payload.size()));
  put(b, connection);
  put(b, number);
  put(b, ack);
  put(b, run);
  put(b, age);
  put(b, credit);
  put(b, marks);
  put<uint32_t>(b, 0);
  put(b, (flags & kFlagPcrc) != 0 && payload_crc == 0 ? crc32c(payload.data(), payload.size())
                                                      : payload_crc);
  put(b, session);
  b.insert(b.end(), extension.begin(), extension.end());
  uint8_t flags_without_ce = b[1] & 0xfe;
  std::swap(b[1], flags_without_ce);
  uint32_t crc = crc32c(b.data(), b.size());
  std::swap(b[1], flags_without_ce);
  std::memcpy(b.data() + 28, &crc, 4);
  b.insert(b.end(), payload.begin(), payload.end());
  return b;
}

bool Frame::parse(const uint8_t* b, size_t length) {
  static constexpr uint8_t kExtensions[] = {0, 88, 88, 88, 8, 0, 4, 0, 8, 16};
  if (length < kBaseBytes) return false;
  type = b[0] & 31;
  version = b[0] >> 5;
  flags = b[1];
  source_port = take<uint16_t>(b + 2);
  destination_port = take<uint16_t>(b + 4);
  uint16_t payload_bytes = take<uint16_t>(b + 6);
  connection = take<uint32_t>(b + 8);
  number = take<uint32_t>(b + 12);
  ack = take<uint32_t>(b + 16);
  run = take<uint16_t>(b + 20);
  credit = take<uint16_t>(b + 24);
  session = take<uint32_t>(b + 36);
  size_t extension_bytes = type < sizeof(kExtensions) ? kExtensions[type] : 72;
  if (length < kBaseBytes + extension_bytes + payload_bytes) return false;
  extension.assign(b + kBaseBytes, b + kBaseBytes + extension_bytes);
  payload.assign(b + kBaseBytes + extension_bytes,
                 b + kBaseBytes + extension_bytes + payload_bytes);
  return true;
}

Bytes Greeting::extension() const {
  Bytes b;
  put(b, nonce);
  put(b, peer_nonce);
  put(b, cookie);
  put(b, connection);
  put(b, min_version);
  put(b, max_version);
  put(b, capabilities);
  put(b, mtu);
  for (uint16_t value : {uint16_t{10}, uint16_t{16}, uint16_t{64}, uint16_t{200}}) put(b, value);
  b.resize(88);
  return b;
}

void Greeting::parse(const Bytes& b) {
  nonce = take<uint64_t>(b.data());
  peer_nonce = take<uint64_t>(b.data() + 8);
  cookie = take<uint64_t>(b.data() + 16);
  connection = take<uint32_t>(b.data() + 24);
}

}  // namespace hostile
