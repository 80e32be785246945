#include <sluice/l2/carrier/qdisc.h>

#include <errno.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string_view>

#include <sluice/base/descriptor.h>
#include <sluice/base/settings.h>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/qdisc";
// What only puts frames in order, or shares the interface among flows.
constexpr std::array<std::string_view, 10> kPlain = {
    "noqueue", "pfifo_fast", "pfifo", "bfifo", "mq", "mqprio", "prio", "fq", "fq_codel", "ingress"};

// One message of the dump; false: it was the last.
bool take(const nlmsghdr& message, int interface_index, std::vector<std::string>& kinds) {
  if (message.nlmsg_type == NLMSG_DONE || message.nlmsg_type == NLMSG_ERROR) return false;
  if (message.nlmsg_type != RTM_NEWQDISC || message.nlmsg_len < NLMSG_LENGTH(sizeof(tcmsg)))
    return true;
  const auto* about = static_cast<const tcmsg*>(NLMSG_DATA(&message));
  if (about->tcm_ifindex != interface_index) return true;
  int left = static_cast<int>(message.nlmsg_len - NLMSG_LENGTH(sizeof(tcmsg)));
  for (const rtattr* attribute = TCA_RTA(about); RTA_OK(attribute, left);
       attribute = RTA_NEXT(attribute, left)) {
    if (attribute->rta_type != TCA_KIND) continue;
    std::string_view kind(static_cast<const char*>(RTA_DATA(attribute)), RTA_PAYLOAD(attribute));
    kinds.emplace_back(kind.substr(0, kind.find('\0')));
  }
  return true;
}

}  // namespace

std::vector<std::string> qdiscs_of(int interface_index) {
  Descriptor fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  struct {
    nlmsghdr header;
    tcmsg about;
  } ask{};
  ask.header = {.nlmsg_len = sizeof(ask),
                .nlmsg_type = RTM_GETQDISC,
                .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
                .nlmsg_seq = 1,
                .nlmsg_pid = 0};
  ask.about.tcm_ifindex = interface_index;
  if (fd.value() < 0 ||
      ::send(fd.value(), &ask, sizeof(ask), 0) != static_cast<ssize_t>(sizeof(ask)))
    return {};
  std::vector<std::string> kinds;
  alignas(nlmsghdr) std::array<char, 32768> room;
  for (bool more = true; more;) {
    ssize_t came = ::recv(fd.value(), room.data(), room.size(), MSG_TRUNC);
    if (came <= 0 || came > static_cast<ssize_t>(room.size())) return {};
    auto left = static_cast<unsigned>(came);
    for (auto* message = reinterpret_cast<nlmsghdr*>(room.data()); more && NLMSG_OK(message, left);
         message = NLMSG_NEXT(message, left)) {
      more = take(*message, interface_index, kinds);
    }
  }
  return kinds;
}

std::string shaping_qdisc(const std::vector<std::string>& kinds) {
  auto plain = [](const std::string& kind) {
    return std::find(kPlain.begin(), kPlain.end(), kind) != kPlain.end();
  };
  auto found = std::find_if_not(kinds.begin(), kinds.end(), plain);
  return found == kinds.end() ? std::string() : *found;
}

bool qdisc_bypass_wanted() { return setting_is("SLUICE_L2_QDISC_BYPASS", "1"); }

Status bypass_qdisc(int socket, const std::string& interface, int interface_index) {
  auto refused = [&](std::string why, int error = 0) {
    return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                  "frames go through the queueing discipline of " + interface + ": " + why, error);
  };
  std::vector<std::string> kinds = qdiscs_of(interface_index);
  if (kinds.empty()) return refused("the kernel does not tell which it is");
  if (std::string shaping = shaping_qdisc(kinds); !shaping.empty())
    return refused("'" + shaping + "' shapes what leaves; see tc qdisc show dev " + interface);
  int yes = 1;
  if (::setsockopt(socket, SOL_PACKET, PACKET_QDISC_BYPASS, &yes, sizeof(yes)) != 0)
    return refused("this kernel does not let them go around it", errno);
  return Status();
}

}  // namespace sluice::l2
