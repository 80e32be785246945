// What the first RDMA connection of a process opens for good (librdmacm keeps each device)
// is open before the first audit. Frames of l2 stay in a network of the test's own; those in
// UDP over IPv4 as well where that may be had, for the MTU of an Ethernet, so that datagrams are
// cut and joined. Over IPv6 they take the loopback device as it is, with datagrams of 64 KiB.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "tests/contract/pair.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sluice/select/open.h>
#include <sluice/select/paths.h>

#include "tests/module/wire.h"

namespace sluice::test {
namespace {

bool own_network() {
  if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  bool up = ::ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  up = up && ::ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  // Frames as a network has them, not of 64 KiB.
  request.ifr_mtu = 1500;
  up = up && ::ioctl(fd, SIOCSIFMTU, &request) == 0;
  if (fd >= 0) ::close(fd);
  return up;
}

bool have_ipv6() {
  int fd = ::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{.sin6_family = AF_INET6,
                       .sin6_port = 0,
                       .sin6_flowinfo = 0,
                       .sin6_addr = IN6ADDR_LOOPBACK_INIT,
                       .sin6_scope_id = 0};
  bool have = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  if (fd >= 0) ::close(fd);
  return have;
}

// An interface whose frames come back by a switch: both ends of every connection are at it.
bool network_with_switch() {
  // A kernel that was built for tests has bridges built in.
  const char* commands =
      "(/sbin/modprobe bridge 2>/dev/null || true) && ip link add end0 type veth peer name port0 "
      "&& ip link add switch0 type bridge && "
      "ip link set port0 master switch0 && ip link set port0 type bridge_slave hairpin on && "
      "ip link set end0 up && ip link set port0 up && ip link set switch0 up";
  return own_network() && std::system(commands) == 0;
}

void module_network() {
  static auto* module = new module_test::Module();  // goes with the guest
  (void)module;
  if (network_with_switch()) return;
  std::fprintf(stderr, "no network for the kernel module: a guest of the lab has one\n");
  std::_Exit(1);
}

// None of the cases can run: counted as one that was skipped.
[[noreturn]] void skip_all(const char* why, const char* feature = "netns") {
  const char* required = std::getenv("SLUICE_REQUIRE");
  bool failure = required != nullptr && std::strstr(required, feature) != nullptr;
  std::fprintf(stderr, "%s %s: %s: %s\nsluice-skips 1\n", failure ? "REQUIRED" : "SKIPPED", feature,
               why, std::strerror(errno));
  std::_Exit(failure ? 1 : 0);
}

struct Prepare final : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testRunStarting(const Catch::TestRunInfo&) override {
    if (path_under_test() == "l2" && !own_network())
      skip_all("no network of our own with packet sockets");
    if (path_under_test() == "xdp" &&
        (!find_path("xdp")->explain().usable || !network_with_switch()))
      skip_all("no AF_XDP, or no network of our own with a switch", "xdp");
    if (path_is_module()) module_network();
    if (path_under_test() == "udp") (void)own_network();
    if (path_under_test() == "udp6" && !have_ipv6()) skip_all("no address ::1");
    if (!path_has_device()) return;
    (void)fake_device_under_test();
    auto near = open_context(), far = open_context();
    if (!near.ok() || !far.ok()) return;
    auto listener = (*far)->listen(fresh_address());
    if (listener.ok()) (void)connect_to(**near, **far, listener->address());
  }
};
CATCH_REGISTER_LISTENER(Prepare)

}  // namespace
}  // namespace sluice::test
