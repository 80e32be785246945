// A card that is slow to take an XDP program, and to lose it: who asks the broker for something
// else does not wait. Its part is played by a process that holds the broker's calls back (seccomp).
#include <catch2/catch.hpp>

#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>

#include <sluice/base/descriptor.h>
#include <sluice/l2/carrier/broker.h>
#include <sluice/l2/carrier/broker_wire.h>
#include <sluice/l2/carrier/xdp_source.h>

#include "tests/l2/lending.h"
#include "tests/l2/xdp_cable.h"
#include "tests/l2/xdp_lending.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

// From now on close() and the attaching of a program ask whoever has the descriptor that this
// returns; -1: seccomp refuses.
int ask_before_attaching() {
  constexpr uint32_t kNumber = offsetof(seccomp_data, nr), kFirst = offsetof(seccomp_data, args);
  sock_filter code[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, kNumber},
      {BPF_JMP | BPF_JEQ | BPF_K, 3, 0, SYS_close},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 3, SYS_bpf},
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, kFirst},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, BPF_LINK_CREATE},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_USER_NOTIF},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog filter{.len = sizeof(code) / sizeof(code[0]), .filter = code};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  const auto flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_TSYNC |
                     SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
  return static_cast<int>(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter));
}

bool closes_something_else(const seccomp_notif& call) {
  if (call.data.nr != SYS_close) return false;
  const std::string path =
      "/proc/" + std::to_string(call.pid) + "/fd/" + std::to_string(call.data.args[0]);
  char name[64];
  const ssize_t length = ::readlink(path.c_str(), name, sizeof(name));
  const std::string what(name, length > 0 ? static_cast<size_t>(length) : 0);
  return what.find("bpf") == std::string::npos || what.find("link") == std::string::npos;
}

bool let_go_on(int calls, uint64_t id) {
  seccomp_notif_resp answer{};
  answer.id = id;
  answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  return ::ioctl(calls, SECCOMP_IOCTL_NOTIF_SEND, &answer) == 0;
}

// Says when it holds a call back, and lets it go when it is told. All others go on.
int be_slow(int calls, int says, int hears) {
  uint64_t held = 0;
  for (;;) {
    pollfd ready[] = {{calls, POLLIN, 0}, {hears, POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0 || (ready[0].revents & POLLHUP) != 0) return 1;
    char byte;
    if (ready[1].revents != 0 && (::read(hears, &byte, 1) != 1 || !let_go_on(calls, held)))
      return 2;
    if (ready[0].revents == 0) continue;
    seccomp_notif call{};
    if (::ioctl(calls, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) continue;
    if (closes_something_else(call))
      (void)let_go_on(calls, call.id);
    else if (held = call.id; ::write(says, "h", 1) != 1)
      return 3;
  }
}

class SlowCard {
 public:
  SlowCard() {
    REQUIRE(::pipe(number_) == 0);
    REQUIRE(::pipe(says_) == 0);
    REQUIRE(::pipe(hears_) == 0);
  }
  ~SlowCard() {
    for (int fd : {number_[0], number_[1], says_[0], says_[1], hears_[0], hears_[1]}) ::close(fd);
    if (process_ < 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  SlowCard(const SlowCard&) = delete;
  SlowCard& operator=(const SlowCard&) = delete;
  // In the broker's process.
  bool take() {
    const int told[2] = {::getpid(), ask_before_attaching()};
    return ::write(number_[1], told, sizeof(told)) == sizeof(told);
  }
  // False: not here.
  bool begin() {
    int told[2];
    REQUIRE(::read(number_[0], told, sizeof(told)) == sizeof(told));
    if (told[1] < 0) return false;
    Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, told[0], 0)));
    Descriptor calls(static_cast<int>(::syscall(SYS_pidfd_getfd, process.value(), told[1], 0)));
    if (calls.value() < 0) return false;
    broker = told[0];
    process_ = start([&] { return be_slow(calls.value(), says_[1], hears_[0]); });
    return true;
  }
  bool holds() const {
    pollfd state{says_[0], POLLIN, 0};
    char byte;
    return ::poll(&state, 1, 20'000) == 1 && ::read(says_[0], &byte, 1) == 1;
  }
  bool let_go() const { return ::write(hears_[1], "g", 1) == 1; }
  pid_t broker = -1;

 private:
  int number_[2], says_[2], hears_[2];
  pid_t process_ = -1;
};

// A client that has asked and has no answer yet.
Descriptor asks_for_xdp(const std::string& path) {
  const sockaddr_un address = *l2::broker_address(path);
  const l2::BrokerRequest request = about_left(l2::Ask::kXdp);
  Descriptor fd = l2::broker_socket();
  REQUIRE(::connect(fd.value(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(::send(fd.value(), &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request));
  return fd;
}
bool has_answer(const Descriptor& client, int limit_ms) {
  pollfd state{client.value(), POLLIN, 0};
  return ::poll(&state, 1, limit_ms) == 1;
}
Code answer_to(const Descriptor& client) {
  l2::BrokerAnswer answer;
  answer.code = static_cast<uint32_t>(Code::kInternal);
  if (has_answer(client, 20'000)) (void)::recv(client.value(), &answer, sizeof(answer), 0);
  return static_cast<Code>(answer.code);
}
bool others_are_served() {
  auto socket = l2::borrow_packet_socket("left", 0);
  INFO(socket.status().to_string());
  CHECK(socket.ok());
  return socket.ok();
}

TEST_CASE("while a card attaches or detaches, others are served, and the next borrower waits",
          "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  SlowCard card;
  Broking broker(lends_xdp(), 0, [&] { return card.take(); });
  if (!card.begin()) return skip("seccomp", "no call can be held back here");
  {
    Descriptor first = asks_for_xdp(broker.path);
    REQUIRE(card.holds());
    CHECK(others_are_served());
    const Status taken = client().ask(about_left(l2::Ask::kXdp), 2).status();
    CHECK(taken == Code::kTryAgain);
    CHECK(taken.detail().find("process " + std::to_string(::getpid())) != std::string_view::npos);
    CHECK_FALSE(has_answer(first, 0));
    // And root's programs, of the broker's number.
    const Status claimed = l2::OwnXdp::attach("left").status();
    CHECK(claimed == Code::kTryAgain);
    CHECK(claimed.detail().find("process " + std::to_string(card.broker)) !=
          std::string_view::npos);
  }
  {
    // The first one has gone: the next has what the card does for it.
    Descriptor next = asks_for_xdp(broker.path);
    CHECK(others_are_served());
    CHECK_FALSE(has_answer(next, 0));
    REQUIRE(card.let_go());
    CHECK(answer_to(next) == Code::kOk);
    CHECK_FALSE(program_at("left").empty());
  }
  REQUIRE(card.holds());  // as it detaches
  CHECK(others_are_served());
  {
    Descriptor last = asks_for_xdp(broker.path);
    CHECK(others_are_served());
    REQUIRE(card.let_go());
    REQUIRE(card.holds());
    CHECK(others_are_served());
    REQUIRE(card.let_go());
    CHECK(answer_to(last) == Code::kOk);
  }
  REQUIRE(card.holds());
  REQUIRE(card.let_go());
  CHECK(gone());
  // Nobody waits any more for what was asked for.
  {
    Descriptor leaves = asks_for_xdp(broker.path);
    REQUIRE(card.holds());
  }
  CHECK(others_are_served());
  REQUIRE(card.let_go());
  REQUIRE(card.holds());
  REQUIRE(card.let_go());
  CHECK(gone());
  CHECK(others_are_served());
}

TEST_CASE("while a card detaches, the broker has it, and no borrower that has gone",
          "[l2][xdp][broker]") {
  NEEDS_BORROWERS();
  NothingLeftBehind audit;
  SlowCard card;
  Broking broker(lends_xdp(), 0, [&] { return card.take(); });
  if (!card.begin()) return skip("seccomp", "no call can be held back here");
  const auto holder = [] { return std::string(l2::OwnXdp::attach("left").status().detail()); };
  {
    l2::BrokerConnection borrower = client();
    const pid_t lets_go = start([&] { return card.holds() && card.let_go() ? 0 : 1; });
    auto loan = borrower.ask(about_left(l2::Ask::kXdp), 2);
    CHECK(exit_code(lets_go) == 0);
    REQUIRE(loan.ok());
    REQUIRE(l2::announce_xdp(loan->fds[1].value()).ok());
    CHECK(holder().find("process " + std::to_string(::getpid()) + " ") != std::string::npos);
  }
  REQUIRE(card.holds());
  CHECK(holder().find("process " + std::to_string(card.broker) + " ") != std::string::npos);
  REQUIRE(card.let_go());
  CHECK(gone());
}

}  // namespace
}  // namespace sluice::test
