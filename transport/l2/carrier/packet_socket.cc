#include <sluice/l2/carrier/packet_socket.h>

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <sluice/l2/carrier/guard_filter.h>
#include <sluice/l2/carrier/socket_room.h>
#include <sluice/runtime/identity.h>

#include "kernel_compat/slp/slp_wire.h"

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/packet_socket";
// Free ports are tried at random; so many taken ones in a row mean that there is none.
constexpr int kTriesForPort = 64;
constexpr uint32_t kFirstFreePort = 32768;

std::string program() {
  char path[512];
  ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path));
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "PROGRAM";
}

Result<Descriptor> packet_socket() {
  // Protocol 0: nothing comes before it is bound, when the filter is in place.
  Descriptor fd(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.value() >= 0) return fd;
  if (errno == EPERM || errno == EACCES) {
    return Status(Code::kAccessDenied, Scope::kOperation, kOrigin,
                  "packet sockets need CAP_NET_RAW: sudo setcap cap_net_raw+ep " + program() +
                      ", or run it as root, or lend it one by sudo sluice broker",
                  errno);
  }
  if (errno == EAFNOSUPPORT)
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "this kernel has no packet sockets", errno);
  return no_descriptor(errno);
}

std::string interfaces() {
  std::string all;
  struct if_nameindex* list = ::if_nameindex();
  for (auto* entry = list; entry != nullptr && entry->if_index != 0; ++entry)
    all += (all.empty() ? "" : ", ") + std::string(entry->if_name);
  if (list != nullptr) ::if_freenameindex(list);
  return all.empty() ? "none" : all;
}

// Asks by a socket that is open. if_nametoindex() opens its own, and without a free descriptor it
// finds no interface.
Result<int> index_of(int fd, const std::string& interface) {
  ifreq request{};
  if (interface.size() < sizeof(request.ifr_name)) {
    std::memcpy(request.ifr_name, interface.data(), interface.size());
    if (::ioctl(fd, SIOCGIFINDEX, &request) == 0) return request.ifr_ifindex;
  }
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                "there is no interface '" + interface + "' here, but " + interfaces());
}

Status attach(int fd, std::span<sock_filter> code) {
  if (int error = attach_filter(fd, code); error != 0) {
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                  "the kernel takes no packet filter; see net.core.optmem_max", error);
  }
  int yes = 1;
  if (::setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof(yes)) == 0) return Status();
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                "packet sockets here cannot ignore outgoing frames; that takes Linux 4.20", errno);
}

constexpr uint32_t ancillary(int what) { return static_cast<uint32_t>(SKF_AD_OFF + what); }
constexpr uint16_t kLoadByte = BPF_LD | BPF_B | BPF_ABS, kLoadHalf = BPF_LD | BPF_H | BPF_ABS,
                   kLoadWord = BPF_LD | BPF_W | BPF_ABS;
constexpr uint16_t kEqual = BPF_JMP | BPF_JEQ | BPF_K, kGreater = BPF_JMP | BPF_JGT | BPF_K,
                   kReturn = BPF_RET | BPF_K, kAnd = BPF_ALU | BPF_AND | BPF_K;

// To us (not to others, nor what leaves), our version, our port. With SOCK_DGRAM a filter's
// bytes begin after the Ethernet header. BPF loads big-endian.
std::vector<sock_filter> towards(uint16_t port) {
  std::vector<sock_filter> code;
  must_be(code, BPF_B, ancillary(SKF_AD_PKTTYPE), 0xff, PACKET_HOST);
  must_be(code, BPF_B, 0, 0xe0, SLP_VERSION << 5);
  must_be(code, BPF_H, 4, 0xffff, __builtin_bswap16(port));
  return code;
}

std::vector<sock_filter> usual_filter(uint16_t port) {
  std::vector<sock_filter> code = towards(port);
  code.push_back({kReturn, 0, 0, UINT32_MAX});
  return code;
}

// Not to others, nor what leaves (PACKET_OTHERHOST and beyond); questions alone.
Status set_find_filter(int fd, uint16_t port) {
  sock_filter code[] = {
      {kLoadByte, 0, 0, ancillary(SKF_AD_PKTTYPE)},
      {kGreater, 5, 0, PACKET_MULTICAST},
      {kLoadByte, 0, 0, 0},
      {kEqual, 0, 3, SLP_VERSION << 5 | SLP_FIND},
      {kLoadHalf, 0, 0, 4},
      {kEqual, 2, 0, 0},
      {kEqual, 1, 0, __builtin_bswap16(port)},
      {kReturn, 0, 0, 0},
      {kReturn, 0, 0, UINT32_MAX},
  };
  return attach(fd, code);
}

// The same, whatever the socket is bound to later; and for good.
Status lock_filter(int fd, uint16_t port, int index) {
  sock_filter code[] = {
      {kLoadHalf, 0, 0, ancillary(SKF_AD_PROTOCOL)},
      {kEqual, 0, 9, SLP_ETHERTYPE},
      {kLoadWord, 0, 0, ancillary(SKF_AD_IFINDEX)},
      {kEqual, 0, 7, static_cast<uint32_t>(index)},
      {kLoadByte, 0, 0, ancillary(SKF_AD_PKTTYPE)},
      {kEqual, 0, 5, PACKET_HOST},
      {kLoadByte, 0, 0, 0},
      {kAnd, 0, 0, 0xe0},
      {kEqual, 0, 2, SLP_VERSION << 5},
      {kLoadHalf, 0, 0, 4},
      {kEqual, 1, 0, __builtin_bswap16(port)},
      {kReturn, 0, 0, 0},
      {kReturn, 0, 0, UINT32_MAX},
  };
  SLUICE_RETURN_IF_ERROR(attach(fd, code));
  int yes = 1;
  if (::setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &yes, sizeof(yes)) == 0) return Status();
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin, "this kernel locks no filters",
                errno);
}

// From now on frames come.
Status bind_to(int fd, const std::string& interface, int index) {
  sockaddr_ll own{};
  own.sll_family = AF_PACKET;
  own.sll_protocol = htons(SLP_ETHERTYPE);
  own.sll_ifindex = index;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0) return Status();
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                "no packet socket can be bound to " + interface, errno);
}

// An abstract Unix name per interface and port, that only one can have.
Result<Descriptor> claim_port(const std::string& interface, int index, uint16_t port) {
  Descriptor fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (fd.value() < 0) return no_descriptor(errno);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  int text = std::snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "sluice-l2-%d-%u", index,
                           unsigned{port});
  auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(text));
  if (::bind(fd.value(), reinterpret_cast<sockaddr*>(&name), length) == 0) return fd;
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                "port " + std::to_string(port) + " of " + interface +
                    " is taken; use port 0 for any that is free",
                errno);
}

uint16_t random_port() {
  uint16_t random;
  fill_random(std::as_writable_bytes(std::span(&random, 1)));
  return static_cast<uint16_t>(kFirstFreePort + random % (65536 - kFirstFreePort));
}

}  // namespace

Result<PortClaim> claim_any_port(const std::string& interface, int index, uint16_t port) {
  Result<Descriptor> claim = Status(Code::kInternal, Scope::kOperation, kOrigin);
  bool any = port == 0;
  for (int tries = 0; !claim.ok() && tries < (any ? kTriesForPort : 1); ++tries) {
    if (any) port = random_port();
    claim = claim_port(interface, index, port);
  }
  if (!claim.ok()) return claim.status();
  return PortClaim{std::move(claim).value(), port};
}

Result<PacketSocket> open_packet_socket(const std::string& interface, uint16_t port, bool locked) {
  SLUICE_TRY(Descriptor fd,
             packet_socket());  // first of all: what is missing is told before a port is taken
  SLUICE_TRY(int index, index_of(fd.value(), interface));
  SLUICE_TRY(PortClaim claimed, claim_any_port(interface, index, port));
  port = claimed.port;
  std::vector<sock_filter> usual = usual_filter(port);
  SLUICE_RETURN_IF_ERROR(locked ? lock_filter(fd.value(), port, index) : attach(fd.value(), usual));
  enlarge(fd.value());
  SLUICE_RETURN_IF_ERROR(bind_to(fd.value(), interface, index));
  return PacketSocket{std::move(fd), std::move(claimed.claim), port};
}

int guard_packet_socket(int fd, uint16_t port, std::span<const uint32_t> connections,
                        uint32_t one_of) {
  std::vector<sock_filter> code = guard_filter(towards(port), 0, connections, one_of);
  return attach_filter(fd, code);
}

int unguard_packet_socket(int fd, uint16_t port) {
  std::vector<sock_filter> code = usual_filter(port);
  return attach_filter(fd, code);
}

Result<Descriptor> open_find_socket(const std::string& interface, uint16_t port) {
  SLUICE_TRY(Descriptor fd, packet_socket());
  SLUICE_TRY(int index, index_of(fd.value(), interface));
  SLUICE_RETURN_IF_ERROR(set_find_filter(fd.value(), port));
  SLUICE_RETURN_IF_ERROR(bind_to(fd.value(), interface, index));
  return fd;
}

Status packet_sockets_allowed() { return packet_socket().status(); }

}  // namespace sluice::l2
