// A program without privileges has AF_XDP from a broker: it exchanges, alone at the interface, and
// leaves nothing there; who lies to the broker gains nothing by it.
#include <catch2/catch.hpp>

#include <errno.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/base/descriptor.h>
#include <sluice/l2/carrier/broker.h>
#include <sluice/l2/carrier/broker_wire.h>
#include <sluice/l2/carrier/xdp_carrier.h>
#include <sluice/select/open.h>

#include "tests/l2/lending.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/l2/xdp_cable.h"
#include "tests/l2/xdp_lending.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

constexpr uint16_t kPort = 7000;
constexpr size_t kMessage = 300'000;

// Listens as nobody and sends back what comes.
int echo_as_nobody() {
  if (!become_nobody()) return 1;
  auto context = open_context({});
  if (!context.ok()) return 3;
  auto listener = (*context)->listen("l2://xdp/left:" + std::to_string(kPort));
  if (!listener.ok()) {
    std::fprintf(stderr, "%s\n", listener.status().to_string().c_str());
    return 4;
  }
  auto peer = listener->accept(soon());
  if (!peer.ok()) return 5;
  if (peer->info().path.path != Path::kXdp) return 10;
  for (int i = 0; i < 3; ++i) {
    auto room = (*context)->allocate({kMessage}, uint8);
    if (!room.ok()) return 6;
    auto got = peer->receive_and_wait({.tag = 1}, std::move(*room), soon());
    if (!got.ok()) return 7;
    if (!peer->send_and_wait(2, std::move(got->buffer).freeze(), soon()).ok()) return 8;
  }
  auto closed = [&] { return peer->state() == EndpointState::kClosed; };
  return (*context)->wait_until(closed, soon()).ok() ? 0 : 9;
}

// From the far end to that process, and back.
void exchange_with(uint64_t seed) {
  auto context = open_context({});
  REQUIRE(context.ok());
  Context& c = **context;
  Result<Endpoint> peer = Status(Code::kUnreachable, Scope::kOperation, "tests/l2");
  const std::string there = "l2://xdp/right/" + mac_of_number(10) + ":" + std::to_string(kPort);
  for (Instant limit = soon(); !peer.ok() && now() < limit;)
    far_node()->inside([&] { peer = c.connect(there); });
  INFO(peer.status().to_string());
  REQUIRE(peer.ok());
  for (uint64_t i = seed; i < seed + 3; ++i) {
    Box box;
    auto room = c.allocate({kMessage}, uint8);
    REQUIRE(room.ok());
    REQUIRE(peer->receive({.tag = 2}, std::move(*room), {.sink = &box, .deadline = soon()}).ok());
    REQUIRE(peer->send_and_wait(1, filled(c, kMessage, i).freeze(), soon()).ok());
    REQUIRE(c.wait_until([&] { return !box.all.empty(); }, soon()).ok());
    REQUIRE(box.all[0].status.ok());
    CHECK(holds(box.all[0].buffers[0].bytes(), i));
  }
  CHECK(peer->close(soon()).ok());
}

TEST_CASE("a user without privileges exchanges by AF_XDP that a broker lends, and so does the next",
          "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  Broking broker(lends_xdp());
  for (uint64_t i = 0; i < 3; ++i) {
    pid_t child = start(echo_as_nobody);
    exchange_with(1 + 3 * i);
    CHECK(exit_code(child) == 0);
  }
  CHECK(gone());
}

TEST_CASE("a borrower of AF_XDP need not be in the interface's network", "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  Broking broker(lends_xdp());
  pid_t child = start([] { return ::unshare(CLONE_NEWNET) == 0 ? echo_as_nobody() : 99; });
  exchange_with(1);
  CHECK(exit_code(child) == 0);
  CHECK(gone());
}

// A process with a port at left, as long as this lives.
class Holder {
 public:
  // prepare: what makes it who it is.
  explicit Holder(const std::function<bool()>& prepare) {
    int said[2], go[2];
    REQUIRE(::pipe(said) == 0);
    REQUIRE(::pipe(go) == 0);
    process = start([&] {
      ::close(go[1]);
      if (!prepare()) return 100;
      auto opened = l2::open_xdp_carrier("left", 0);
      const std::string text = opened.status().to_string();
      if (opened.ok() ? ::write(said[1], "+", 1) != 1
                      : ::write(said[1], text.data(), text.size()) < 0)
        return 101;
      ::close(said[1]);
      char byte;
      while (::read(go[0], &byte, 1) == 1) {
        // Asked how it is.
        Status state = opened.ok() ? opened->carrier->look() : Status();
        if (state.ok()) state = l2::open_xdp_carrier("left", 0).status();
        const bool told = state.code() == Code::kUnreachable &&
                          state.detail().find("the broker at") != std::string_view::npos;
        if (!told) return 102;
      }
      return static_cast<int>(opened.code());
    });
    ::close(said[1]);
    ::close(go[0]);
    go_ = go[1];
    char text[512];
    ssize_t bytes;
    while ((bytes = ::read(said[0], text, sizeof(text))) > 0)
      refusal.append(text, static_cast<size_t>(bytes));
    ::close(said[0]);
    has_it = refusal == "+";
  }
  ~Holder() { (void)end(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  bool ask() { return ::write(go_, "?", 1) == 1; }
  // Its exit code: what its port's status was.
  int end(int signal = 0) {
    if (go_ < 0) return -1;
    if (signal != 0) ::kill(process, signal);
    ::close(std::exchange(go_, -1));
    return exit_code(process);
  }
  bool refused_with(const std::string& words) const {
    INFO(refusal);
    CHECK(refusal.find(words) != std::string::npos);
    return !has_it;
  }
  std::string refusal;
  bool has_it = false;
  pid_t process;

 private:
  int go_ = -1;
};

bool as_nobody() { return become_nobody(); }
bool as_root() { return true; }
constexpr int code_of(Code code) { return static_cast<int>(code); }

TEST_CASE("a broker lends AF_XDP only if it was told to, and to its users", "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  {
    Broking broker;
    Holder nobody(as_nobody);
    CHECK(nobody.refused_with("start it with --xdp, or use l2://left"));
    CHECK(nobody.end() == code_of(Code::kAccessDenied));
    // Who has the right does not ask.
    Holder root(as_root);
    CHECK(root.has_it);
  }
  Broking broker(lends_xdp());
  Holder other([] { return become(kSomebody); });
  CHECK(other.refused_with("it lends to root and to those named by --uid, not to 65533"));
  CHECK(other.end() == code_of(Code::kAccessDenied));
  Holder root(as_root);
  CHECK(root.has_it);
  Holder nobody(as_nobody);
  CHECK(nobody.refused_with("process " + std::to_string(root.process) + " uses AF_XDP at left"));
}

TEST_CASE("a second borrower of AF_XDP is told the first one's number, and has it after that one",
          "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  Broking broker(lends_xdp());
  CHECK(program_at("left").empty());
  for (int signal : {0, SIGKILL}) {
    Holder first(as_nobody);
    INFO(first.refusal);
    REQUIRE(first.has_it);
    CHECK_FALSE(program_at("left").empty());
    const std::string told = "process " + std::to_string(first.process) + " uses AF_XDP at left";
    {
      Holder second(as_nobody);
      CHECK(second.refused_with(told));
      CHECK(second.end() == code_of(Code::kTryAgain));
      Holder root(as_root);
      CHECK(root.refused_with(told));
      CHECK_FALSE(program_at("left").empty());
    }
    CHECK(first.end(signal) == (signal == 0 ? 0 : 256 + SIGKILL));
    CHECK(gone());
  }
  Holder next(as_nobody);
  INFO(next.refusal);
  CHECK(next.has_it);
}

TEST_CASE("a borrower that may not lock its memory is told how much it takes",
          "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  Broking broker(lends_xdp());
  Holder small([] { return become_nobody(1 << 20); });
  CHECK(small.refused_with("ulimit -l 22528"));
  CHECK(small.end() == code_of(Code::kNoMemory));
  CHECK(gone());
  Holder next(as_nobody);
  CHECK(next.has_it);
}

TEST_CASE("a broker that goes takes its program along, and its borrower says so",
          "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  Broking broker(lends_xdp());
  Holder holder(as_nobody);
  REQUIRE(holder.has_it);
  broker.kill();
  CHECK(gone());
  REQUIRE(holder.ask());
  CHECK(holder.end() == 0);
}

// ---- clients that lie

// The client's own end is done with when the broker has closed its.
bool sent_away(const l2::BrokerConnection& client) {
  const Instant limit = soon();
  while (!client.gone() && now() < limit) ::poll(nullptr, 0, 1);
  return client.gone();
}
bool a_borrower_is_served() {
  Holder next(as_nobody);
  INFO(next.refusal);
  CHECK(next.has_it);
  return next.end() == 0 && gone();
}

TEST_CASE("asks that make no sense end the loan, and nothing else", "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  Broking broker(lends_xdp());
  using l2::Ask;
  // Without a loan.
  for (Ask what : {Ask::kXdpSockets, Ask::kXdpOpen, Ask::kXdpClose, Ask{0}, Ask{77}}) {
    l2::BrokerConnection liar = client();
    CHECK(liar.ask({.what = what}, 0).code() == Code::kCorrupt);
    CHECK(sent_away(liar));
  }
  // With one.
  for (Ask what : {Ask::kXdp, Ask::kPacketSocket, Ask{0}, Ask{77}}) {
    l2::BrokerConnection liar = client();
    REQUIRE(liar.ask(about_left(Ask::kXdp), 2).ok());
    CHECK_FALSE(program_at("left").empty());
    CHECK(liar.ask(about_left(what), 0).code() == Code::kCorrupt);
    CHECK(sent_away(liar));
    CHECK(gone());
  }
  l2::BrokerRequest junk = about_left(Ask::kXdp);
  junk.magic ^= 1;
  CHECK(client().ask(junk, 0).code() == Code::kCorrupt);
  l2::BrokerRequest elsewhere{.what = Ask::kXdp};
  std::memset(elsewhere.interface, 'x', sizeof(elsewhere.interface));
  CHECK(client().ask(elsewhere, 0).code() == Code::kInvalidArgument);
  CHECK(a_borrower_is_served());
}

TEST_CASE("a second ask for AF_XDP does nothing to the first one's loan", "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  using l2::Ask;
  Broking broker(lends_xdp());
  l2::BrokerConnection first = client(), second = client();
  REQUIRE(first.ask(about_left(Ask::kXdp), 2).ok());  // and lets go of what it got
  const Status refused = second.ask(about_left(Ask::kXdp), 2).status();
  CHECK(refused == Code::kTryAgain);
  CHECK(refused.detail().find("process " + std::to_string(::getpid())) != std::string_view::npos);
  CHECK(first.ask({.what = Ask::kXdpSockets}, 2).ok());
  CHECK(first.ask(numbered(0, kPort), 1).ok());
}

TEST_CASE("a borrower has so many sockets, and one port for each, within its user's limit",
          "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  using l2::Ask;
  l2::BrokerOptions options = lends_xdp();
  options.most_sockets_by_user = 2;
  Broking broker(options);
  {
    l2::BrokerConnection greedy = client();
    REQUIRE(greedy.ask(about_left(Ask::kXdp), 2).ok());
    CHECK(greedy.ask(numbered(0, 0), 1).code() == Code::kInvalidArgument);
    for (uint32_t i = 0; i < l2::kMostXdpPorts; ++i) {
      REQUIRE(greedy.ask(sockets_numbered(i), 2).ok());
      auto again = greedy.ask(sockets_numbered(i), 2);  // those before get no frames
      REQUIRE(again.ok());
      CHECK(again->number == i);
    }
    CHECK(greedy.ask(sockets_numbered(0), 2).code() == Code::kTryAgain);
    CHECK(greedy.ask(sockets_numbered(l2::kMostXdpPorts), 2).code() == Code::kTryAgain);
    CHECK(greedy.ask(sockets_numbered(l2::kMostXdpPorts + 1), 2).code() == Code::kInvalidArgument);
    CHECK(greedy.ask(numbered(l2::kMostXdpPorts, 0), 1).code() == Code::kInvalidArgument);
    REQUIRE(greedy.ask(numbered(0, kPort), 1).ok());
    CHECK(greedy.ask(sockets_numbered(0), 2).code() == Code::kInvalidArgument);
    CHECK(greedy.ask(numbered(0, kPort + 1), 1).code() == Code::kInvalidArgument);
    CHECK(greedy.ask(numbered(1, kPort), 1).code() == Code::kInvalidArgument);
    auto second = greedy.ask(numbered(1, 0), 1);
    REQUIRE(second.ok());
    CHECK(greedy.ask(numbered(2, 0), 1).code() == Code::kTryAgain);
    CHECK(l2::borrow_packet_socket("left", 0).code() == Code::kTryAgain);
    second->fds[0].reset();
    CHECK(greedy.ask({.what = Ask::kXdpClose, .port = second->port}, 0).ok());
    CHECK(greedy.ask(numbered(2, second->port), 1).ok());
    CHECK_FALSE(greedy.gone());
  }
  CHECK(gone());
  CHECK(l2::borrow_packet_socket("left", kPort).ok());
  CHECK(a_borrower_is_served());
}

TEST_CASE("who asks and does not listen, or connects and does not ask, delays nobody",
          "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  using l2::Ask;
  Broking broker(lends_xdp());
  sockaddr_un address = *l2::broker_address(broker.path);
  std::vector<Descriptor> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(l2::broker_socket());
    REQUIRE(::connect(silent.back().value(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)) == 0);
  }
  // Of the last one, asks without end: the broker hangs up.
  const l2::BrokerRequest begin = about_left(Ask::kXdp);
  const l2::BrokerRequest close{.what = Ask::kXdpClose};
  const int fd = silent.back().value();
  REQUIRE(::send(fd, &begin, sizeof(begin), MSG_NOSIGNAL) > 0);
  while (::send(fd, &close, sizeof(close), MSG_NOSIGNAL) > 0) {}
  CHECK((errno == EPIPE || errno == ECONNRESET));
  CHECK(gone());
  silent.pop_back();  // with the sockets that it was sent
  CHECK(a_borrower_is_served());
}

TEST_CASE("lent AF_XDP sockets stay at the interface", "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  Broking broker(lends_xdp());
  REQUIRE(run("ip link set lo up"));
  pid_t child = start([] {
    if (!become_nobody()) return 1;
    l2::BrokerConnection broker = client();
    auto first = broker.ask(about_left(l2::Ask::kXdp), 2);
    auto pair = broker.ask({.what = l2::Ask::kXdpSockets}, 2);
    if (!first.ok() || !pair.ok()) return 2;
    for (int fd : {first->fds[0].value(), pair->fds[0].value(), pair->fds[1].value()}) {
      const uint32_t entries = 64;
      if (::setsockopt(fd, SOL_XDP, XDP_RX_RING, &entries, sizeof(entries)) != 0) return 3;
      if (::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 1) == 0 || errno != EPERM) return 4;
      sockaddr_xdp other{};
      other.sxdp_family = AF_XDP;
      other.sxdp_flags = XDP_SHARED_UMEM;
      other.sxdp_ifindex = ::if_nametoindex("lo");
      other.sxdp_shared_umem_fd = static_cast<uint32_t>(fd);
      // At its own interface the kernel looks at the memory, which is not there yet.
      if (::bind(fd, reinterpret_cast<sockaddr*>(&other), sizeof(other)) == 0 || errno != EINVAL)
        return 5;
      other.sxdp_ifindex = ::if_nametoindex("left");
      if (::bind(fd, reinterpret_cast<sockaddr*>(&other), sizeof(other)) == 0 || errno != EBADF)
        return 6;
    }
    return 0;
  });
  CHECK(exit_code(child) == 0);
}

}  // namespace
}  // namespace sluice::test
