#include "tests/module/packet_peer.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <stdexcept>

namespace sluice::module_test {
namespace {

uint64_t now() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace

struct PacketPeer::Ops {
  static PacketPeer& self(void* user) { return *static_cast<PacketPeer*>(user); }
  static void place(void* user, uint64_t, uint64_t offset, const slp_frame* frame, uint32_t at,
                    uint32_t bytes) {
    std::memcpy(self(user).memory.data() + offset, frame->data + at, bytes);
  }
  static bool message(void* user, const slp_rts*, const uint8_t* data, uint32_t bytes) {
    self(user).messages.emplace_back(reinterpret_cast<const char*>(data), bytes);
    return true;
  }
  static void ended(void* user, uint64_t cookie, slp_status status) {
    self(user).ended.emplace_back(cookie, status);
  }
  static void written(void* user, uint64_t, bool noticed, uint32_t notice) {
    if (noticed) self(user).notices.push_back(notice);
  }
  static uint32_t crc(void* user, uint64_t, uint64_t offset, uint32_t bytes) {
    return slp_crc32c(0, self(user).memory.data() + offset, bytes);
  }
  static const slp_ops kTable;
};

const slp_ops PacketPeer::Ops::kTable = {.place = place,
                                         .message = message,
                                         .ended = ended,
                                         .written = written,
                                         .state = nullptr,
                                         .wake = nullptr,
                                         .source_crc = crc,
                                         .frame_crc = nullptr};

PacketPeer::PacketPeer(const End& end, uint16_t port) : ifindex_(end.ifindex), port_(port) {
  fd_ = end.space.run(
      [&] { return Fd(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); });
  int yes = 1;
  ::setsockopt(fd_.value(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof(yes));
  sockaddr_ll own{};
  own.sll_family = AF_PACKET;
  own.sll_protocol = htons(SLP_ETHERTYPE);
  own.sll_ifindex = static_cast<int>(ifindex_);
  if (::bind(fd_.value(), reinterpret_cast<sockaddr*>(&own), sizeof(own)) != 0)
    throw std::runtime_error("a packet socket: " + std::string(std::strerror(errno)));
  slp_node_init(&node_, 1 << 20);
  memory.resize(1 << 20);
  room_ = std::make_unique<uint64_t[]>((slp_session_bytes() + 7) / 8);
}

PacketPeer::~PacketPeer() {
  if (session_ == nullptr) return;
  slp_abort(session_);
  flush();
}

void PacketPeer::listen() {
  listening_ = true;
  listener_.port = port_;
  listener_.mtu = 1500;
  (void)!::getrandom(listener_.secret, sizeof(listener_.secret), 0);
}

void PacketPeer::configure(slp_config& config, uint16_t peer_port) {
  slp_config_init(&config);
  config.ops = &Ops::kTable;
  config.user = this;
  config.node = &node_;
  (void)!::getrandom(&config.nonce, sizeof(config.nonce), 0);
  config.nonce |= 1;
  config.connection = 1 << 16;
  config.source_port = port_;
  config.destination_port = peer_port;
  config.mtu = 1500;
  config.payload_crc = checksums;
}

void PacketPeer::connect(const uint8_t mac[6], uint16_t port) {
  slp_config config;
  configure(config, port);
  std::memcpy(peer_mac_, mac, 6);
  session_ = slp_connect(room_.get(), &config, now());
  flush();
}

bool PacketPeer::lost() { return drop_every != 0 && ++frames_ % drop_every == 0; }

// Only the payload: the header has a checksum of its own.
void PacketPeer::damage(std::vector<uint8_t>& frame) {
  slp_base base;
  bool has_payload =
      slp_decode_base(frame.data(), frame.size(), frame.size(), &base) == SLP_TAKEN &&
      (base.type == SLP_EAGER || base.type == SLP_DATA) && base.payload_bytes > 0;
  if (!has_payload || damage_every == 0 || ++payloads_ % damage_every != 0) return;
  frame[SLP_BASE_BYTES + slp_extension_bytes(base.type) + base.payload_bytes / 2] ^= 4;
}

void PacketPeer::take(const uint8_t* data, size_t bytes, const uint8_t mac[6]) {
  slp_frame frame{.data = data, .present = bytes, .bytes = bytes, .ce = false, .context = nullptr};
  slp_base base;
  if (slp_decode_base(data, bytes, bytes, &base) != SLP_TAKEN || base.destination_port != port_)
    return;
  if (keep) seen.emplace_back(data, data + bytes);
  if (base.type == SLP_HELLO && listening_) {
    slp_hello hello;
    slp_decode_hello(data + SLP_BASE_BYTES, &hello);
    if (session_ == nullptr || hello.nonce != peer_nonce_) {
      slp_meeting met;
      slp_answer answer = slp_listen(&listener_, now(), mac, 6, &frame, &met);
      std::memcpy(peer_mac_, mac, 6);
      if (answer == SLP_LISTEN_REPLY) inject({met.reply, met.reply + met.reply_bytes});
      if (answer != SLP_LISTEN_ACCEPT) return;
      slp_config config;
      configure(config, met.peer_port);
      peer_nonce_ = met.hello.nonce;
      if (slp_accept(room_.get(), &config, &met.hello, now(), &session_) != SLP_OK)
        session_ = nullptr;
      return;
    }
  }
  if (session_ != nullptr) slp_on_frame(session_, now(), &frame);
}

void PacketPeer::turn(int wait_ms) {
  uint8_t frame[9100];
  pollfd wait{.fd = fd_.value(), .events = POLLIN, .revents = 0};
  ::poll(&wait, 1, wait_ms);
  for (int i = 0; i < 64; ++i) {
    sockaddr_ll from{};
    socklen_t length = sizeof(from);
    ssize_t came = ::recvfrom(fd_.value(), frame, sizeof(frame), 0,
                              reinterpret_cast<sockaddr*>(&from), &length);
    if (came < 0) break;
    if (lost()) continue;
    std::vector<uint8_t> bytes(frame, frame + came);
    damage(bytes);
    take(bytes.data(), bytes.size(), from.sll_addr);
  }
  if (session_ == nullptr) return;
  if (slp_next_timeout(session_) <= now()) slp_on_timer(session_, now());
  flush();
}

bool PacketPeer::send(const std::string& text) {
  bool taken = slp_send(session_, nullptr, reinterpret_cast<const uint8_t*>(text.data()),
                        static_cast<uint32_t>(text.size()), nullptr, 0);
  flush();
  return taken;
}

void PacketPeer::flush() {
  slp_tx tx;
  while (slp_poll_tx(session_, now(), &tx)) {
    std::vector<uint8_t> frame(tx.header, tx.header + tx.header_bytes);
    for (int i = 0; i < 2; ++i)
      frame.insert(frame.end(), tx.piece[i], tx.piece[i] + tx.piece_bytes[i]);
    if (tx.from_memory)
      frame.insert(frame.end(), memory.data() + tx.offset, memory.data() + tx.offset + tx.bytes);
    if (keep) seen.push_back(frame);
    damage(frame);
    if (!lost()) inject(frame);
  }
}

void PacketPeer::inject(const std::vector<uint8_t>& frame) {
  sockaddr_ll to{};
  to.sll_family = AF_PACKET;
  to.sll_protocol = htons(SLP_ETHERTYPE);
  to.sll_ifindex = static_cast<int>(ifindex_);
  to.sll_halen = 6;
  std::memcpy(to.sll_addr, peer_mac_, 6);
  (void)!::sendto(fd_.value(), frame.data(), frame.size(), 0, reinterpret_cast<sockaddr*>(&to),
                  sizeof(to));
}

}  // namespace sluice::module_test
