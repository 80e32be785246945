// Namespaces by the environment that benchmarks/wire.py sets (see wire.h).
#include "benchmarks/bare/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "benchmarks/bare/program.h"

namespace bare {
namespace {

const char* namespace_of(End end) {
  return std::getenv(end == End::kNear ? "SLUICE_WIRE_NEAR" : "SLUICE_WIRE_FAR");
}

}  // namespace

bool have_wire() {
  return namespace_of(End::kNear) != nullptr && namespace_of(End::kFar) != nullptr;
}

void enter(End end) {
  if (!have_wire()) {
    std::fprintf(stderr, "no wire: run this by benchmarks/wire.py --mtu 1500 -- PROGRAM\n");
    std::exit(kExitNothingToRunOn);
  }
  const int fd = open(namespace_of(end), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) die("entering a network namespace");
  close(fd);
}

uint32_t ipv4_of(End end) {
  if (!have_wire()) return htonl(INADDR_LOOPBACK);
  return htonl(0x0a090000 | (end == End::kNear ? 1u : 2u));
}

const char* interface_of(End end) { return end == End::kNear ? "near" : "far"; }

std::array<unsigned char, 6> mac_of(End end) {
  return {2, 0, 0, 0, 0, static_cast<unsigned char>(end == End::kNear ? 10 : 11)};
}

unsigned mtu_of(End end) {
  enter(end);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, interface_of(end));
  if (fd < 0 || ioctl(fd, SIOCGIFMTU, &request) != 0) die("SIOCGIFMTU");
  close(fd);
  return static_cast<unsigned>(request.ifr_mtu);
}

void enlarge(int socket) {
  const int bytes = 32 << 20;
  if (setsockopt(socket, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) != 0)
    setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  if (setsockopt(socket, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

}  // namespace bare
