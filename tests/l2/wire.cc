#include "tests/l2/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

namespace sluice::test {
namespace {

constexpr int kEtherType = 0x88b5;
constexpr size_t kMostBytes = 65536 + 64;
constexpr int kSocketBytes = 32 << 20;

// The kernel starts an interface's queue by itself once both ends of its cable are up. What is sent
// before that is lost.
bool comes_up(const std::string& interface) {
  constexpr int kLooks = 1000;  // of some 5 ms each
  const std::string look =
      "ip -o link show dev " + interface + " | grep -v 'qdisc noop ' | grep -q 'state UP'";
  for (int i = 0; i < kLooks; ++i) {
    if (run(look)) return true;
  }
  return false;
}

}  // namespace

bool run(const std::string& command) {
  return std::system(("PATH=$PATH:/usr/sbin:/sbin; " + command + " 2>/dev/null").c_str()) == 0;
}

bool own_network() {
  static const bool there = [] {
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
    int fd = ::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    ::close(fd);
    return run("ip link set lo up");
  }();
  return there;
}

std::string mac_of_number(int number) {
  char text[18];
  std::snprintf(text, sizeof(text), "02:00:00:00:%02x:%02x", number >> 8 & 255, number & 255);
  return text;
}

Mac mac_number(int number) {
  return {2, 0, 0, 0, static_cast<uint8_t>(number >> 8), static_cast<uint8_t>(number)};
}

bool add_cable(const std::string& left, int left_number, const std::string& right, int right_number,
               int mtu) {
  std::string size = " mtu " + std::to_string(mtu);
  return run("ip link add " + left + " address " + mac_of_number(left_number) + size +
             " type veth peer name " + right + " address " + mac_of_number(right_number) + size) &&
         set_up(left, true) && set_up(right, true) && comes_up(left) && comes_up(right);
}

void remove_cable(const std::string& either_end) { run("ip link del " + either_end); }
bool set_mtu(const std::string& interface, int mtu) {
  return run("ip link set dev " + interface + " mtu " + std::to_string(mtu));
}
bool set_up(const std::string& interface, bool up) {
  return run("ip link set dev " + interface + (up ? " up" : " down"));
}

OtherNode::OtherNode() : here_(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) {
  if (here_ < 0 || ::unshare(CLONE_NEWNET) != 0) return;
  there_ = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (::setns(here_, CLONE_NEWNET) != 0) std::abort();
}

OtherNode::~OtherNode() {
  for (int fd : {here_, there_}) {
    if (fd >= 0) ::close(fd);
  }
}

bool OtherNode::take(const std::string& interface) const {
  std::string there = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(there_);
  if (there_ < 0 || !run("ip link set dev " + interface + " netns " + there)) return false;
  bool up = false;
  inside([&] { up = set_up("lo", true) && set_up(interface, true) && comes_up(interface); });
  return up;
}

bool OtherNode::run_inside(const std::string& command) const {
  bool done = false;
  inside([&] { done = run(command); });
  return done;
}

void OtherNode::inside(const std::function<void()>& what) const {
  if (::setns(there_, CLONE_NEWNET) != 0) std::abort();
  what();
  if (::setns(here_, CLONE_NEWNET) != 0) std::abort();
}

const OtherNode* far_node() {
  static const std::unique_ptr<OtherNode> node = []() -> std::unique_ptr<OtherNode> {
    if (!own_network() || !add_cable("left", 10, "right", 11)) return nullptr;
    auto made = std::make_unique<OtherNode>();
    return made->take("right") && comes_up("left") ? std::move(made) : nullptr;
  }();
  return node.get();
}

RawWire::RawWire(const std::string& interface)
    : fd_(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), room_(kMostBytes) {
  int yes = 1, bytes = kSocketBytes;
  ::setsockopt(fd_, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof(yes));
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes));
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes));
  sockaddr_ll own{};
  own.sll_family = AF_PACKET;
  own.sll_protocol = htons(kEtherType);
  own.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
  if (own.sll_ifindex != 0 && ::bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0)
    return;
  ::close(fd_);
  fd_ = -1;
}

RawWire::~RawWire() {
  if (fd_ >= 0) ::close(fd_);
}

bool RawWire::send(std::span<const uint8_t> frame) {
  return ::send(fd_, frame.data(), frame.size(), MSG_DONTWAIT) ==
         static_cast<ssize_t>(frame.size());
}

std::span<const uint8_t> RawWire::receive() {
  ssize_t bytes = ::recv(fd_, room_.data(), room_.size(), MSG_DONTWAIT);
  return {room_.data(), bytes > 0 ? static_cast<size_t>(bytes) : 0};
}

uint64_t RawWire::missed() {
  tpacket_stats statistics{};
  socklen_t length = sizeof(statistics);
  if (::getsockopt(fd_, SOL_PACKET, PACKET_STATISTICS, &statistics, &length) == 0)
    missed_ += statistics.tp_drops;
  return missed_;
}

}  // namespace sluice::test
