// A program without privileges gets its packet socket from a broker, and can make nothing else
// of it; whoever is not on the list gets none.
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/clock.h>
#include <sluice/base/descriptor.h>
#include <sluice/l2/carrier/broker.h>
#include <sluice/l2/carrier/broker_wire.h>
#include <sluice/l2/carrier/packet_socket.h>
#include <sluice/select/open.h>

#include "tests/l2/lending.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

constexpr uint16_t kPort = 7000;

// A cable, and a broker at its left end.
class Lending {
 public:
  explicit Lending(l2::BrokerOptions options = {}, rlim_t descriptors = 0)
      : broker_(std::move(options), descriptors) {}

 private:
  struct Cable {
    Cable() { REQUIRE(add_cable("left", 10, "right", 11)); }
    ~Cable() { remove_cable("left"); }
  } cable_;
  Broking broker_;

 public:
  const std::string& path = broker_.path;
};

#define NEEDS_USERS()                                   \
  if (!own_network()) return skip("netns", kNoNetwork); \
  if (!can_become()) return skip("root", "this process cannot become another user")

// Listens as nobody and sends back what comes.
int echo_as_nobody() {
  if (!become(kNobody)) return 1;
  if (::socket(AF_PACKET, SOCK_DGRAM, 0) >= 0) return 2;
  auto context = open_context({});
  if (!context.ok()) return 3;
  auto listener = (*context)->listen("l2://left:" + std::to_string(kPort));
  if (!listener.ok()) return 4;
  auto peer = listener->accept(soon());
  if (!peer.ok()) return 5;
  for (int i = 0; i < 3; ++i) {
    auto room = (*context)->allocate({300'000}, uint8);
    if (!room.ok()) return 6;
    auto got = peer->receive_and_wait({.tag = 1}, std::move(*room), soon());
    if (!got.ok()) return 7;
    if (!peer->send_and_wait(2, std::move(got->buffer).freeze(), soon()).ok()) return 8;
  }
  return (*context)
                 ->wait_until([&] { return peer->state() == EndpointState::kClosed; }, soon())
                 .ok()
             ? 0
             : 9;
}

TEST_CASE("a user without privileges exchanges over a borrowed socket", "[l2][broker]") {
  NEEDS_USERS();
  NothingLeftBehind audit;
  Lending lending;
  pid_t child = start(echo_as_nobody);
  {
    auto context = open_context({});
    REQUIRE(context.ok());
    Context& c = **context;
    Result<Endpoint> peer = Status(Code::kUnreachable, Scope::kOperation, "tests/l2");
    for (Instant limit = soon(); !peer.ok() && now() < limit;)
      peer = c.connect("l2://right/" + mac_of_number(10) + ":" + std::to_string(kPort));
    INFO(peer.status().to_string());
    REQUIRE(peer.ok());
    for (uint64_t i = 1; i <= 3; ++i) {
      Box box;
      auto room = c.allocate({300'000}, uint8);
      REQUIRE(room.ok());
      REQUIRE(peer->receive({.tag = 2}, std::move(*room), {.sink = &box, .deadline = soon()}).ok());
      REQUIRE(peer->send_and_wait(1, filled(c, 300'000, i).freeze(), soon()).ok());
      REQUIRE(c.wait_until([&] { return !box.all.empty(); }, soon()).ok());
      REQUIRE(box.all[0].status.ok());
      CHECK(holds(box.all[0].buffers[0].bytes(), i));
    }
    CHECK(peer->close(soon()).ok());
  }
  CHECK(exit_code(child) == 0);
}

TEST_CASE("who is not on the list gets no socket, and is told why", "[l2][broker]") {
  NEEDS_USERS();
  NothingLeftBehind audit;
  Lending lending;
  auto as = [](uid_t user, const char* interface) {
    return exit_code(start([&] {
      if (!become(user)) return 100;
      auto context = open_context({});
      if (!context.ok()) return 101;
      auto listening = (*context)->listen(std::string("l2://") + interface + ":0");
      std::fprintf(stderr, "%s\n", listening.status().to_string().c_str());
      return static_cast<int>(listening.code());
    }));
  };
  CHECK(as(kNobody, "left") == static_cast<int>(Code::kOk));
  CHECK(as(kSomebody, "left") == static_cast<int>(Code::kAccessDenied));
  CHECK(as(kNobody, "right") == static_cast<int>(Code::kInvalidArgument));  // lends at left only
}

int borrow(uid_t user, uint16_t port = kPort) {
  return exit_code(start([user, port] {
    if (!become(user)) return 100;
    Status borrowed = l2::borrow_packet_socket("left", port).status();
    if (!borrowed.ok()) std::fprintf(stderr, "%s\n", borrowed.to_string().c_str());
    return static_cast<int>(borrowed.code());
  }));
}
constexpr int code_of(Code code) { return static_cast<int>(code); }

// A process of that user which has borrowed so many, at a port or any, and keeps them until this
// goes; not their claims, which it need not keep.
class Borrower {
 public:
  Borrower(uid_t user, int sockets, uint16_t port) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    REQUIRE(::pipe(go_) == 0);
    pid_ = start([&] {
      ::close(go_[1]);
      if (!become(user)) return 100;
      std::vector<l2::PacketSocket> kept;
      for (int i = 0; i < sockets; ++i) {
        auto borrowed = l2::borrow_packet_socket("left", port);
        if (!borrowed.ok()) return static_cast<int>(borrowed.code());
        kept.push_back(std::move(*borrowed));
        kept.back().claim = Descriptor();
      }
      char byte;
      return ::write(ready[1], "r", 1) == 1 && ::read(go_[0], &byte, 1) == 0 ? 0 : 101;
    });
    ::close(ready[1]);
    ::close(go_[0]);
    char byte;
    has_them = ::read(ready[0], &byte, 1) == 1;
    ::close(ready[0]);
  }
  ~Borrower() {
    ::close(go_[1]);
    CHECK(exit_code(pid_) == (has_them ? 0 : code_of(Code::kTryAgain)));
  }
  bool has_them;

 private:
  int go_[2];
  pid_t pid_;
};

TEST_CASE(
    "a port that was lent to one user is lent to another when its socket is closed, and not before",
    "[l2][broker]") {
  NEEDS_USERS();
  NothingLeftBehind audit;
  Lending lending;
  CHECK(borrow(kNobody) == code_of(Code::kOk));
  CHECK(borrow(kNobody) == code_of(Code::kOk));  // it has closed the first
  {
    Borrower keeps(kNobody, 1, kPort);
    REQUIRE(keeps.has_them);
    CHECK(borrow(0) == code_of(Code::kInvalidArgument));
  }
  CHECK(borrow(0) == code_of(Code::kOk));
  CHECK(borrow(kNobody) == code_of(Code::kOk));
}

TEST_CASE("a user borrows so many sockets and no more, and others go on", "[l2][broker]") {
  NEEDS_USERS();
  NothingLeftBehind audit;
  Lending lending(
      {.interface = {}, .path = {}, .users = {}, .most_sockets = 64, .most_sockets_by_user = 8});
  {
    Borrower most(kNobody, 8, 0);
    REQUIRE(most.has_them);
    CHECK(borrow(kNobody, 0) == code_of(Code::kTryAgain));
    CHECK(borrow(0, 0) == code_of(Code::kOk));
    Borrower more(kNobody, 9, 0);
    CHECK_FALSE(more.has_them);
  }
  CHECK(borrow(kNobody, 0) == code_of(Code::kOk));
}

// Connections to the broker that say nothing.
std::vector<Descriptor> silent_askers(const std::string& path, int count) {
  std::vector<Descriptor> all;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  for (int i = 0; i < count; ++i) {
    all.emplace_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(all.back().value(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
            0);
  }
  return all;
}

TEST_CASE("askers who say nothing keep nobody waiting, also where the broker has few descriptors",
          "[l2][broker]") {
  NEEDS_USERS();
  NothingLeftBehind audit;
  for (rlim_t descriptors : {0, 32}) {
    Lending lending({}, descriptors);
    std::vector<Descriptor> silent =
        silent_askers(lending.path, 40);  // of root's, who is on every list
    for (int i = 0; i < 3; ++i) CHECK(borrow(kNobody) == code_of(Code::kOk));
    std::vector<Descriptor> more = silent_askers(lending.path, 40);
    CHECK(borrow(0) == code_of(Code::kOk));
  }
}

TEST_CASE("sockets are borrowed from root or oneself, not from whoever listens at a path",
          "[l2][broker]") {
  NEEDS_USERS();
  NothingLeftBehind audit;
  char folder[] = "/tmp/sluice-broker-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  REQUIRE(::chmod(folder, 0777) == 0);
  std::string path = std::string(folder) + "/socket";
  int ready[2], go[2];
  REQUIRE(::pipe(ready) == 0);
  REQUIRE(::pipe(go) == 0);
  pid_t liar = start([&] {
    ::close(go[1]);
    if (!become(kSomebody)) return 1;
    Descriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    if (::bind(fd.value(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        ::listen(fd.value(), 4) != 0 || ::chmod(path.c_str(), 0666) != 0)
      return 2;
    char byte;
    return ::write(ready[1], "r", 1) == 1 && ::read(go[0], &byte, 1) == 0 ? 0 : 3;
  });
  ::close(ready[1]);
  ::close(go[0]);
  char byte;
  CHECK(::read(ready[0], &byte, 1) == 1);
  ::setenv("SLUICE_L2_BROKER", path.c_str(), 1);
  for (uid_t user : {uid_t{0}, kNobody}) CHECK(borrow(user) == code_of(Code::kAccessDenied));
  ::unsetenv("SLUICE_L2_BROKER");
  ::close(go[1]);
  CHECK(exit_code(liar) == 0);
  ::close(ready[0]);
  ::unlink(path.c_str());
  ::rmdir(folder);
}

// Of a packet with a descriptor that this user sends the broker, before it is accepted.
int pass_descriptor(uid_t user, const std::string& path) {
  if (!become(user)) return -1;
  const sockaddr_un address = *l2::broker_address(path);
  Descriptor client = l2::broker_socket();
  if (::connect(client.value(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return -2;
  char byte = 0;
  iovec piece{&byte, 1};
  union {
    cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
  } passed{};
  passed.header = {
      .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  const int fd = client.value();
  std::memcpy(CMSG_DATA(&passed.header), &fd, sizeof(fd));
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = passed.bytes;
  message.msg_controllen = sizeof(passed.bytes);
  return ::sendmsg(fd, &message, MSG_NOSIGNAL) == 1 ? 0 : errno;
}

TEST_CASE("nobody passes the broker a descriptor, whose last close may take hours",
          "[l2][broker]") {
  NEEDS_USERS();
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS
  const int none = 0;
  if (::setsockopt(l2::broker_socket().value(), SOL_SOCKET, kPassRights, &none, sizeof(none)) != 0)
    return skip("passrights", "this kernel is older than Linux 6.16");
  NothingLeftBehind audit;
  Lending lending;
  auto tried_by = [&](uid_t user) {
    return exit_code(start([&] { return pass_descriptor(user, lending.path); }));
  };
  for (int i = 0; i < 10; ++i) {
    CHECK(tried_by(kNobody) == EPERM);
    const int stranger = tried_by(kSomebody);
    CHECK((stranger == EPERM || stranger == EPIPE));  // he may have been sent away before
  }
  CHECK(borrow(kNobody) == code_of(Code::kOk));
}

volatile sig_atomic_t signals = 0;

// The signals come five times within the limit: a wait that each of them begins anew has no end.
int ask_among_signals(const std::string& path) {
  ::setenv("SLUICE_L2_BROKER", path.c_str(), 1);
  struct sigaction action {};
  action.sa_handler = [](int) {
    signals = signals + 1;
    if (signals == 1000) ::_exit(2);
  };
  const itimerval often{{0, 20'000}, {0, 20'000}};
  if (::sigaction(SIGALRM, &action, nullptr) != 0 || ::setitimer(ITIMER_REAL, &often, nullptr) != 0)
    return 3;
  auto broker = l2::BrokerConnection::to("left", 100ms);
  if (!broker.ok()) return 4;
  const Code code = broker->ask({.what = l2::Ask::kPacketSocket}, 2).code();
  return code == Code::kUnreachable && broker->gone() ? 0 : 5;
}

TEST_CASE("a broker that does not answer is waited for so long, whatever signals come",
          "[l2][broker]") {
  NothingLeftBehind audit;
  char folder[] = "/tmp/sluice-broker-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/socket";
  Descriptor silent = l2::broker_socket();
  const sockaddr_un address = *l2::broker_address(path);
  REQUIRE(::bind(silent.value(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
          0);
  REQUIRE(::listen(silent.value(), 4) == 0);
  CHECK(exit_code(start([&] { return ask_among_signals(path); })) == 0);
  ::unlink(path.c_str());
  ::rmdir(folder);
}

// What a borrower may try. 0: none of it works.
int misuse(int ready, int go) {
  if (!become(kNobody)) return 1;
  auto borrowed = l2::borrow_packet_socket("left", kPort);
  if (!borrowed.ok()) return 2;
  int fd = borrowed->fd.value(), none = 0;
  sock_filter everything[] = {{BPF_RET | BPF_K, 0, 0, UINT32_MAX}};
  sock_fprog filter{.len = 1, .filter = everything};
  if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0 ||
      errno != EPERM)
    return 3;
  if (::setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof(none)) == 0 || errno != EPERM)
    return 4;
  if (::setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &none, sizeof(none)) == 0) return 5;
  // These the kernel allows; they must not help.
  (void)::setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &none, sizeof(none));
  packet_mreq promiscuous{.mr_ifindex = static_cast<int>(::if_nametoindex("left")),
                          .mr_type = PACKET_MR_PROMISC,
                          .mr_alen = 0,
                          .mr_address = {}};
  (void)::setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof(promiscuous));
  sockaddr_ll all{};
  all.sll_family = AF_PACKET;
  all.sll_protocol = htons(3);  // ETH_P_ALL
  for (int index : {0, static_cast<int>(::if_nametoindex("left"))}) {
    all.sll_ifindex = index;
    if (::bind(fd, reinterpret_cast<sockaddr*>(&all), sizeof(all)) != 0) return 6;
    char byte;
    if (::write(ready, "r", 1) != 1 || ::read(go, &byte, 1) != 1) return 7;
    // The parent has sent what is not for this port, and then one that is.
    uint8_t frame[2048];
    pollfd readable{fd, POLLIN, 0};
    if (::poll(&readable, 1, 20'000) != 1) return 10;
    ssize_t got = ::recv(fd, frame, sizeof(frame), MSG_DONTWAIT);
    if (got < 60 || frame[59] != 0x77) return 8;
    if (::recv(fd, frame, sizeof(frame), MSG_DONTWAIT) >= 0) return 9;
  }
  return 0;
}

TEST_CASE("a borrowed socket cannot be made to see anything but its port", "[l2][broker]") {
  NEEDS_USERS();
  NothingLeftBehind audit;
  Lending lending;
  REQUIRE(run("ip address add 10.98.0.1/24 dev left"));
  RawWire right("right"), left("left");
  int ready[2], go[2];
  REQUIRE(::pipe(ready) == 0);
  REQUIRE(::pipe(go) == 0);
  pid_t child = start([&] {
    ::close(ready[0]);
    ::close(go[1]);
    return misuse(ready[1], go[0]);
  });
  ::close(ready[1]);
  ::close(go[0]);
  // To the port: version 1, of 60 bytes with a mark at their end.
  auto frame = [](uint16_t type, uint16_t port, uint8_t mark, const Mac& to) {
    std::vector<uint8_t> bytes(74);
    Mac from = mac_number(11);
    std::copy(to.begin(), to.end(), bytes.begin());
    std::copy(from.begin(), from.end(), bytes.begin() + 6);
    bytes[12] = static_cast<uint8_t>(type >> 8), bytes[13] = static_cast<uint8_t>(type);
    bytes[14] = 1 << 5 | 7;
    bytes[18] = static_cast<uint8_t>(port), bytes[19] = static_cast<uint8_t>(port >> 8);
    bytes[73] = mark;
    return bytes;
  };
  const Mac own = mac_number(10);
  for (int round = 0; round < 2; ++round) {
    char byte;
    if (::read(ready[0], &byte, 1) != 1) break;           // it has ended, which is told below
    CHECK(right.send(frame(0x88b5, kPort + 1, 1, own)));  // another port
    CHECK(right.send(frame(0x88b6, kPort, 2, own)));      // another EtherType
    CHECK(right.send(frame(0x0800, kPort, 3, own)));      // IP
    CHECK(right.send(frame(0x88b5, kPort, 4, mac_number(99))));  // another host
    CHECK(right.send(frame(0x88b5, kPort, 5, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff})));  // everybody
    CHECK(left.send(
        frame(0x88b5, kPort, 6, mac_number(11))));  // what leaves, and comes at another interface
    CHECK(right.send(frame(0x88b5, kPort, 0x77, own)));
    REQUIRE(::write(go[1], "g", 1) == 1);
  }
  CHECK(exit_code(child) == 0);
  ::close(ready[0]);
  ::close(go[1]);
}

}  // namespace
}  // namespace sluice::test
