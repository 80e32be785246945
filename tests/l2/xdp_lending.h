// A broker that lends AF_XDP at "left", processes that borrow from it, and clients that talk to it
// by themselves. Knows no cases.
#ifndef SLUICE_TESTS_L2_XDP_LENDING_H_
#define SLUICE_TESTS_L2_XDP_LENDING_H_

#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/clock.h>
#include <sluice/base/descriptor.h>
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

// What listens in a broker's place and says what it is told to, as long as this lives.
class PretendedBroker {
 public:
  // To the n-th ask; one client after the other, until it hangs up. kCancelled: nothing, the client
  // may wait.
  explicit PretendedBroker(const std::function<Result<l2::Loan>(int)>& answer) {
    char name[] = "/tmp/sluice-broker-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    REQUIRE(::chmod(name, 0755) == 0);
    folder_ = name;
    path_ = folder_ + "/socket";
    const sockaddr_un address = *l2::broker_address(path_);
    Descriptor fd = l2::broker_socket();
    REQUIRE(::bind(fd.value(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(::chmod(path_.c_str(), 0666) == 0);
    REQUIRE(::listen(fd.value(), 8) == 0);
    process_ = start([&] {
      std::vector<Descriptor> waiting;
      for (int n = 0;;) {
        Descriptor client(::accept4(fd.value(), nullptr, nullptr, SOCK_CLOEXEC));
        l2::BrokerRequest request;
        while (client.value() >= 0 &&
               ::recv(client.value(), &request, sizeof(request), 0) == sizeof(request)) {
          const Result<l2::Loan> loan = answer(n++);
          if (loan.code() == Code::kCancelled)
            waiting.push_back(std::move(client));
          else if (!l2::send_answer(client.value(), loan))
            return 2;
        }
      }
    });
    ::setenv("SLUICE_L2_BROKER", path_.c_str(), 1);
  }
  ~PretendedBroker() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    ::unsetenv("SLUICE_L2_BROKER");
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }
  PretendedBroker(const PretendedBroker&) = delete;
  PretendedBroker& operator=(const PretendedBroker&) = delete;

 private:
  std::string folder_, path_;
  pid_t process_;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_L2_XDP_LENDING_H_
