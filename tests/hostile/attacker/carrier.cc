// What carries frames: UDP sockets, and one packet socket of the process with a MAC address for
// each end.
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <map>

#include "tests/hostile/attacker/frame.h"

namespace hostile {
namespace {

constexpr int kEtherType = 0x88b5;
constexpr size_t kMostKept = 4096;  // frames of one end that it has not taken
constexpr int kSocketBytes = 8 << 20;

using Mac = std::array<uint8_t, 6>;

Mac mac_of(const std::string& text) {
  Mac mac{};
  unsigned v[6] = {};
  if (std::sscanf(text.c_str(), "%x:%x:%x:%x:%x:%x", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5]) ==
      6) {
    for (size_t i = 0; i < 6; ++i) mac[i] = static_cast<uint8_t>(v[i]);
  }
  return mac;
}

// "l2://udp/127.0.0.1:7000".
class UdpCarrier final : public Carrier {
 public:
  UdpCarrier(Siege& siege, const std::string& source)
      : siege_(siege), fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    size_t start = siege.address.rfind('/') + 1, colon = siege.address.rfind(':');
    sockaddr_in own{};
    own.sin_family = AF_INET;
    ::inet_pton(AF_INET, source.c_str(), &own.sin_addr);
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &kSocketBytes, sizeof(int));
    ok_ = ::bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0;
    socklen_t length = sizeof(own);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&own), &length);
    own_port = ntohs(own.sin_port);
    peer_port = static_cast<uint16_t>(std::atoi(siege.address.c_str() + colon + 1));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(peer_port);
    ::inet_pton(AF_INET, siege.address.substr(start, colon - start).c_str(), &to.sin_addr);
    ok_ = ok_ && ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~UdpCarrier() override { ::close(fd_); }
  bool ok() const { return ok_; }
  bool send(const Bytes& frame) override {
    // An error that an ICMP left is told once; then it is sent.
    for (int i = 0; i < 2; ++i) {
      if (::send(fd_, frame.data(), frame.size(), MSG_DONTWAIT) < 0) continue;
      ++siege_.seen.frames_out;
      siege_.seen.bytes_out += frame.size();
      return true;
    }
    return false;
  }
  bool receive(Frame& out) override {
    uint8_t room[65536];
    while (true) {
      ssize_t got = ::recv(fd_, room, sizeof(room), MSG_DONTWAIT);
      if (got < 0) return false;
      ++siege_.seen.frames_in;
      siege_.seen.bytes_in += static_cast<uint64_t>(got);
      if (out.parse(room, static_cast<size_t>(got))) return true;
    }
  }
  int fd() const override { return fd_; }

 private:
  Siege& siege_;
  int fd_;
  bool ok_ = false;
};

// The packet socket that all ends on an interface share: frames are handed out by their port.
class PacketSocket {
 public:
  explicit PacketSocket(const std::string& interface)
      : fd_(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    int yes = 1;
    ::setsockopt(fd_, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof(yes));
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &kSocketBytes, sizeof(int));
    sockaddr_ll own{};
    own.sll_family = AF_PACKET;
    own.sll_protocol = htons(kEtherType);
    own.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
    ok_ = own.sll_ifindex != 0 && ::bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0;
  }
  ~PacketSocket() { ::close(fd_); }
  bool ok() const { return ok_; }
  int fd() const { return fd_; }
  bool send(const Bytes& frame) const {
    for (int i = 0; i < 50; ++i) {
      if (::send(fd_, frame.data(), frame.size(), MSG_DONTWAIT) >= 0) return true;
      pollfd wait{.fd = fd_, .events = POLLOUT, .revents = 0};
      ::poll(&wait, 1, 2);
    }
    return false;
  }
  // Frames that came for that port, whoever's address they go to (a wire has no others).
  bool receive(uint16_t port, Frame& out) {
    uint8_t room[16384];
    ssize_t got;
    while ((got = ::recv(fd_, room, sizeof(room), MSG_DONTWAIT)) > 0) {
      Frame frame;
      if (got > 14 && frame.parse(room + 14, static_cast<size_t>(got) - 14) &&
          ends_[frame.destination_port].size() < kMostKept) {
        ends_[frame.destination_port].push_back(std::move(frame));
      }
    }
    auto& own = ends_[port];
    if (own.empty()) return false;
    out = std::move(own.front());
    own.pop_front();
    return true;
  }

 private:
  int fd_;
  bool ok_ = false;
  std::map<uint16_t, std::deque<Frame>> ends_;
};

// "l2://right/02:00:00:00:00:0a:7": by which interface, to whom, and the port there.
class PacketCarrier final : public Carrier {
 public:
  PacketCarrier(Siege& siege, const std::string& source) : siege_(siege), from_(mac_of(source)) {
    std::string rest = siege.address.substr(siege.address.find("//") + 2);
    size_t slash = rest.find('/'), colon = rest.rfind(':');
    to_ = mac_of(rest.substr(slash + 1, colon - slash - 1));
    peer_port = static_cast<uint16_t>(std::atoi(rest.c_str() + colon + 1));
    static uint16_t next = 20000;
    own_port = next++;
    static std::map<std::string, std::unique_ptr<PacketSocket>> sockets;
    auto& socket = sockets[rest.substr(0, slash)];
    if (socket == nullptr) socket = std::make_unique<PacketSocket>(rest.substr(0, slash));
    socket_ = socket.get();
  }
  bool ok() const { return socket_->ok(); }
  bool send(const Bytes& frame) override {
    Bytes bytes(to_.begin(), to_.end());
    bytes.insert(bytes.end(), from_.begin(), from_.end());
    bytes.push_back(kEtherType >> 8);
    bytes.push_back(kEtherType & 255);
    bytes.insert(bytes.end(), frame.begin(), frame.end());
    if (!socket_->send(bytes)) return false;
    ++siege_.seen.frames_out;
    siege_.seen.bytes_out += frame.size();
    return true;
  }
  bool receive(Frame& out) override {
    if (!socket_->receive(own_port, out)) return false;
    ++siege_.seen.frames_in;
    siege_.seen.bytes_in += kBaseBytes + out.payload.size();
    return true;
  }
  int fd() const override { return socket_->fd(); }

 private:
  Siege& siege_;
  Mac from_, to_{};
  PacketSocket* socket_;
};

}  // namespace

std::unique_ptr<Carrier> open_carrier(Siege& siege, const std::string& source) {
  const std::string& from = source.empty() ? siege.source : source;
  if (siege.path == "udp") {
    auto made = std::make_unique<UdpCarrier>(siege, from);
    return made->ok() ? std::move(made) : nullptr;
  }
  auto made = std::make_unique<PacketCarrier>(siege, from);
  return made->ok() ? std::move(made) : nullptr;
}

}  // namespace hostile
