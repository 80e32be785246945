#include "tools/dump/live.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include <sluice/l2/carrier/frames.h>
#include <sluice/l2/carrier/interfaces.h>

namespace sluice::tools::dump {
namespace {

constexpr const char* kOrigin = "dump/live";
constexpr int kSocketBytes = 16 << 20;
constexpr uint64_t kBillion = 1'000'000'000;
// Packets told after a signal to end: a flood does not keep us.
constexpr uint32_t kMostAfterSignal = 65'536;
constexpr size_t kTagBytes = 4, kAddresses = 12;

Status failed(Code code, std::string why, int error) {
  return Status(code, Scope::kOperation, kOrigin, std::move(why), error);
}

// Our EtherType, tagged frames, and what may be UDP where it is looked for; what else comes
// is looked at here. A tag that the device took off is not in these bytes.
Status set_filter(int fd, const Carriers& carriers) {
  constexpr uint32_t kIpv4Protocol = 14 + 9, kIpv6Next = 14 + 6;
  const bool udp = carriers.udp;
  sock_filter code[] = {
      {BPF_LD | BPF_H | BPF_ABS, 0, 0, 12},
      {BPF_JMP | BPF_JEQ | BPF_K, 9, 0, carriers.ethertype},
      {BPF_JMP | BPF_JEQ | BPF_K, 8, 0, ETH_P_8021Q},
      {BPF_JMP | BPF_JEQ | BPF_K, 7, 0, ETH_P_8021AD},
      {BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint8_t>(udp ? 1 : 5), 0, ETH_P_IP},
      {BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint8_t>(udp ? 2 : 4), 4, ETH_P_IPV6},
      {BPF_LD | BPF_B | BPF_ABS, 0, 0, kIpv4Protocol},
      {BPF_JMP | BPF_JEQ | BPF_K, 3, 2, IPPROTO_UDP},
      {BPF_LD | BPF_B | BPF_ABS, 0, 0, kIpv6Next},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, IPPROTO_TCP},  // other headers may have UDP behind them
      {BPF_RET | BPF_K, 0, 0, 0},
      {BPF_RET | BPF_K, 0, 0, UINT32_MAX},
  };
  sock_fprog filter{.len = sizeof(code) / sizeof(code[0]), .filter = code};
  if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0) return Status();
  return failed(Code::kNoMemory, "the kernel takes no packet filter; see net.core.optmem_max",
                errno);
}

// Errors: kInvalidArgument.
Result<l2::Interface> find(const std::string& name) {
  std::string all;
  for (const l2::Interface& found : l2::survey_interfaces()) {
    if (found.name == name && found.mac.empty())
      return failed(Code::kInvalidArgument, name + " is " + found.obstacle, 0);
    if (found.name == name) return found;
    all += (all.empty() ? "" : ", ") + found.name;
  }
  return failed(Code::kInvalidArgument,
                "there is no interface '" + name + "' here, but " + (all.empty() ? "none" : all),
                0);
}

// What the kernel says beside a packet.
struct Beside {
  uint64_t time_ns = 0;
  bool tagged = false;
  uint16_t tag = 0, tag_type = ETH_P_8021Q;
};

Beside read_beside(msghdr& header) {
  Beside beside;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
      timespec time;
      std::memcpy(&time, CMSG_DATA(c), sizeof(time));
      beside.time_ns =
          static_cast<uint64_t>(time.tv_sec) * kBillion + static_cast<uint64_t>(time.tv_nsec);
    }
    if (c->cmsg_level == SOL_PACKET && c->cmsg_type == PACKET_AUXDATA) {
      tpacket_auxdata aux;
      std::memcpy(&aux, CMSG_DATA(c), sizeof(aux));
      beside.tagged = (aux.tp_status & TP_STATUS_VLAN_VALID) != 0;
      beside.tag = aux.tp_vlan_tci;
      if ((aux.tp_status & TP_STATUS_VLAN_TPID_VALID) != 0) beside.tag_type = aux.tp_vlan_tpid;
    }
  }
  return beside;
}

}  // namespace

Result<std::unique_ptr<LiveCapture>> LiveCapture::open(const std::string& interface,
                                                       const Carriers& carriers, bool promiscuous) {
  SLUICE_RETURN_IF_ERROR(l2::packet_sockets_allowed());
  SLUICE_TRY(l2::Interface found, find(interface));
  std::unique_ptr<LiveCapture> made(new LiveCapture);
  made->loopback_ = found.loopback;
  made->name_ = interface;
  made->room_.resize(kMostFrameBytes + kTagBytes);
  // Protocol 0: nothing comes before the filter is in place.
  made->socket_ = ::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (made->socket_ < 0) return failed(Code::kNoMemory, "no socket; see ulimit -n", errno);
  SLUICE_RETURN_IF_ERROR(set_filter(made->socket_, carriers));
  int yes = 1, bytes = kSocketBytes;
  if (::setsockopt(made->socket_, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) != 0) {
    ::setsockopt(made->socket_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
  }
  if (::setsockopt(made->socket_, SOL_PACKET, PACKET_AUXDATA, &yes, sizeof(yes)) != 0 ||
      ::setsockopt(made->socket_, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof(yes)) != 0) {
    return failed(Code::kUnsupported, "packet sockets here tell neither tags nor times", errno);
  }
  sockaddr_ll own{};
  own.sll_family = AF_PACKET;
  own.sll_protocol = htons(ETH_P_ALL);  // what is sent is seen by nobody else
  own.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
  if (promiscuous) {
    packet_mreq wish{.mr_ifindex = own.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
    if (::setsockopt(made->socket_, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &wish, sizeof(wish)) != 0) {
      return failed(Code::kUnsupported, interface + " cannot be promiscuous", errno);
    }
  }
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  ::sigaddset(&set, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  made->signals_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  if (made->signals_ < 0)
    return failed(Code::kNoMemory, "no descriptor for signals; see ulimit -n", errno);
  if (::bind(made->socket_, reinterpret_cast<sockaddr*>(&own), sizeof(own)) != 0) {
    return failed(Code::kInvalidArgument, "no packet socket can be bound to " + interface, errno);
  }
  return made;
}

LiveCapture::~LiveCapture() {
  if (socket_ >= 0) ::close(socket_);
  if (signals_ >= 0) ::close(signals_);
}

Result<std::optional<Captured>> LiveCapture::next() {
  while (true) {
    pollfd polled[2] = {{socket_, POLLIN, 0}, {signals_, POLLIN, 0}};
    if (::poll(polled, 2, -1) < 0) continue;
    // What came before the signal is told, within reason.
    if (polled[1].revents != 0 && (polled[0].revents == 0 || ++after_signal_ > kMostAfterSignal))
      return std::optional<Captured>();
    Captured packet;
    Status status;
    if (receive(packet, status)) return std::optional<Captured>(packet);
    SLUICE_RETURN_IF_ERROR(status);
  }
}

bool LiveCapture::receive(Captured& out, Status& status) {
  sockaddr_ll from{};
  // Room before the packet for a tag that the device took off.
  iovec place{room_.data() + kTagBytes, room_.size() - kTagBytes};
  alignas(cmsghdr) char control[256];
  msghdr header{};
  header.msg_name = &from;
  header.msg_namelen = sizeof(from);
  header.msg_iov = &place;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t length = ::recvmsg(socket_, &header, MSG_TRUNC | MSG_DONTWAIT);
  if (length < 0) {
    bool gone = errno == ENETDOWN && ::if_nametoindex(name_.c_str()) == 0;
    if (gone) status = failed(Code::kUnreachable, "the interface " + name_ + " went away", errno);
    return false;  // one that is down may come back
  }
  if (loopback_ && from.sll_pkttype == PACKET_OUTGOING) return false;  // it comes in, too
  Beside beside = read_beside(header);
  auto original = static_cast<uint64_t>(length);
  auto kept = std::min<size_t>(original, place.iov_len);
  uint8_t* start = room_.data() + kTagBytes;
  if (beside.tagged && kept >= kAddresses) {
    std::memmove(room_.data(), start, kAddresses);
    start = room_.data();
    const uint16_t tag[2] = {htons(beside.tag_type), htons(beside.tag)};
    std::memcpy(start + kAddresses, tag, sizeof(tag));
    original += kTagBytes;
    kept += kTagBytes;
  }
  out = {.time_ns = beside.time_ns,
         .link_type = kEthernet,
         .original_bytes = original,
         .bytes = {start, std::min(kept, kMostFrameBytes)}};
  return true;
}

uint64_t LiveCapture::missed() {
  tpacket_stats stats{};
  socklen_t length = sizeof(stats);
  return ::getsockopt(socket_, SOL_PACKET, PACKET_STATISTICS, &stats, &length) == 0 ? stats.tp_drops
                                                                                    : 0;
}

}  // namespace sluice::tools::dump
