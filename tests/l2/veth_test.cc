// Real frames between the two ends of a veth pair: no IP address anywhere. Whole, with
// frames dropped by the kernel's filter, with the cable pulled, and what is refused.
#include <catch2/catch.hpp>

#include <linux/capability.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include <sluice/api/context.h>
#include <sluice/base/counters.h>
#include <sluice/select/open.h>

#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/in_child.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

// The cable lasts as long as the process: each case leaves it as it found it.
bool have_wire() {
  static const bool there = own_network() && add_cable("left", 10, "right", 11);
  return there;
}

#define NEEDS_WIRE() \
  if (!have_wire()) return skip("netns", kNoNetwork)

TEST_CASE("messages and one-sided access cross at MTU 1280, 1400, 1500, 9000 and 65000", "[l2]") {
  NEEDS_WIRE();
  for (int mtu : {1280, 1400, 1500, 9000, 65000}) {
    NothingLeftBehind audit;
    INFO("MTU " << mtu);
    REQUIRE((set_mtu("left", mtu) && set_mtu("right", mtu)));
    Two two;
    CHECK(two.listener.address().starts_with("l2://right/02:00:00:00:00:0b:"));
    two.exchange_everything(Path::kPacket);
    two.say_goodbye();
  }
  REQUIRE((set_mtu("left", 1500) && set_mtu("right", 1500)));
}

TEST_CASE("what the network drops is sent again, and everything arrives once", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  // One frame in twenty, each way: BPF's random number against a share of 2^32.
  bool dropping = true;
  for (const char* end : {"left", "right"}) {
    dropping =
        dropping && run(std::string("tc qdisc add dev ") + end + " clsact") &&
        run(std::string("tc filter add dev ") + end +
            " ingress bpf da bytecode '4,32 0 0 4294963256,53 1 0 214748365,6 0 0 2,6 0 0 0'");
  }
  if (!dropping) return skip("tc", "no classic BPF filter by tc here");
  {
    Two two;
    two.exchange_everything(Path::kPacket);
    two.exchange_everything(Path::kPacket);
  }
  CHECK(run("tc qdisc del dev left clsact"));
  CHECK(run("tc qdisc del dev right clsact"));
}

TEST_CASE("of a busy port epoll is told nothing, until its thread is about to sleep", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Two two;
  for (int i = 0; i < 100; ++i) two.exchange_messages(64);
  auto told = [&](int milliseconds) {
    pollfd interest{two.far->fd(), POLLIN, 0};
    return ::poll(&interest, 1, milliseconds) == 1;
  };
  Box sent, got;
  auto send = [&] {
    REQUIRE(
        two.client.send(9, filled(*two.near, 64, 9).freeze(), {.sink = &sent, .deadline = soon()})
            .ok());
  };
  for (int i = 0; i < 2; ++i)
    REQUIRE(two.server
                .receive({.tag = 9}, two.far->allocate({64}, uint8).value(),
                         {.sink = &got, .deadline = soon()})
                .ok());
  send();
  CHECK_FALSE(told(0));
  // Asleep, and no timer is near. Few looks: after many in vain the port would be epoll's anyway.
  bool asleep = false;
  for (int looks = 0; looks < 1000 && !asleep; ++looks) {
    asleep = two.far->prepare_to_sleep() && !told(20);
    if (!asleep) (void)two.far->progress();
  }
  REQUIRE(asleep);
  send();
  CHECK(told(10'000));
  REQUIRE(two.until([&] { return got.all.size() == 2 && sent.all.size() == 2; }));
}

TEST_CASE("a pulled cable ends the connection in its time, with what was under way", "[l2]") {
  NEEDS_WIRE();
  NothingLeftBehind audit;
  Two two;
  Box box;
  REQUIRE(set_up("right", false));
  Tensor tensor = filled(*two.near, 1 << 20, 3).freeze();
  REQUIRE(two.client
              .send(5, tensor,
                    {.sink = &box,
                     .deadline = after(now(), std::chrono::seconds(60)),
                     .level = Level::kPlaced})
              .ok());
  REQUIRE(two.until([&] {
    return two.client.state() == EndpointState::kClosed &&
           two.server.state() == EndpointState::kClosed;
  }));
  REQUIRE(box.all.size() == 1);
  CHECK(box.all[0].status == Code::kOutcomeUnknown);  // it had been offered
  CHECK(box.all[0].status.detail().find("has no carrier") != std::string_view::npos);
  REQUIRE(set_up("right", true));
}

TEST_CASE("an interface that is not there, or another's MAC address, is refused with what there is",
          "[l2]") {
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
  return listening.status().detail().find("setcap cap_net_raw+ep /") != std::string_view::npos ? 0
                                                                                               : 6;
}

TEST_CASE("without CAP_NET_RAW the error names it and the command that grants it", "[l2]") {
  NEEDS_WIRE();
  CHECK(in_child(without_the_capability) == 0);
}

}  // namespace
}  // namespace sluice::test
