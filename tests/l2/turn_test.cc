// A flood of small frames at several ports: one turn takes so many and no more, all are taken in
// the end, and nobody's port is left out.
#include <arpa/inet.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <sluice/api/connecting.h>
#include <sluice/base/counters.h>
#include <sluice/base/descriptor.h>
#include <sluice/select/open.h>

#include "tests/l2/two.h"
#include "tests/support/audit.h"
#include "tests/support/single_turns.h"

namespace sluice::test {
namespace {

constexpr int kPorts = 4, kTimes = 16;
// Of all ports together: kFramesPerTurn (port.cc) and one.
constexpr uint64_t kMostInATurn = 513;

uint16_t port_of(const std::string& address) {
  return static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1)));
}

// So many runts in as few datagrams of the kernel's as it joins.
void flood(uint16_t port, int times) {
  Descriptor fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd.value(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
  int segment = 20;
  bool cuts = ::setsockopt(fd.value(), IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)) == 0;
  std::vector<uint8_t> bytes(static_cast<size_t>(cuts ? 64 * segment : segment), 0x21);
  for (int i = 0; i < (cuts ? times : times * 64); ++i)
    (void)::send(fd.value(), bytes.data(), bytes.size(), 0);
}

TEST_CASE(
    "a turn takes a bounded number of frames, however small they are and at however many ports",
    "[l2][udp][turn]") {
  NothingLeftBehind audit;
  auto context = std::move(open_context({})).value();
  std::vector<Listener> listeners;
  for (int i = 0; i < kPorts; ++i)
    listeners.push_back(std::move(context->listen("l2://udp/127.0.0.1:0")).value());
  uint64_t most = 0, all = 0;
  SingleTurns turns(*context);
  for (int round = 0; round < 20; ++round) {
    for (const Listener& listener : listeners) flood(port_of(listener.address()), kTimes);
    for (int turn = 0; turn < 200; ++turn) {
      uint64_t before = read_counter("l2.dropped_runt");
      const bool single = turns.progress();
      uint64_t taken = read_counter("l2.dropped_runt") - before;
      if (single) most = std::max(most, taken);
      all += taken;
    }
  }
  std::printf("at most %llu frames in a turn, %llu in all\n", static_cast<unsigned long long>(most),
              static_cast<unsigned long long>(all));
  CHECK(most > 100);  // or this machine joins none, and nothing was tried
  CHECK(most <= kMostInATurn);
  // The kernel was told to drop the others (flood_watch.h).
  CHECK(all > 1000);
  CHECK((all == 20 * kPorts * kTimes * 64 || read_counter("l2.floods") > 0));
}

TEST_CASE("a listener whose program calls progress() every 50 ms hears 100 callers at once",
          "[l2][udp][turn]") {
  NothingLeftBehind audit;
  auto far = std::move(open_context({})).value(), near = std::move(open_context({})).value();
  Listener listener = std::move(far->listen("l2://udp/127.0.0.1:0")).value();
  std::vector<Connecting> calls;
  std::vector<Endpoint> called, accepted;
  for (int i = 0; i < 100; ++i) calls.push_back(start_connect(*near, listener.address()));
  Instant next = now();
  while (!calls.empty()) {
    (void)near->wait_until([] { return false; }, after(now(), std::chrono::milliseconds(1)));
    std::erase_if(calls, [&](Connecting& call) {
      if (!call.ready()) return false;
      auto taken = call.take();
      INFO(taken.status().to_string());
      REQUIRE(taken.ok());
      called.push_back(std::move(*taken));
      return true;
    });
    if (now() < next) continue;
    next = after(now(), std::chrono::milliseconds(50));
    (void)far->progress();
    for (auto one = listener.try_accept(); one.ok(); one = listener.try_accept())
      accepted.push_back(std::move(*one));
  }
  CHECK(called.size() == 100);
}

}  // namespace
}  // namespace sluice::test
