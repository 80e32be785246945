// Real frames between the two ends of a veth pair: no IP address anywhere. Whole, with
// frames dropped by the kernel's filter, with the cable pulled, and what is refused.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>

#include <linux/capability.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include <sluice/api/context.h>
#include <sluice/base/counters.h>
#include <sluice/select/open.h>

#include "tests/l2/crossing.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

bool have_wire = false;

struct Prepare final : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testRunStarting(const Catch::TestRunInfo&) override {
    have_wire = (::unshare(CLONE_NEWNET) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) &&
                run("ip link add left address 02:00:00:00:00:0a type veth peer name right address 02:00:00:00:00:0b") &&
                run("ip link set left up") && run("ip link set right up") && run("ip link set lo up");
  }
};
CATCH_REGISTER_LISTENER(Prepare)

#define NEEDS_WIRE() \
  if (!have_wire) return skip("netns", "no network namespace with a veth pair: unshare or ip is refused")

struct Two final : Crossing {
  Two() {
    listen("l2://right:0");
    std::string address = listener.address();
    REQUIRE(address.starts_with("l2://right/02:00:00:00:00:0b:"));
    connect("l2://left" + address.substr(std::strlen("l2://right")));
  }
};

TEST_CASE("messages and one-sided access cross at MTU 1500, 9000 and 65000", "[l2]") {
  NEEDS_WIRE();
  for (const char* mtu : {"1500", "9000", "65000"}) {
    NothingLeftBehind audit;
    INFO("MTU " << mtu);
    REQUIRE(run(std::string("ip link set left mtu ") + mtu));
    REQUIRE(run(std::string("ip link set right mtu ") + mtu));
    Two two;
    everything(two, Path::kPacket);
    CHECK(two.client.close(soon()).ok());
    CHECK(two.until([&] { return two.server.state() == EndpointState::kClosed; }));
  }
  REQUIRE(run("ip link set left mtu 1500"));
  REQUIRE(run("ip link set right mtu 1500"));
}

TEST_CASE("what the network drops is sent again, and everything arrives once", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  // One frame in twenty, each way: BPF's random number against a share of 2^32.
  bool dropping = true;
  for (const char* end : {"left", "right"}) {
    dropping = dropping && run(std::string("tc qdisc add dev ") + end + " clsact") &&
               run(std::string("tc filter add dev ") + end + " ingress bpf da bytecode '4,32 0 0 4294963256,53 1 0 214748365,6 0 0 2,6 0 0 0'");
  }
  if (!dropping) return skip("tc", "no classic BPF filter by tc here");
  {
    Two two;
    everything(two, Path::kPacket);
    everything(two, Path::kPacket);
  }
  CHECK(run("tc qdisc del dev left clsact"));
  CHECK(run("tc qdisc del dev right clsact"));
}

TEST_CASE("a pulled cable ends the connection in its time, with what was under way", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Two two;
  Box box;
  REQUIRE(run("ip link set right down"));
  Tensor tensor = filled(*two.near, 1 << 20, 3).freeze();
  REQUIRE(two.client.send(5, tensor, {.sink = &box, .deadline = after(now(), std::chrono::seconds(60)), .level = Level::kPlaced}).ok());
  REQUIRE(two.until([&] { return two.client.state() == EndpointState::kClosed && two.server.state() == EndpointState::kClosed; }));
  REQUIRE(box.all.size() == 1);
  CHECK(box.all[0].status == Code::kOutcomeUnknown);  // it had been offered
  CHECK(box.all[0].status.detail().find("has no carrier") != std::string_view::npos);
  REQUIRE(run("ip link set right up"));
}

TEST_CASE("an interface that is not there, or another's MAC address, is refused with what there is", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  auto context = std::move(open_context({})).value();
  for (const char* address : {"l2://nowhere:0", "l2://an-interface-with-a-long-name:0"}) {
    auto listening = context->listen(address);
    REQUIRE(listening.code() == Code::kInvalidArgument);
    CHECK(listening.status().detail().find("left") != std::string_view::npos);
  }
  CHECK(context->connect("l2://nowhere/02:00:00:00:00:0b:7").code() == Code::kInvalidArgument);
  CHECK(context->connect("l2://left:7").code() == Code::kInvalidArgument);
  auto other = context->listen("l2://left/02:00:00:00:00:0b:7");
  CHECK(other.code() == Code::kInvalidArgument);
  CHECK(other.status().detail().find("02:00:00:00:00:0a") != std::string_view::npos);
  CHECK(context->listen("l2://left/02:00:00:00:00:0a:7").ok());
}

// What a child without CAP_NET_RAW finds: 0 as it should be.
int without_the_capability() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (::syscall(SYS_capget, &header, data) != 0) return 2;
  data[0].effective &= ~(1u << CAP_NET_RAW);
  data[0].permitted &= ~(1u << CAP_NET_RAW);
  if (::syscall(SYS_capset, &header, data) != 0) return 3;
  auto context = open_context({});
  if (!context.ok()) return 4;
  auto listening = (*context)->listen("l2://left:0");
  if (listening.code() != Code::kAccessDenied) return 5;
  return listening.status().detail().find("setcap cap_net_raw+ep /") != std::string_view::npos ? 0 : 6;
}

TEST_CASE("without CAP_NET_RAW the error names it and the command that grants it", "[l2]") {
  NEEDS_WIRE();
  pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) std::_Exit(without_the_capability());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace sluice::test
