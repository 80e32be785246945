// A broker that lends AF_XDP at "left", processes that borrow from it, and clients that talk to it
// by themselves. Knows no cases.
#ifndef SLUICE_TESTS_L2_XDP_LENDING_H_
#define SLUICE_TESTS_L2_XDP_LENDING_H_

#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include <sluice/base/clock.h>
#include <sluice/l2/carrier/broker.h>
#include <sluice/l2/carrier/broker_wire.h>

#include "tests/l2/lending.h"
#include "tests/l2/two.h"
#include "tests/l2/xdp_cable.h"

#define NEEDS_BORROWERS() \
  NEEDS_XDP();            \
  if (!can_become()) return skip("root", "this process cannot become another user")

namespace sluice::test {

inline l2::BrokerOptions lends_xdp() {
  l2::BrokerOptions options;
  options.xdp = true;
  return options;
}

// All but this one.
inline bool keep_capability(uint32_t capability) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  data[capability / 32].effective = data[capability / 32].permitted = 1u << capability % 32;
  return ::syscall(SYS_capset, &header, data) == 0;
}

// Without any capability, and with room for the memory of frames, which counts for the user. Where
// this process may not raise the limit, nobody keeps CAP_IPC_LOCK.
inline bool become_nobody(rlim_t locked = rlim_t{256} << 20) {
  const rlimit limit{locked, locked};
  const bool limited = ::setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
  if (!limited && ::prctl(PR_SET_KEEPCAPS, 1) != 0) return false;
  return become(kNobody) && (limited || keep_capability(CAP_IPC_LOCK)) &&
         ::socket(AF_XDP, SOCK_RAW, 0) < 0 && errno == EPERM;
}

// A process that is done with it may still be on its way out.
inline bool gone() {
  const Instant limit = soon();
  while (!program_at("left").empty() && now() < limit) ::poll(nullptr, 0, 1);
  return program_at("left").empty();
}

inline l2::BrokerRequest about_left(l2::Ask what) {
  l2::BrokerRequest request{.what = what};
  std::strcpy(request.interface, "left");
  return request;
}
inline l2::BrokerRequest numbered(uint32_t number, uint16_t port) {
  l2::BrokerRequest request{.what = l2::Ask::kXdpOpen, .port = port};
  request.number = number;
  return request;
}
inline l2::BrokerRequest sockets_numbered(uint32_t number) {
  l2::BrokerRequest request{.what = l2::Ask::kXdpSockets};
  request.number = number;
  return request;
}
inline l2::BrokerConnection client() {
  return std::move(l2::BrokerConnection::to("left", 20s)).value();
}

}  // namespace sluice::test

#endif  // SLUICE_TESTS_L2_XDP_LENDING_H_
