// Frames that carry a process's own pages, while a queue holds them back: what the process and its
// peer see, who is waited for, what is counted.
#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <grp.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernel_compat/slp/slp.h"
#include "kernel_compat/slp/slp_wire.h"
#include "tests/module/memory.h"
#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

constexpr size_t kBytes = 16 * 1024;  // less than a new peer is asked for at once
constexpr uint8_t kOld = 0x11, kNew = 0x22;

bool becomes(const std::function<bool()>& true_now) {
  for (int tries = 0; tries < 20000; ++tries) {
    if (true_now()) return true;
    ::poll(nullptr, 0, 1);
  }
  return false;
}

bool has(const uint8_t* data, size_t bytes, uint8_t value) {
  return std::find(data, data + bytes, value) != data + bytes;
}

// As much as all tests here register, from our region into the peer's handle.
sluice_transfer push_of(uint32_t region, uint32_t handle, uint64_t user_data = 0) {
  sluice_transfer push{};
  push.kind = SLUICE_PUSH;
  push.region = region;
  push.length = kBytes;
  push.handle = handle;
  push.user_data = user_data;
  return push;
}

void shell(const Namespace& space, const std::string& command) {
  int status = space.run([&] { return std::system(command.c_str()); });
  REQUIRE(status == 0);
}

// An owner whose memory a reader may read and write, with a queue on the owner's side that can be
// told to hold frames back. The owner has connected, so that it names nobody.
struct Queue {
  Module module;
  Wire wire;
  Fd reader = bound_socket(wire.b, 7000), owner = open_socket(wire.a.space);
  sockaddr_sluice caller{};
  Ring reader_ring{reader.value(), 64}, owner_ring{owner.value(), 64};
  Pages theirs{kBytes};
  uint8_t* memory;
  uint32_t region = 99, reader_region = 99, handle = 0, reader_handle = 0;
  Queue()
      : memory(static_cast<uint8_t*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    ::setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);  // tc, modprobe
    shell(wire.a.space,
          "modprobe sch_netem 2>/dev/null; tc qdisc replace dev end0 root netem delay 0us limit "
          "100000");
    std::memset(memory, kOld, kBytes);
    REQUIRE(connect_to(owner.value(), seen_from(wire.a, wire.b, 7000)) == 0);
    REQUIRE(send_on(owner.value(), "here I am") == 9);
    caller = receive(reader.value()).from;
    REQUIRE(register_memory(owner.value(), memory, kBytes, region) == 0);
    REQUIRE(register_memory(reader.value(), theirs.data(), kBytes, reader_region) == 0);
    REQUIRE(open_handle(owner.value(), sockaddr_sluice{}, region, 0, kBytes, SLUICE_MAY_READ,
                        handle) == 0);
    REQUIRE(open_handle(reader.value(), caller, reader_region, 0, kBytes, SLUICE_MAY_WRITE,
                        reader_handle) == 0);
  }
  ~Queue() {
    if (memory != nullptr) ::munmap(memory, kBytes);
  }
  void hold(const std::string& how) {
    shell(wire.a.space, "tc qdisc change dev end0 root netem limit 100000 " + how);
  }
  bool runs_dry() {
    return becomes([&] {
      return wire.a.space.run([] {
        return std::system("tc -s qdisc show dev end0 | grep -q 'backlog 0b 0p'");
      }) == 0;
    });
  }
  uint64_t count(const char* name) { return counter(wire.a.space, name); }
  // The reader asks, and all of it is in the queue.
  void pull_into_the_queue() {
    hold("delay 500ms");
    sluice_transfer pull{};
    pull.peer = caller;
    pull.kind = SLUICE_PULL;
    pull.region = reader_region;
    pull.length = kBytes;
    pull.handle = handle;
    REQUIRE(transfer(reader.value(), pull) == 0);
    REQUIRE(becomes([&] { return count("bytes_lent") >= kBytes; }));
  }
  uint32_t status() {
    auto end = reader_ring.wait();
    REQUIRE(end);
    return end->status;
  }
  // Whoever has nothing to do with it goes on.
  void check_good() {
    hold("delay 0us");
    REQUIRE(send_on(owner.value(), "still here") == 10);
    Received got;
    do got = receive(reader.value());
    while (got.result > 0 && got.text != "still here");
    CHECK(got.text == "still here");
  }
};

TEST_CASE(
    "a frame in a queue has the process's pages, and each byte is copied once on a wire that ends "
    "here") {
  Queue queue;
  uint64_t before = queue.count("bytes_copied_out");
  queue.pull_into_the_queue();
  CHECK(queue.count("bytes_copied_out") - before < 1000);  // acknowledgements and credit have none
  std::memset(queue.memory, kNew, kBytes);
  CHECK(queue.status() == SLP_OK);
  CHECK(std::all_of(queue.theirs.data(), queue.theirs.data() + kBytes,
                    [](uint8_t byte) { return byte == kNew; }));
  // veth hands the frame to another's eyes: the kernel has copied it, and says so. Some were sent
  // twice meanwhile.
  CHECK(queue.count("bytes_copied_out") - before >= kBytes);
  queue.check_good();
}

TEST_CASE("who has closed a handle may write to its memory: nothing of it is under way any more") {
  Queue queue;
  queue.pull_into_the_queue();
  REQUIRE(close_handle(queue.owner.value(), sockaddr_sluice{}, queue.handle) == 0);
  std::memset(queue.memory, kNew, kBytes);
  CHECK(unregister_memory(queue.owner.value(), queue.region) == 0);
  (void)queue.status();  // good or refused
  CHECK_FALSE(has(queue.theirs.data(), kBytes, kNew));
  CHECK(pinned_kib() == kBytes >> 10);  // the reader's
  queue.check_good();
}

// All that comes to the reader's interface and is of ours.
struct Listener {
  Fd fd;
  explicit Listener(const End& end)
      : fd(end.space.run([] {
          return Fd(
              ::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(SLP_ETHERTYPE)));
        })) {
    sockaddr_ll at{};
    at.sll_family = AF_PACKET;
    at.sll_protocol = htons(SLP_ETHERTYPE);
    at.sll_ifindex = static_cast<int>(end.ifindex);
    int yes = 1, room = 8 << 20;
    REQUIRE(::bind(fd.value(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
    REQUIRE(::setsockopt(fd.value(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof(yes)) == 0);
    REQUIRE(::setsockopt(fd.value(), SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) == 0);
  }
  // Payloads of data frames that came since: how many, and of these, how many with kNew.
  std::pair<unsigned, unsigned> data() {
    std::pair<unsigned, unsigned> out;
    uint8_t frame[2048];
    for (ssize_t came; (came = ::recv(fd.value(), frame, sizeof(frame), 0)) > 0;) {
      slp_base base;
      auto bytes = static_cast<size_t>(came);
      if (slp_decode_base(frame, bytes, bytes, &base) != SLP_TAKEN || base.type != SLP_DATA)
        continue;
      ++out.first;
      out.second += has(frame + SLP_BASE_BYTES + SLP_DATA_BYTES, base.payload_bytes, kNew);
    }
    return out;
  }
};

TEST_CASE("a push is over when nothing of it is under way, also what was sent twice") {
  Queue queue;
  Listener listener(queue.wire.b);
  // What is not held back overtakes what is, which is then sent once more, and is acknowledged.
  queue.hold("delay 300ms reorder 50%");
  sluice_transfer push = push_of(queue.region, queue.reader_handle);
  REQUIRE(transfer(queue.owner.value(), push) == 0);
  auto end = queue.owner_ring.wait();
  REQUIRE(end);
  CHECK(end->status == SLP_OK);
  std::memset(queue.memory, kNew, kBytes);
  CHECK(std::all_of(queue.theirs.data(), queue.theirs.data() + kBytes,
                    [](uint8_t byte) { return byte == kOld; }));
  queue.check_good();
  // What the queue held before is through it, too.
  CHECK(queue.runs_dry());
  auto [frames, changed] = listener.data();
  CHECK(frames > kBytes / 1500);
  CHECK(changed == 0);
}

TEST_CASE("who cancels a push may write to its memory when its completion is there") {
  Queue queue;
  Listener listener(queue.wire.b);
  queue.hold("delay 500ms");
  sluice_transfer push = push_of(queue.region, queue.reader_handle, 5);
  REQUIRE(transfer(queue.owner.value(), push) == 0);
  REQUIRE(becomes([&] { return queue.count("bytes_lent") > 0; }));
  REQUIRE(cancel(queue.owner.value(), 5) == 0);
  auto end = queue.owner_ring.take();
  REQUIRE(end);
  CHECK(end->status == SLP_CANCELLED);
  std::memset(queue.memory, kNew, kBytes);
  CHECK(unregister_memory(queue.owner.value(), queue.region) == EBUSY);  // the handle
  queue.check_good();
  CHECK(queue.runs_dry());
  auto [frames, changed] = listener.data();
  CHECK(frames > 0);
  CHECK(changed == 0);
}

TEST_CASE(
    "memory that is unmapped while a queue has its frames goes out as it was, and nobody else's "
    "does") {
  Queue queue;
  queue.pull_into_the_queue();
  ::munmap(queue.memory, kBytes);
  // Whoever gets pages now gets others.
  Pages others(64 * kBytes);
  std::memset(others.data(), kNew, others.size());
  queue.memory = nullptr;
  (void)queue.status();
  CHECK_FALSE(has(queue.theirs.data(), kBytes, kNew));
  CHECK(becomes([&] { return queue.count("regions_gone") == 1; }));
  CHECK(unregister_memory(queue.owner.value(), queue.region) == 0);
  queue.check_good();
}

TEST_CASE(
    "who is told that memory is gone may write to what is left of it: nothing of it is under way "
    "any more") {
  Queue queue;
  queue.pull_into_the_queue();
  ::munmap(queue.memory, 4096);
  auto told = queue.owner_ring.wait();
  REQUIRE(told);
  CHECK(told->kind == SLUICE_HANDLE_GONE);
  CHECK(told->status == SLUICE_MEMORY_GONE);
  CHECK(told->notice == queue.handle);
  std::memset(queue.memory + 4096, kNew, kBytes - 4096);
  CHECK(unregister_memory(queue.owner.value(), queue.region) == 0);
  (void)queue.status();
  CHECK_FALSE(has(queue.theirs.data(), kBytes, kNew));
  queue.check_good();
}

// Registers memory as a user without privileges, pushes some of it, and says whether frames had its
// pages: 1 or 2, 0 if something failed.
char push_as_nobody(const Queue& queue, Fd socket, int handles) {
  constexpr size_t kEach = 80 << 10;  // of a limit of 128 KiB
  int fd = socket.value();
  rlimit limit{.rlim_cur = 128 << 10, .rlim_max = 128 << 10};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::setgroups(0, nullptr) != 0 ||
      ::setresuid(65534, 65534, 0) != 0)
    return 0;
  auto lent = [&] {
    if (::seteuid(0) != 0) ::_exit(1);
    uint64_t bytes = counter(queue.wire.a.space, "bytes_lent");
    if (::seteuid(65534) != 0) ::_exit(1);
    return bytes;
  };
  static Pages pages(kEach);  // until the process ends
  static Ring ring(fd, 64);
  uint32_t region = 0, handle = 0;
  if (connect_to(fd, seen_from(queue.wire.a, queue.wire.b, 7000)) != 0 || send_on(fd, "two") != 3)
    return 0;
  if (::read(handles, &handle, sizeof(handle)) != sizeof(handle) ||
      register_memory(fd, pages.data(), kEach, region) != 0)
    return 0;
  uint64_t before = lent();
  sluice_transfer push = push_of(region, handle);
  if (transfer(fd, push) != 0) return 0;
  auto end = ring.wait();
  if (!end || end->status != SLP_OK) return 0;
  static Fd kept(std::move(socket));  // and with it the region
  return lent() > before ? 1 : 2;
}

// Frames may outlive whoever had their pages, and another process would have a limit of its own.
TEST_CASE("what a user has lent counts as his, and beyond his limit frames are copied") {
  Queue queue;
  queue.hold("delay 0us");
  int handles[2], says[2], stay[2];
  REQUIRE((::pipe(handles) == 0 && ::pipe(says) == 0 && ::pipe(stay) == 0));
  pid_t children[2];
  for (int i = 0; i < 2; ++i) {
    children[i] = ::fork();
    if (children[i] == 0) {
      ::close(stay[1]);
      char word = push_as_nobody(queue, open_socket(queue.wire.a.space), handles[0]);
      if (::write(says[1], &word, 1) != 1) ::_exit(1);
      ::_exit(::read(stay[0], &word, 1) == 0 ? 0 : 1);
    }
    Received got = receive(queue.reader.value());
    REQUIRE(got.text == "two");
    uint32_t handle = 0;
    REQUIRE(open_handle(queue.reader.value(), got.from, queue.reader_region, 0, kBytes,
                        SLUICE_MAY_WRITE, handle) == 0);
    REQUIRE(::write(handles[1], &handle, sizeof(handle)) == sizeof(handle));
    char word = 0;
    REQUIRE(::read(says[0], &word, 1) == 1);
    CHECK(word == i + 1);
  }
  ::close(stay[1]);
  for (pid_t child : children) {
    int status = 1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  for (int fd : {handles[0], handles[1], says[0], says[1], stay[0]}) ::close(fd);
}

TEST_CASE(
    "a process that forks while a queue has its frames goes on with its own pages, and its child "
    "has others") {
  Queue queue;
  queue.pull_into_the_queue();
  pid_t child = ::fork();
  if (child == 0) {
    std::memset(queue.memory, kNew, kBytes);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  CHECK(queue.status() == SLP_OK);
  CHECK_FALSE(has(queue.theirs.data(), kBytes, kNew));
  queue.check_good();
}

TEST_CASE(
    "a socket that is closed, and a process that is killed, leave frames in a queue, and the "
    "module stays until they are gone") {
  bool killed = GENERATE(false, true);
  INFO(killed);
  Queue queue;
  pid_t child = 0;
  int told[2];
  REQUIRE(::pipe(told) == 0);
  auto own_end = [&] {
    // Memory of its own, lent to frames that leave in half a second.
    Pages pages(kBytes);
    std::memset(pages.data(), kOld, kBytes);
    Fd fd = open_socket(queue.wire.a.space);
    Ring ring(fd.value(), 64);
    uint32_t region = 0;
    queue.hold("delay 0us");
    bool good = connect_to(fd.value(), seen_from(queue.wire.a, queue.wire.b, 7000)) == 0 &&
                send_on(fd.value(), "two") == 3;
    char word = 0;
    if (::read(told[0], &word, 1) != 1) ::_exit(1);
    uint32_t handle = 0;
    std::memcpy(&handle, receive(fd.value()).text.data(), sizeof(handle));
    good = good && register_memory(fd.value(), pages.data(), kBytes, region) == 0;
    queue.hold("delay 500ms");
    sluice_transfer push = push_of(region, handle);
    uint64_t before = queue.count("bytes_lent");
    good = good && transfer(fd.value(), push) == 0 &&
           becomes([&] { return queue.count("bytes_lent") > before; });
    if (!good) ::_exit(1);
    if (killed) ::kill(::getpid(), SIGKILL);
    // Not as it would go with close(): nothing lingers.
    linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd.value(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    fd.reset();
    pages.unmap();
    ::_exit(0);
  };
  child = ::fork();
  if (child == 0) own_end();
  Received got = receive(queue.reader.value());
  REQUIRE(got.text == "two");
  uint32_t handle = 0;
  REQUIRE(open_handle(queue.reader.value(), got.from, queue.reader_region, 0, kBytes,
                      SLUICE_MAY_WRITE, handle) == 0);
  REQUIRE(send_to(queue.reader.value(),
                  std::string(reinterpret_cast<char*>(&handle), sizeof(handle)),
                  got.from) == sizeof(handle));
  REQUIRE(::write(told[1], "x", 1) == 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == (killed ? SIGKILL : 0));
  queue.owner.reset();
  queue.reader.reset();
  queue.theirs.unmap();
  CHECK(unload_module() != 0);  // frames are in the queue still, or sockets that were just closed
  // ~Module: it goes when they have gone.
}

TEST_CASE("a queue that keeps frames for ever holds up nobody for more than ten seconds or so") {
  Queue queue;
  queue.hold("delay 100s");
  sluice_transfer pull{};
  pull.peer = queue.caller;
  pull.kind = SLUICE_PULL;
  pull.region = queue.reader_region;
  pull.length = kBytes;
  pull.handle = queue.handle;
  REQUIRE(transfer(queue.reader.value(), pull) == 0);
  REQUIRE(becomes([&] { return queue.count("bytes_lent") > 0; }));
  REQUIRE(close_handle(queue.owner.value(), sockaddr_sluice{}, queue.handle) == 0);
  CHECK(unregister_memory(queue.owner.value(), queue.region) == 0);
  shell(queue.wire.a.space, "tc qdisc del dev end0 root");  // and its frames
}

}  // namespace
}  // namespace sluice::module_test
