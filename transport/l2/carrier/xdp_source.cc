#include <sluice/l2/carrier/xdp_source.h>

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include <sluice/base/settings.h>
#include <sluice/l2/carrier/interfaces.h>
#include <sluice/l2/carrier/socket_room.h>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/xdp";

Status failed(Code code, std::string why, int error = 0) {
  return Status(code, Scope::kOperation, kOrigin, std::move(why), error);
}

Result<Descriptor> xdp_socket() {
  Descriptor fd(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (fd.value() >= 0) return fd;
  if (errno == EPERM || errno == EACCES)
    return failed(Code::kAccessDenied, "no AF_XDP socket: " + xdp_capabilities_remedy(), errno);
  if (errno == EAFNOSUPPORT)
    return failed(Code::kUnsupported,
                  "this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS); use l2://INTERFACE",
                  errno);
  return no_descriptor(errno);
}

// Queues that frames may come by; 1 where the driver does not tell.
uint32_t receive_queues(int questions, const std::string& interface) {
  ethtool_channels channels{.cmd = ETHTOOL_GCHANNELS};
  ifreq request = request_for(interface);
  request.ifr_data = reinterpret_cast<char*>(&channels);
  if (::ioctl(questions, SIOCETHTOOL, &request) != 0) return 1;
  return std::max(1u, channels.rx_count + channels.combined_count);
}

// Frames without an IP header take one queue of most cards, but which is the card's affair.
Result<uint32_t> queue_of(int questions, const std::string& interface) {
  const uint32_t queues = receive_queues(questions, interface);
  if (auto asked = setting_text("SLUICE_L2_XDP_QUEUE")) {
    const auto queue = static_cast<uint32_t>(setting_number("SLUICE_L2_XDP_QUEUE").value_or(0));
    if (queue < queues) return queue;
    return failed(Code::kInvalidArgument, "SLUICE_L2_XDP_QUEUE is " + *asked + ", and " +
                                              interface + " has " + std::to_string(queues) +
                                              " receive queues; set one from 0 to " +
                                              std::to_string(queues - 1));
  }
  if (queues == 1) return 0u;
  return failed(Code::kUnsupported,
                interface + " has " + std::to_string(queues) +
                    " receive queues, and frames may come by any; sudo ethtool -L " + interface +
                    " combined 1, or steer EtherType 0x88b5 to one (ethtool -N " + interface +
                    " flow-type ether proto 0x88b5 action 0) and set SLUICE_L2_XDP_QUEUE=0");
}

// Which process listens at the name of the interface; 0: it does not say. Nobody accepts: each ask
// takes a place of the backlog for as long as the holder lives.
int holder_of(const sockaddr_un& name, socklen_t length) {
  Descriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ucred who{};
  socklen_t size = sizeof(who);
  bool told = ::connect(fd.value(), reinterpret_cast<const sockaddr*>(&name), length) == 0 &&
              ::getsockopt(fd.value(), SOL_SOCKET, SO_PEERCRED, &who, &size) == 0;
  return told ? who.pid : 0;
}

}  // namespace

Status xdp_is_taken(const std::string& interface, int process) {
  return failed(Code::kTryAgain,
                "process " + (process > 0 ? std::to_string(process) : std::string("(unknown)")) +
                    " uses AF_XDP at " + interface +
                    ", which one process can; end it, or use l2://" + interface);
}

Status announce_xdp(int claim) {
  return ::listen(claim, SOMAXCONN) == 0 ? Status() : no_descriptor(errno);
}

Status describe_xdp_place(int questions, XdpPlace& place) {
  const std::string& name = place.interface;
  ifreq request = request_for(name);
  if (name.size() >= IFNAMSIZ || ::ioctl(questions, SIOCGIFINDEX, &request) != 0)
    return failed(Code::kInvalidArgument,
                  "there is no interface '" + name + "' here; ip link shows those there are");
  place.index = request.ifr_ifindex;
  request = request_for(name);
  if (::ioctl(questions, SIOCGIFHWADDR, &request) != 0 ||
      (request.ifr_hwaddr.sa_family != ARPHRD_ETHER &&
       request.ifr_hwaddr.sa_family != ARPHRD_LOOPBACK))
    return failed(Code::kUnsupported,
                  name + " is no Ethernet: it has no MAC address; use l2://udp/ or tcp://");
  std::memcpy(place.mac.data(), request.ifr_hwaddr.sa_data, place.mac.size());
  request = request_for(name);
  if (::ioctl(questions, SIOCGIFMTU, &request) == 0) place.mtu = request.ifr_mtu;
  request = request_for(name);
  if (::ioctl(questions, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_UP) == 0)
    return failed(Code::kUnreachable,
                  "the interface " + name + " is down; sudo ip link set " + name + " up");
  return Status();
}

Result<std::unique_ptr<OwnXdp>> OwnXdp::attach(const std::string& interface) {
  auto made = std::make_unique<OwnXdp>();
  // What is missing is told first of all.
  SLUICE_TRY(made->base_, xdp_socket());
  made->claim_ = Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (made->claim_.value() < 0) return no_descriptor(errno);
  XdpPlace& place = made->place_;
  place.interface = interface;
  place.may_be_generic = setting_is("SLUICE_L2_XDP_GENERIC", "1");
  SLUICE_RETURN_IF_ERROR(describe_xdp_place(made->questions(), place));
  SLUICE_TRY(place.queue, queue_of(made->questions(), interface));
  SLUICE_RETURN_IF_ERROR(made->claim_queue());
  SLUICE_TRY(XdpProgram program, XdpProgram::attach(place));
  made->program_.emplace(std::move(program));
  return made;
}

// An abstract Unix name, that only one process can have.
Status OwnXdp::claim_queue() {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  int text = std::snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "sluice-xdp-%d-%u",
                           place_.index, place_.queue);
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(text));
  if (::bind(claim_.value(), reinterpret_cast<sockaddr*>(&name), length) == 0)
    return announce_xdp(claim_.value());
  return xdp_is_taken(place_.interface, holder_of(name, length));
}

Status OwnXdp::keep_here(int socket) const {
  const std::string& name = place_.interface;
  if (!confined_ || ::setsockopt(socket, SOL_SOCKET, SO_BINDTODEVICE, name.c_str(),
                                 static_cast<socklen_t>(name.size() + 1)) == 0)
    return Status();
  return failed(Code::kUnsupported,
                "an AF_XDP socket cannot be kept at " + name +
                    "; see that it is there (ip link show " + name + ")",
                errno);
}

Status OwnXdp::confine() {
  confined_ = true;
  return keep_here(base_.value());
}

Result<XdpSockets> OwnXdp::sockets(uint32_t) {
  XdpSockets made;
  SLUICE_TRY(made.receive, xdp_socket());
  SLUICE_TRY(made.send, xdp_socket());
  SLUICE_RETURN_IF_ERROR(keep_here(made.receive.value()));
  SLUICE_RETURN_IF_ERROR(keep_here(made.send.value()));
  enlarge(made.send.value());
  return made;
}

Result<PortClaim> OwnXdp::open(uint32_t, int receive, uint16_t port) {
  SLUICE_TRY(PortClaim claimed, claim_any_port(place_.interface, place_.index, port));
  SLUICE_RETURN_IF_ERROR(program_->direct(claimed.port, receive));
  return claimed;
}

}  // namespace sluice::l2
