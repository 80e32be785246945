#include <sluice/tcp/route.h>

#include <linux/ethtool.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

#include <sluice/base/descriptor.h>
#include <sluice/tcp/socket.h>

namespace sluice::tcp {
namespace {

struct Question {
  nlmsghdr header;
  rtmsg about;
  std::array<char, 2 * RTA_SPACE(sizeof(in6_addr))> addresses;
};

void append(Question& question, unsigned short type, const void* address, size_t length) {
  auto* at = reinterpret_cast<char*>(&question) + NLMSG_ALIGN(question.header.nlmsg_len);
  const rtattr head{.rta_len = static_cast<unsigned short>(RTA_LENGTH(length)), .rta_type = type};
  std::memcpy(at, &head, sizeof(head));
  std::memcpy(at + RTA_LENGTH(0), address, length);
  question.header.nlmsg_len =
      static_cast<uint32_t>(NLMSG_ALIGN(question.header.nlmsg_len) + RTA_SPACE(length));
}

Question ask_for(const SocketAddress& from, const SocketAddress& to) {
  Question question{};
  question.header.nlmsg_len = NLMSG_LENGTH(sizeof(rtmsg));
  question.header.nlmsg_type = RTM_GETROUTE;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  const in6_addr source = address_bytes(from), destination = address_bytes(to);
  if (IN6_IS_ADDR_V4MAPPED(&destination)) {
    question.about.rtm_family = AF_INET;
    question.about.rtm_dst_len = question.about.rtm_src_len = 32;
    append(question, RTA_DST, destination.s6_addr + 12, 4);
    append(question, RTA_SRC, source.s6_addr + 12, 4);
  } else {
    question.about.rtm_family = AF_INET6;
    question.about.rtm_dst_len = question.about.rtm_src_len = 128;
    append(question, RTA_DST, &destination, sizeof(destination));
    append(question, RTA_SRC, &source, sizeof(source));
  }
  return question;
}

// The number of the interface; 0: the kernel does not say.
int interface_towards(const SocketAddress& from, const SocketAddress& to) {
  if (to.family() == AF_INET6) {
    const uint32_t scope = reinterpret_cast<const sockaddr_in6*>(&to.storage)->sin6_scope_id;
    if (scope != 0) return static_cast<int>(scope);
  }
  const Question question = ask_for(from, to);
  Descriptor fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  alignas(nlmsghdr) std::array<char, 4096> room;
  if (!fd || ::send(fd.value(), &question, question.header.nlmsg_len, 0) < 0) return 0;
  const ssize_t came = ::recv(fd.value(), room.data(), room.size(), 0);
  const auto* answer = reinterpret_cast<const nlmsghdr*>(room.data());
  if (came <= 0 || !NLMSG_OK(answer, static_cast<unsigned>(came)) ||
      answer->nlmsg_type != RTM_NEWROUTE)
    return 0;
  int left = static_cast<int>(RTM_PAYLOAD(answer));
  for (const rtattr* each = RTM_RTA(static_cast<const rtmsg*>(NLMSG_DATA(answer)));
       RTA_OK(each, left); each = RTA_NEXT(each, left)) {
    if (each->rta_type != RTA_OIF || RTA_PAYLOAD(each) < sizeof(int)) continue;
    int number;
    std::memcpy(&number, RTA_DATA(each), sizeof(number));
    return number;
  }
  return 0;
}

}  // namespace

bool card_takes_pieces(int fd) {
  const int interface = interface_towards(local_address(fd), peer_address(fd));
  ethtool_value pieces{.cmd = ETHTOOL_GSG, .data = 0};
  ifreq request{};
  if (interface == 0 ||
      ::if_indextoname(static_cast<unsigned>(interface), request.ifr_name) == nullptr)
    return false;
  request.ifr_data = reinterpret_cast<char*>(&pieces);
  return ::ioctl(fd, SIOCETHTOOL, &request) == 0 && pieces.data != 0;
}

}  // namespace sluice::tcp
