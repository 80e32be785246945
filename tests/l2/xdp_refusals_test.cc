// What AF_XDP refuses, with cause and remedy, and that nothing is left behind by a process that
// goes without a word.
#include <catch2/catch.hpp>

#include <linux/capability.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include <sluice/api/context.h>
#include <sluice/l2/carrier/xdp_program.h>
#include <sluice/l2/carrier/xdp_source.h>
#include <sluice/select/open.h>

#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/l2/xdp_cable.h"
#include "tests/support/audit.h"
#include "tests/support/in_child.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

// A process that was killed a moment ago may still be on its way out.
bool gone(const char* interface) {
  const Instant limit = soon();
  while (!program_at(interface).empty() && now() < limit) ::poll(nullptr, 0, 1);
  return program_at(interface).empty();
}

bool tried_until_it_works(const std::string& command) {
  const Instant limit = soon();
  bool done = run(command);
  for (; !done && now() < limit; done = run(command)) ::poll(nullptr, 0, 1);
  return done;
}

Result<Listener> listen_at_left(std::unique_ptr<Context>& context) {
  context = std::move(open_context({})).value();
  return context->listen("l2://xdp/left:0");
}

void check_refused(const Status& status, Code code, std::initializer_list<const char*> words) {
  INFO(status.to_string());
  CHECK(status.code() == code);
  for (const char* word : words) CHECK(status.detail().find(word) != std::string_view::npos);
}

TEST_CASE("another program at the interface is named, and left there", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  l2::XdpPlace place{.interface = "left", .index = static_cast<int>(::if_nametoindex("left"))};
  {
    auto theirs = l2::XdpProgram::attach(place);
    REQUIRE(theirs.ok());
    std::unique_ptr<Context> context;
    check_refused(listen_at_left(context).status(), Code::kTryAgain,
                  {"left has the XDP program 'sluice_slp' (id ", "ip link set left xdp off"});
    CHECK_FALSE(program_at("left").empty());
    CHECK(context->listen("l2://left:0").ok());
  }
  CHECK(program_at("left").empty());
}

// A process that has a port until its standard input ends, or it is killed.
struct OtherProcess {
  OtherProcess() {
    int up[2];
    REQUIRE(::pipe(up) == 0);
    child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::unique_ptr<Context> context;
      auto listening = listen_at_left(context);
      char sign = listening.ok() ? 1 : 0;
      (void)!::write(up[1], &sign, 1);
      for (;;) ::pause();
    }
    char sign = 0;
    REQUIRE(::read(up[0], &sign, 1) == 1);
    REQUIRE(sign == 1);
    ::close(up[0]);
    ::close(up[1]);
  }
  ~OtherProcess() { kill(); }
  void kill() {
    if (child <= 0) return;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    child = -1;
  }
  pid_t child = -1;
};

TEST_CASE("however many ask, each is told whose the interface is", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  auto holder = l2::OwnXdp::attach("left");
  REQUIRE(holder.ok());
  for (int i = 0; i < 50; ++i) {
    const Status taken = l2::OwnXdp::attach("left").status();
    INFO(i << ": " << taken.to_string());
    REQUIRE(taken.detail().find("process " + std::to_string(::getpid())) != std::string_view::npos);
  }
}

TEST_CASE("another process of ours is named, and leaves nothing when it is killed", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  OtherProcess other;
  std::unique_ptr<Context> context;
  check_refused(
      listen_at_left(context).status(), Code::kTryAgain,
      {("process " + std::to_string(other.child)).c_str(), "one process can", "use l2://left"});
  CHECK_FALSE(program_at("left").empty());
  other.kill();
  CHECK(gone("left"));
  auto listening = listen_at_left(context);
  INFO(listening.status().to_string());
  CHECK(listening.ok());
}

TEST_CASE("interfaces without XDP, that are down, not there, or with too large an MTU, are refused",
          "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  auto context = std::move(open_context({})).value();
  auto refused = [&](const char* address, Code code, std::initializer_list<const char*> words) {
    INFO(address);
    check_refused(context->listen(address).status(), code, words);
  };
  refused("l2://xdp/nowhere:0", Code::kInvalidArgument, {"no interface 'nowhere'"});
  refused("l2://xdp/an-interface-with-a-long-name:0", Code::kInvalidArgument, {"no interface"});
  REQUIRE(run("ip link set lo up"));
  refused("l2://xdp/lo:0", Code::kUnsupported, {"has no XDP", "SLUICE_L2_XDP_GENERIC=1"});
  REQUIRE(set_both_mtus(9000));
  refused("l2://xdp/left:0", Code::kUnsupported, {"the MTU of left (9000)", "mtu 3000"});
  REQUIRE(set_both_mtus(1500));
  REQUIRE(set_up("left", false));
  refused("l2://xdp/left:0", Code::kUnreachable, {"left is down", "ip link set left up"});
  REQUIRE(set_up("left", true));
  {
    Setting queue("SLUICE_L2_XDP_QUEUE", "3");
    refused("l2://xdp/left:0", Code::kInvalidArgument, {"SLUICE_L2_XDP_QUEUE is 3", "from 0 to 0"});
  }
  REQUIRE(run("ethtool -L left rx 2 tx 2"));
  refused("l2://xdp/left:0", Code::kUnsupported,
          {"2 receive queues", "ethtool -L left combined 1"});
  {
    Setting queue("SLUICE_L2_XDP_QUEUE", "1");
    CHECK(context->listen("l2://xdp/left:0").ok());
  }
  // The kernel takes the memory of the last socket away a little later.
  REQUIRE(tried_until_it_works("ethtool -L left rx 1 tx 1"));
  auto elsewhere = context->listen("l2://xdp/left/02:00:00:00:00:0b:7");
  check_refused(elsewhere.status(), Code::kInvalidArgument, {"02:00:00:00:00:0a"});
  CHECK(context->listen("l2://xdp/left/02:00:00:00:00:0a:7").ok());
  CHECK(program_at("left").empty());
}

template <uint32_t kFirst, uint32_t... kMore>
bool give_up_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  for (uint32_t capability : {kFirst, kMore...}) {
    data[capability / 32].effective &= ~(1u << capability % 32);
    data[capability / 32].permitted &= ~(1u << capability % 32);
  }
  return ::syscall(SYS_capset, &header, data) == 0;
}

int refused_as(Code code, const char* word) {
  std::unique_ptr<Context> context;
  auto listening = listen_at_left(context);
  if (listening.code() != code) return 5;
  return listening.status().detail().find(word) != std::string_view::npos ? 0 : 6;
}

TEST_CASE("missing capabilities and memory are told with the remedy", "[l2][xdp]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  CHECK(in_child([] {
          if (!give_up_capabilities<CAP_NET_RAW>()) return 2;
          return refused_as(Code::kAccessDenied, "setcap cap_net_raw,cap_net_admin,cap_bpf");
        }) == 0);
  CHECK(in_child([] {
          if (!give_up_capabilities<CAP_BPF, CAP_SYS_ADMIN>()) return 2;
          return refused_as(Code::kAccessDenied, "setcap cap_net_raw,cap_net_admin,cap_bpf");
        }) == 0);
  CHECK(in_child([] {
          const rlimit none{1 << 20, 1 << 20};
          if (::setrlimit(RLIMIT_MEMLOCK, &none) != 0) return 2;
          if (!give_up_capabilities<CAP_IPC_LOCK>()) return 3;
          return refused_as(Code::kNoMemory, "ulimit -l 22528");
        }) == 0);
  CHECK(gone("left"));
}

}  // namespace
}  // namespace sluice::test
