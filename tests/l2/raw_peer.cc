#include "tests/l2/raw_peer.h"

#include <algorithm>
#include <cstring>

namespace sluice::test {
namespace {

constexpr size_t kMemory = 1 << 16;

uint64_t nanoseconds(Instant t) { return static_cast<uint64_t>(t.time_since_epoch().count()); }

}  // namespace

std::vector<uint8_t> ethernet(const Mac& to, const Mac& from, std::span<const uint8_t> frame,
                              uint16_t type) {
  std::vector<uint8_t> bytes(to.begin(), to.end());
  bytes.insert(bytes.end(), from.begin(), from.end());
  bytes.push_back(static_cast<uint8_t>(type >> 8));
  bytes.push_back(static_cast<uint8_t>(type));
  bytes.insert(bytes.end(), frame.begin(), frame.end());
  return bytes;
}

struct RawPeer::Ops {
  static void place(void* user, uint64_t, uint64_t offset, const slp_frame* frame, uint32_t at,
                    uint32_t bytes) {
    std::memcpy(static_cast<RawPeer*>(user)->memory.data() + offset, frame->data + at, bytes);
  }
  static void ended(void* user, uint64_t, slp_status status) {
    static_cast<RawPeer*>(user)->ended.push_back(status);
  }
  static const slp_ops kTable;
};

const slp_ops RawPeer::Ops::kTable = {
    .place = place,
    .message = nullptr,
    .ended = ended,
    .written = nullptr,
    .state = nullptr,
    .wake = nullptr,
    .source_crc = nullptr,
    .frame_crc = nullptr,
};

RawPeer::RawPeer(const Place& place, uint64_t nonce)
    : memory(kMemory), place_(place), room_((slp_session_bytes() + 7) / 8) {
  slp_node_init(&node_, 1 << 20);
  slp_config config;
  slp_config_init(&config);
  config.ops = &Ops::kTable;
  config.user = this;
  config.node = &node_;
  config.nonce = nonce | 1;
  config.connection = 0x10001;
  config.source_port = place.port;
  config.destination_port = place.peer_port;
  config.mtu = 1500;
  session_ = slp_connect(room_.data(), &config, nanoseconds(now()));
}

void RawPeer::take(std::span<const uint8_t> frame, Instant now) {
  if (frame.size() < kEthernetBytes ||
      !std::equal(place_.own.begin(), place_.own.end(), frame.begin()))
    return;
  if (!std::equal(place_.peer.begin(), place_.peer.end(), frame.begin() + 6)) return;
  std::span<const uint8_t> inner = frame.subspan(kEthernetBytes);
  slp_frame in{.data = inner.data(),
               .present = inner.size(),
               .bytes = inner.size(),
               .ce = false,
               .context = nullptr};
  (void)slp_on_frame(session_, nanoseconds(now), &in);
}

void RawPeer::turn(RawWire& wire, Instant now) {
  if (slp_next_timeout(session_) <= nanoseconds(now)) slp_on_timer(session_, nanoseconds(now));
  slp_tx tx;
  while (slp_poll_tx(session_, nanoseconds(now), &tx)) {
    std::vector<uint8_t> frame(tx.header, tx.header + tx.header_bytes);
    if (tx.from_memory) {
      frame.insert(frame.end(), memory.begin() + static_cast<long>(tx.offset),
                   memory.begin() + static_cast<long>(tx.offset + tx.bytes));
    } else {
      for (int i : {0, 1}) frame.insert(frame.end(), tx.piece[i], tx.piece[i] + tx.piece_bytes[i]);
    }
    (void)wire.send(ethernet(place_.peer, place_.own, frame));
  }
}

bool RawPeer::say(std::span<const uint8_t> message) {
  return slp_send(session_, nullptr, message.data(), static_cast<uint32_t>(message.size()), nullptr,
                  0);
}

}  // namespace sluice::test
