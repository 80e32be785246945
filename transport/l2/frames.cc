#include <sluice/l2/frames.h>

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include <sluice/api/identity.h>
#include <sluice/l2/socket.h>

#include "kernel_compat/slp/slp_wire.h"

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/frames";
constexpr size_t kMacBytes = 6;
// Free ports are tried at random; so many taken ones in a row mean that there is none.
constexpr int kTriesForPort = 64;
constexpr uint32_t kFirstFreePort = 32768;

std::string program() {
  char path[512];
  ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path));
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "PROGRAM";
}

Result<Fd> packet_socket() {
  // Protocol 0: nothing comes before it is bound, when the filter is in place.
  Fd fd(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.value() >= 0) return fd;
  if (errno == EPERM || errno == EACCES) {
    return Status(Code::kAccessDenied, Scope::kOperation, kOrigin,
                  "packet sockets need CAP_NET_RAW: sudo setcap cap_net_raw+ep " + program() + ", or run it as root", errno);
  }
  if (errno == EAFNOSUPPORT) return Status(Code::kUnsupported, Scope::kOperation, kOrigin, "this kernel has no packet sockets", errno);
  return no_descriptor(errno);
}

std::string interfaces() {
  std::string all;
  struct if_nameindex* list = ::if_nameindex();
  for (auto* entry = list; entry != nullptr && entry->if_index != 0; ++entry) all += (all.empty() ? "" : ", ") + std::string(entry->if_name);
  if (list != nullptr) ::if_freenameindex(list);
  return all.empty() ? "none" : all;
}

Result<int> index_of(const std::string& interface) {
  unsigned index = interface.size() < IFNAMSIZ ? ::if_nametoindex(interface.c_str()) : 0;
  if (index != 0) return static_cast<int>(index);
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, "there is no interface '" + interface + "' here, but " + interfaces());
}

ifreq request_for(const std::string& interface) {
  ifreq request{};
  std::memcpy(request.ifr_name, interface.data(), std::min(interface.size(), sizeof(request.ifr_name) - 1));
  return request;
}

// To us (not to others, nor what leaves), our version, our port. With SOCK_DGRAM a filter's
// bytes begin after the Ethernet header.
Status set_filter(int fd, uint16_t port) {
  sock_filter code[] = {
      {BPF_LD | BPF_B | BPF_ABS, 0, 0, static_cast<uint32_t>(SKF_AD_OFF + SKF_AD_PKTTYPE)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 5, PACKET_HOST},
      {BPF_LD | BPF_B | BPF_ABS, 0, 0, 0},
      {BPF_ALU | BPF_AND | BPF_K, 0, 0, 0xe0},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 2, SLP_VERSION << 5},
      {BPF_LD | BPF_H | BPF_ABS, 0, 0, 4},
      {BPF_JMP | BPF_JEQ | BPF_K, 1, 0, __builtin_bswap16(port)},  // BPF loads big-endian
      {BPF_RET | BPF_K, 0, 0, 0},
      {BPF_RET | BPF_K, 0, 0, UINT32_MAX},
  };
  sock_fprog filter{.len = sizeof(code) / sizeof(code[0]), .filter = code};
  if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) != 0) {
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin, "the kernel takes no packet filter; see net.core.optmem_max", errno);
  }
  int yes = 1;
  if (::setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof(yes)) == 0) return Status();
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin, "packet sockets here cannot ignore outgoing frames; that takes Linux 4.20", errno);
}

class PacketCarrier final : public Carrier {
 public:
  struct Place {
    std::string name;
    int index;
    uint16_t mtu;
    PeerAddress own;
  };
  PacketCarrier(Fd fd, Fd claim, Place place) : fd_(std::move(fd)), claim_(std::move(claim)), place_(std::move(place)) {}
  Path path() const override { return Path::kPacket; }
  int fd() const override { return fd_.value(); }
  uint16_t mtu() const override {
    ifreq request = request_for(place_.name);
    bool known = ::ioctl(fd_.value(), SIOCGIFMTU, &request) == 0;
    return known ? static_cast<uint16_t>(std::clamp<int>(request.ifr_mtu, kLeastFrame, place_.mtu)) : place_.mtu;
  }
  uint16_t mtu_to(const PeerAddress&) const override { return mtu(); }
  // One more, so that what is longer is seen to be.
  size_t slot_bytes() const override { return size_t{place_.mtu} + 1; }
  bool pads() const override { return true; }  // up to Ethernet's least length
  const PeerAddress& own_address() const override { return place_.own; }
  std::string address_text(const PeerAddress& address, uint16_t port) const override {
    return "l2://" + place_.name + "/" + mac_text(address) + ":" + std::to_string(port);
  }

  Status look() const override {
    ifreq request = request_for(place_.name);
    std::string why;
    if (::ioctl(fd_.value(), SIOCGIFFLAGS, &request) != 0) {
      why = "the interface " + place_.name + " is gone";
    } else if ((request.ifr_flags & IFF_UP) == 0) {
      why = "the interface " + place_.name + " is down; ip link set " + place_.name + " up, and connect again";
    } else if ((request.ifr_flags & IFF_RUNNING) == 0) {
      why = "the interface " + place_.name + " has no carrier: its cable is out, or the other end is down";
    }
    return why.empty() ? Status() : Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, why);
  }

  void send(std::span<const FrameOut> frames) override {
    std::array<mmsghdr, kBatch> messages{};
    std::array<sockaddr_ll, kBatch> targets{};
    for (size_t i = 0; i < frames.size(); ++i) {
      targets[i].sll_family = AF_PACKET;
      targets[i].sll_protocol = htons(SLP_ETHERTYPE);
      targets[i].sll_ifindex = place_.index;
      targets[i].sll_halen = kMacBytes;
      std::memcpy(targets[i].sll_addr, frames[i].to->bytes.data(), kMacBytes);
      msghdr& header = messages[i].msg_hdr;
      header.msg_name = &targets[i];
      header.msg_namelen = sizeof(targets[i]);
      header.msg_iov = const_cast<iovec*>(frames[i].pieces.data());
      header.msg_iovlen = frames[i].count;
    }
    size_t sent = 0;
    while (sent < frames.size()) {
      int taken = ::sendmmsg(fd_.value(), messages.data() + sent, static_cast<unsigned>(frames.size() - sent), MSG_DONTWAIT);
      if (taken < 0 && errno == EINTR) continue;
      // One that the device refuses is like one lost on the wire; a full queue takes no more.
      bool full = taken < 0 && (errno == EAGAIN || errno == ENOBUFS);
      if (taken <= 0) frames_not_taken.add(full ? frames.size() - sent : 1);
      if (full) return;
      sent += taken > 0 ? static_cast<size_t>(taken) : 1;
    }
  }

  std::span<const FrameIn> receive(ReceiveRoom& room) override {
    constexpr size_t kSlots = ReceiveRoom::kSlots;
    std::array<mmsghdr, kSlots> messages{};
    std::array<iovec, kSlots> places;
    std::array<sockaddr_ll, kSlots> sources;
    for (size_t i = 0; i < kSlots; ++i) {
      places[i] = {room.slot(i), room.slot_bytes()};
      msghdr& header = messages[i].msg_hdr;
      header.msg_name = &sources[i];
      header.msg_namelen = sizeof(sources[i]);
      header.msg_iov = &places[i];
      header.msg_iovlen = 1;
    }
    int came = ::recvmmsg(fd_.value(), messages.data(), kSlots, MSG_DONTWAIT, nullptr);
    room.frames.clear();
    room.drained = came < static_cast<int>(kSlots);
    for (size_t i = 0; i < static_cast<size_t>(std::max(came, 0)); ++i) {
      if ((messages[i].msg_hdr.msg_flags & MSG_TRUNC) != 0 || messages[i].msg_len > place_.mtu || sources[i].sll_halen != kMacBytes) {
        frames_truncated.add();
        continue;
      }
      room.sources[i].size = kMacBytes;
      std::memcpy(room.sources[i].bytes.data(), sources[i].sll_addr, kMacBytes);
      room.frames.push_back({.from = &room.sources[i], .data = room.slot(i), .bytes = messages[i].msg_len});
    }
    return room.frames;
  }

 private:
  Fd fd_, claim_;
  Place place_;
};

// Takes a port of an interface for this process: packet sockets share, so an abstract Unix
// name that only one can have stands for it.
Result<Fd> claim_port(const std::string& interface, int index, uint16_t port) {
  Fd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (fd.value() < 0) return no_descriptor(errno);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  int text = std::snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "sluice-l2-%d-%u", index, unsigned{port});
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(text));
  if (::bind(fd.value(), reinterpret_cast<sockaddr*>(&name), length) == 0) return fd;
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                "port " + std::to_string(port) + " of " + interface + " is taken; port 0 takes any that is free", errno);
}

uint16_t random_port() {
  uint16_t random;
  fill_random(std::as_writable_bytes(std::span(&random, 1)));
  return static_cast<uint16_t>(kFirstFreePort + random % (65536 - kFirstFreePort));
}

// Bound to SLP's EtherType: from now on frames come.
Result<PeerAddress> bind_to(int fd, const std::string& interface, int index) {
  sockaddr_ll own{};
  own.sll_family = AF_PACKET;
  own.sll_protocol = htons(SLP_ETHERTYPE);
  own.sll_ifindex = index;
  socklen_t length = sizeof(own);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof(own)) != 0) {
    return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, "no packet socket can be bound to " + interface, errno);
  }
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0 || own.sll_halen != kMacBytes) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin, interface + " is no Ethernet: it has no MAC address");
  }
  PeerAddress address{.size = kMacBytes};
  std::memcpy(address.bytes.data(), own.sll_addr, kMacBytes);
  return address;
}

}  // namespace

Counter frames_not_taken("l2.frames_not_taken");
Counter frames_truncated("l2.frames_truncated");

Result<PeerAddress> parse_mac(const std::string& text) {
  PeerAddress address;
  unsigned b[kMacBytes];
  int used = 0;
  int fields = std::sscanf(text.c_str(), "%2x:%2x:%2x:%2x:%2x:%2x%n", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &used);
  if (fields != kMacBytes || static_cast<size_t>(used) != text.size()) {
    return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, "'" + text + "' is no MAC address, as 02:00:00:00:00:0b is");
  }
  address.size = kMacBytes;
  for (size_t i = 0; i < kMacBytes; ++i) address.bytes[i] = static_cast<uint8_t>(b[i]);
  return address;
}

std::string mac_text(const PeerAddress& address) {
  const auto& b = address.bytes;
  char text[18];
  std::snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5]);
  return text;
}

void ReceiveRoom::reserve(size_t slot_bytes) {
  if (slot_bytes <= slot_bytes_) return;
  slot_bytes_ = slot_bytes;
  // Not touched before it is used.
  memory_ = std::make_unique_for_overwrite<uint8_t[]>(kSlots * slot_bytes_);
}

Result<OpenedCarrier> open_packet_carrier(const std::string& interface, uint16_t port) {
  SLUICE_TRY(Fd fd, packet_socket());  // first of all: what is missing is told before a port is taken
  SLUICE_TRY(int index, index_of(interface));
  Result<Fd> claim = Status(Code::kInternal, Scope::kOperation, kOrigin);
  bool any = port == 0;
  for (int tries = 0; !claim.ok() && tries < (any ? kTriesForPort : 1); ++tries) {
    if (any) port = random_port();
    claim = claim_port(interface, index, port);
  }
  if (!claim.ok()) return claim.status();
  ifreq request = request_for(interface);
  if (::ioctl(fd.value(), SIOCGIFMTU, &request) != 0) {
    return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, "the interface " + interface + " tells no MTU", errno);
  }
  auto mtu = static_cast<uint16_t>(std::clamp(request.ifr_mtu, 0, 65535));
  if (mtu < kLeastFrame) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin, "the MTU of " + interface + " is " + std::to_string(mtu) + "; SLP needs 1452");
  }
  SLUICE_RETURN_IF_ERROR(set_filter(fd.value(), port));
  enlarge(fd.value());
  SLUICE_TRY(PeerAddress own, bind_to(fd.value(), interface, index));
  auto carrier = std::make_unique<PacketCarrier>(std::move(fd), std::move(claim).value(), PacketCarrier::Place{interface, index, mtu, own});
  return OpenedCarrier{std::move(carrier), port};
}

bool payload_checksums_wanted() {
  static const bool wanted = [] {
    const char* text = std::getenv("SLUICE_L2_CHECKSUMS");
    return text != nullptr && std::string_view(text) == "1";
  }();
  return wanted;
}

Status packet_sockets_allowed() { return packet_socket().status(); }

}  // namespace sluice::l2
