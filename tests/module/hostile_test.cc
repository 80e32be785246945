// A process that means harm, without any privilege: it may get errors, and nothing else may
// happen. What it does is drawn from a seed; the kernel's log is judged by the lab.
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/module/memory.h"
#include "tests/module/nobody.h"
#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

constexpr int kSockets = 6;
constexpr int kThreads = 3;

// Pointers, lengths and numbers that a call may be given.
class Malice {
 public:
  Malice(unsigned seed, const Wire& wire) : random_(seed), wire_(wire) {
    page_ = static_cast<char*>(
        ::mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::mprotect(page_ + 4096, 4096, PROT_READ);
    ::mprotect(page_ + 8192, 4096, PROT_NONE);
  }
  ~Malice() { ::munmap(page_, 3 * 4096); }
  uint32_t draw(uint32_t below) { return random_() % below; }
  void* pointer() {
    switch (draw(8)) {
      case 0: return nullptr;
      case 1: return reinterpret_cast<void*>(~uintptr_t{0} - draw(64));
      case 2: return reinterpret_cast<void*>(0xffff888000000000u + draw(1 << 20));
      case 3: return page_ + 4096 - draw(32);
      case 4: return page_ + 8192 - draw(32);
      default: return page_ + draw(2048);
    }
  }
  size_t length() {
    static constexpr size_t kLengths[] = {0,
                                          1,
                                          2,
                                          15,
                                          16,
                                          17,
                                          127,
                                          128,
                                          129,
                                          1500,
                                          5631,
                                          5632,
                                          5633,
                                          65536,
                                          1u << 30,
                                          0x7fffffff,
                                          ~size_t{0} >> 1};
    return draw(3) ? draw(5700) : kLengths[draw(std::size(kLengths))];
  }
  int number() {
    static constexpr int kNumbers[] = {
        0,   1,   -1,   2,       64,      255,        256,
        257, 100, 3000, 1000000, 1000001, 0x7fffffff, static_cast<int>(0x80000000u)};
    return kNumbers[draw(std::size(kNumbers))];
  }
  void* page() { return page_; }
  sockaddr_sluice address() {
    sockaddr_sluice out = draw(2)
                              ? seen_from(wire_.a, wire_.b, static_cast<uint16_t>(7000 + draw(4)))
                              : seen_from(wire_.b, wire_.a, static_cast<uint16_t>(7000 + draw(4)));
    if (draw(6) == 0) out.family = static_cast<uint16_t>(draw(60));
    if (draw(6) == 0) out.ifindex = draw(2) ? draw(50) : 0xffffffffu;
    if (draw(6) == 0) out.port = static_cast<uint16_t>(draw(65536));
    if (draw(6) == 0) out.mac[draw(6)] ^= static_cast<uint8_t>(1 + draw(255));
    if (draw(9) == 0) std::memset(out.mac, draw(2) ? 0xff : 0, 6);
    return out;
  }

 private:
  std::minstd_rand random_;
  const Wire& wire_;
  char* page_;
};

// Through either door.
int any_socket(Malice& malice) {
  if (malice.draw(4) == 0) {
    int door = ::open("/dev/sluice", O_RDWR | O_CLOEXEC);
    int fd = ::ioctl(
        door, malice.draw(4) ? SLUICE_SOCKET : SLUICE_SOCKET ^ (1ul << malice.draw(32)),
        malice.draw(4) ? SOCK_CLOEXEC | (malice.draw(2) ? SOCK_NONBLOCK : 0) : malice.number());
    ::close(door);
    set_timeout(fd, 20);
    return fd;
  }
  static constexpr int kTypes[] = {SOCK_RDM,    SOCK_RDM,   SOCK_RDM, SOCK_RDM,      SOCK_RDM,
                                   SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET};
  int type = kTypes[malice.draw(std::size(kTypes))];
  int fd = ::socket(SLUICE_FAMILY, type | SOCK_CLOEXEC | (malice.draw(2) ? SOCK_NONBLOCK : 0),
                    malice.draw(12) == 0 ? malice.number() : 0);
  set_timeout(fd, 20);  // a call that never ends is no finding
  return fd;
}

void call_options(Malice& malice, int fd) {
  int level = malice.draw(4) ? SOL_SLUICE : malice.draw(2) ? SOL_SOCKET : malice.number();
  int name = malice.draw(4) ? static_cast<int>(malice.draw(12)) : malice.number();
  int value = malice.number();
  if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO)) return;
  switch (malice.draw(3)) {
    case 0: ::setsockopt(fd, level, name, &value, sizeof(value)); break;
    case 1:
      ::setsockopt(fd, level, name, malice.pointer(), static_cast<socklen_t>(malice.length()));
      break;
    default: {
      socklen_t length = static_cast<socklen_t>(malice.length());
      ::getsockopt(fd, level, name, malice.pointer(),
                   malice.draw(2) ? &length : static_cast<socklen_t*>(malice.pointer()));
    }
  }
}

void call_message(Malice& malice, int fd) {
  sockaddr_sluice address = malice.address();
  iovec pieces[3];
  for (iovec& piece : pieces) piece = {malice.pointer(), malice.length()};
  msghdr header{};
  header.msg_name = malice.draw(3) ? &address : malice.draw(2) ? malice.pointer() : nullptr;
  header.msg_namelen = malice.draw(3) ? sizeof(address) : static_cast<socklen_t>(malice.length());
  header.msg_iov = malice.draw(8) ? pieces : static_cast<iovec*>(malice.pointer());
  header.msg_iovlen = malice.draw(8) ? malice.draw(4) : malice.length();
  if (malice.draw(4) == 0) {
    header.msg_control = malice.pointer();
    header.msg_controllen = malice.length();
  }
  int flags = MSG_NOSIGNAL | (malice.draw(4) ? MSG_DONTWAIT : 0) |
              (malice.draw(6) == 0 ? malice.number() & ~MSG_WAITALL : 0);
  if (malice.draw(2)) {
    ::sendmsg(fd, &header, flags);
  } else {
    ::recvmsg(fd, &header, flags | MSG_DONTWAIT);
  }
}

void call_good(Malice& malice, int fd) {
  std::string text(malice.draw(SLUICE_MAX_MESSAGE + 1), 'x');
  if (malice.draw(2)) {
    send_to(fd, text, malice.address(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } else {
    receive(fd, MSG_DONTWAIT, malice.draw(6000));
  }
}

// Memory, handles and transfers that are often nearly right; the ring is scribbled on.
void call_memory(Malice& malice, int fd) {
  sockaddr_sluice peer = malice.draw(2) ? sockaddr_sluice{} : malice.address();
  uint32_t number = malice.draw(5) ? malice.draw(4) : static_cast<uint32_t>(malice.number());
  uint64_t offset = malice.draw(3) ? malice.draw(9000)
                                   : static_cast<uint64_t>(static_cast<int64_t>(malice.number()));
  uint64_t length = malice.draw(3) ? malice.draw(9000) : malice.length();
  // Handles of SLP: an index and a generation, which a process is told.
  uint32_t handle = malice.draw(4) | malice.draw(3) << 16;
  switch (malice.draw(10)) {
    case 0: register_memory(fd, malice.pointer(), length, number); break;
    case 1: register_memory(fd, malice.page(), malice.draw(4) ? 4096 : 8192, number); break;
    case 2: unregister_memory(fd, number); break;
    case 3: open_handle(fd, peer, number, offset, length, malice.draw(5), handle); break;
    case 4: close_handle(fd, peer, handle); break;
    case 5: {
      sluice_transfer request{};
      request.peer = peer;
      request.user_data = malice.draw(4);
      request.offset = offset;
      request.length = length;
      request.region = number;
      request.handle = handle;
      request.kind = malice.draw(5);
      transfer(fd, request);
      break;
    }
    case 6: cancel(fd, malice.draw(4)); break;
    case 7: {
      static constexpr unsigned long kCommands[] = {SLUICE_REGISTER, SLUICE_UNREGISTER,
                                                    SLUICE_OPEN,     SLUICE_CLOSE,
                                                    SLUICE_TRANSFER, SLUICE_CANCEL};
      unsigned long command = kCommands[malice.draw(6)];
      ::ioctl(fd, malice.draw(2) ? command : command ^ (1ul << malice.draw(32)), malice.pointer());
      break;
    }
    case 8:
      if (malice.draw(2))
        ::madvise(malice.page(), 4096, MADV_DONTNEED);
      else
        ::mmap(malice.page(), 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
               -1, 0);
      break;
    default: {
      int entries = 64;
      ::setsockopt(fd, SOL_SLUICE, SLUICE_RING, &entries, sizeof(entries));
      size_t bytes = 4096 * (1 + malice.draw(2));
      void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        malice.draw(4) ? MAP_SHARED : MAP_PRIVATE, fd, malice.draw(8) ? 0 : 4096);
      if (at == MAP_FAILED) break;
      for (int i = 0; i < 32; ++i)
        static_cast<uint32_t*>(at)[malice.draw(static_cast<uint32_t>(bytes / 4))] =
            static_cast<uint32_t>(malice.number());
      ::munmap(at, bytes);
    }
  }
}

void call(Malice& malice, std::array<int, kSockets>& sockets) {
  int& fd = sockets[malice.draw(kSockets)];
  sockaddr_sluice address = malice.address();
  auto* pointer = malice.draw(5) ? reinterpret_cast<sockaddr*>(&address)
                                 : static_cast<sockaddr*>(malice.pointer());
  socklen_t length = malice.draw(5) ? static_cast<socklen_t>(sizeof(address))
                                    : static_cast<socklen_t>(malice.length());
  sockaddr_storage name;
  socklen_t room = sizeof(name);
  switch (malice.draw(26)) {
    case 0: {
      int old = fd;
      fd = any_socket(malice);  // the other threads' calls meet the close
      ::close(old);
      break;
    }
    case 1:
    case 2: ::bind(fd, pointer, length); break;
    case 3:
    case 4: ::connect(fd, pointer, length); break;
    case 5: {
      sockaddr none{};
      ::connect(fd, &none, sizeof(none));
      break;
    }
    case 6:
      malice.draw(2) ? ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &room)
                     : ::getpeername(fd, static_cast<sockaddr*>(malice.pointer()), &room);
      break;
    case 7:
      ::shutdown(fd, malice.draw(3) ? static_cast<int>(malice.draw(4)) : malice.number());
      break;
    case 8:
      ::ioctl(fd, malice.draw(2) ? 0x541bu : static_cast<unsigned>(malice.number()),
              malice.pointer());
      break;
    case 9: {
      pollfd wait{.fd = fd, .events = POLLIN | POLLOUT, .revents = 0};
      ::poll(&wait, 1, 0);
      break;
    }
    case 10: ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0); break;
    case 11:
      ::listen(fd, malice.number());
      ::accept(fd, nullptr, nullptr);
      break;
    case 12: call_options(malice, fd); break;
    case 13: {
      char text[64];
      if (malice.draw(2))
        (void)!::write(fd, text, malice.draw(64));
      else
        (void)!::read(fd, text, malice.draw(64));
      break;
    }
    case 14:
    case 15: call_message(malice, fd); break;
    case 16:
    case 17:
    case 18:
    case 19:
    case 20:
    case 21: call_memory(malice, fd); break;
    default: call_good(malice, fd);
  }
}

// One of them, and its child that has all of its sockets.
[[noreturn]] void attack(const Wire& wire, unsigned seed, int calls) {
  std::array<int, kSockets> sockets;
  {
    // From either namespace; and those that it opens later, from the one it is left in.
    Malice malice(seed, wire);
    for (int i = 0; i < kSockets; ++i) {
      Fd made = open_socket(i % 2 ? wire.a.space : wire.b.space, i % 3 ? SOCK_NONBLOCK : 0);
      sockets[static_cast<size_t>(i)] = ::dup(made.value());
      set_timeout(sockets[static_cast<size_t>(i)], 20);
    }
  }
  if (::setns(wire.a.space.fd(), CLONE_NEWNET) != 0) ::_exit(8);
  become_nobody();
  pid_t child = ::fork();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&wire, &sockets, seed, t, child, calls] {
      Malice malice(seed * 16 + static_cast<unsigned>(t) * 2 + (child == 0), wire);
      for (int i = 0; i < calls; ++i) call(malice, sockets);
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (child == 0) ::_exit(0);
  if (seed % 2) ::kill(child, SIGKILL);
  int status;
  ::waitpid(child, &status, 0);
  ::_exit(0);
}

TEST_CASE("hostile processes get errors, and an honest pair goes on beside them") {
  Module module;
  Wire wire;
  for (const End* end : {&wire.a, &wire.b}) let_everybody_in(end->space);
  REQUIRE(::chmod("/dev/sluice", 0666) == 0);
  Fd server = bound_socket(wire.b, 9000), client = open_socket(wire.a.space);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 9000)) == 0);
  for (unsigned round = 0; round < 6; ++round) {
    pid_t attackers[2];
    for (unsigned i = 0; i < 2; ++i) {
      attackers[i] = ::fork();
      if (attackers[i] == 0) attack(wire, 2 * round + i + 1, 4000);
    }
    bool running[2] = {true, true};
    unsigned exchanged = 0;
    while (running[0] || running[1]) {
      std::string text(exchanged++ * 131 % SLUICE_MAX_MESSAGE, 'y');
      REQUIRE(send_on(client.value(), text) == static_cast<int>(text.size()));
      Received got = receive(server.value());
      REQUIRE(got.text == text);
      REQUIRE(send_to(server.value(), text, got.from) == static_cast<int>(text.size()));
      REQUIRE(receive(client.value()).text == text);
      for (int i = 0; i < 2; ++i) {
        int status = 0;
        if (!running[i] || ::waitpid(attackers[i], &status, WNOHANG) == 0) continue;
        running[i] = false;
        CHECK(status == 0);
      }
    }
    CHECK(exchanged > 0);
  }
}

TEST_CASE("messages and lengths at their limits") {
  Module module;
  Wire wire;
  Fd server = bound_socket(wire.b, 7000), client = open_socket(wire.a.space);
  REQUIRE(connect_to(client.value(), seen_from(wire.a, wire.b, 7000)) == 0);
  CHECK(send_on(client.value(), std::string(SLUICE_MAX_MESSAGE + 1, 'x')) == -EMSGSIZE);
  CHECK(send_on(client.value(), std::string(SLUICE_MAX_MESSAGE, 'x')) == SLUICE_MAX_MESSAGE);
  CHECK(::send(client.value(), nullptr, 10, 0) == -1);
  CHECK(errno == EFAULT);
  CHECK(send_to(client.value(), "x", seen_from(wire.a, wire.b, 7000)) == -EISCONN);
  CHECK(send_on(client.value(), "x", MSG_OOB) == -EOPNOTSUPP);
  CHECK(receive(server.value()).result == SLUICE_MAX_MESSAGE);
  sockaddr_sluice everybody = seen_from(wire.a, wire.b, 7000);
  std::memset(everybody.mac, 0xff, 6);
  Fd other = open_socket(wire.a.space);
  CHECK(send_to(other.value(), "x", everybody) == -EINVAL);
  CHECK(send_on(other.value(), "x") == -EDESTADDRREQ);
  CHECK(connect_to(client.value(), seen_from(wire.a, wire.b, 7001)) == EISCONN);
  sockaddr_sluice foreign = wire.a.local(7005);
  foreign.mac[0] = 2;
  CHECK(bind_to(other.value(), foreign) == EADDRNOTAVAIL);
  foreign.ifindex = 4000;
  CHECK(bind_to(other.value(), foreign) == ENODEV);
}

}  // namespace
}  // namespace sluice::module_test
