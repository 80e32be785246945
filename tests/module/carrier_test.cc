// The library over the module: programs in two namespaces that know kmod:// addresses only. Which
// door they come by: carrier_doors_test.cc.
#include <catch2/catch.hpp>
#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/select/open.h>

#include "kernel_compat/slp/slp.h"
#include "tests/module/carrier.h"
#include "tests/module/memory.h"
#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

using namespace std::chrono_literals;

TEST_CASE("small and large messages cross by the module, and the receipts say who copied") {
  constexpr size_t kSmall = 1000, kLarge = (3 << 20) + 5;
  Module module;
  // Of an Ethernet, of a cloud's network, and the least that IPv6 allows.
  int mtu = GENERATE(1500, 1400, 1280);
  INFO("MTU " << mtu);
  Wire wire(mtu);
  Echo echo(wire, "kmod://end0:7000", {kSmall, kLarge});
  std::string address = echo.address();
  INFO(address);
  wire.a.space.run([&] {
    auto context = small_context();
    auto server = context->connect(address);
    INFO(server.status().to_string());
    REQUIRE(server.ok());
    Sent small = exchange(*context, *server, kSmall, 1);
    CHECK(small.out.path == Path::kModule);
    CHECK(small.out.copied_bytes == 0);
    CHECK(small.out.kernel_copied_bytes == 3 * kSmall);
    // Once more if it came before it was asked for.
    CHECK((small.in.copied_bytes == kSmall || small.in.copied_bytes == 2 * kSmall));
    CHECK(small.in.kernel_copied_bytes == 3 * kSmall);
    uint64_t in_before = counter(wire.a.space, "bytes_copied_in"),
             out_before = counter(wire.a.space, "bytes_copied_out");
    Sent large = exchange(*context, *server, kLarge, 2);
    for (const Receipt& receipt : {large.out, large.in}) {
      CHECK(receipt.copied_bytes == 0);
      CHECK(receipt.kernel_copied_bytes == kLarge);
    }
    // The kernel's own count agrees, but for control messages.
    CHECK(counter(wire.a.space, "bytes_copied_in") - in_before < kLarge + kLarge / 10);
    CHECK(counter(wire.a.space, "bytes_copied_out") - out_before < kLarge + kLarge / 10);
    CHECK(server->close(soon()).ok());
  });
  Status served = echo.wait();
  INFO(served.to_string());
  CHECK(served.ok());
}

TEST_CASE(
    "a program without the module's path that listens by packet sockets answers one that has it") {
  Module module;
  int mtu = GENERATE(1500, 1400);
  INFO("MTU " << mtu);
  Wire wire(mtu);
  Echo echo(wire, "l2://end0:7000", {500, 300'000});
  std::string address = echo.address();
  INFO(address);
  REQUIRE(address.starts_with("l2://"));
  wire.a.space.run([&] {
    auto context = small_context();
    auto server = context->connect("kmod" + address.substr(2));
    INFO(server.status().to_string());
    REQUIRE(server.ok());
    exchange(*context, *server, 500, 1);
    exchange(*context, *server, 300'000, 2);
    CHECK(server->close(soon()).ok());
  });
  Status served = echo.wait();
  INFO(served.to_string());
  CHECK(served.ok());
}

// A secret is what the module cannot keep.
TEST_CASE(
    "sluice:// takes the module before raw frames where both ends wish Ethernet, and raw frames "
    "where there is a secret") {
  bool by_module = GENERATE(true, false);
  Module module;
  Wire wire;
  wire.a.space.ip("address add 10.9.0.1/24 dev end0");
  wire.b.space.ip("address add 10.9.0.2/24 dev end0");
  ::setenv("SLUICE_ETHERNET", "1", 1);
  Echo echo(wire, "sluice://10.9.0.2:0", {1000, 300'000});
  std::string address = echo.address();
  wire.a.space.run([&] {
    auto context = small_context();
    char file[] = "/tmp/sluice-secret-XXXXXX";
    if (!by_module) {
      int fd = ::mkstemp(file);
      REQUIRE(::write(fd, "sixteen bytes or more", 21) == 21);
      ::close(fd);
      ::setenv("SLUICE_L2_SECRET_FILE", file,
               1);  // the listener's raw frames, too: they are listened for when somebody comes
    }
    auto server = context->connect(address);
    ::unsetenv("SLUICE_L2_SECRET_FILE");
    if (!by_module) ::unlink(file);
    INFO(server.status().to_string());
    REQUIRE(server.ok());
    INFO(server->info().reason);
    CHECK(server->info().path.path == (by_module ? Path::kModule : Path::kPacket));
    CHECK((server->info().reason.find("not kmod: ") == std::string::npos) == by_module);
    CHECK(exchange(*context, *server, 1000, 1).out.path == server->info().path.path);
    exchange(*context, *server, 300'000, 2);
    CHECK(server->close(soon()).ok());
  });
  Status served = echo.wait();
  ::unsetenv("SLUICE_ETHERNET");
  INFO(served.to_string());
  CHECK(served.ok());
}

// All frames of ours that come to an end of the wire.
struct Sniffer {
  Fd fd;
  explicit Sniffer(const End& end)
      : fd(end.space.run([] {
          return Fd(::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(0x88b5)));
        })) {
    int room = 32 << 20;
    REQUIRE(fd.value() >= 0);
    REQUIRE(::setsockopt(fd.value(), SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) == 0);
  }
  // Of those with a payload: with a checksum of it, and without.
  std::pair<int, int> payloads() {
    std::pair<int, int> out;
    uint8_t frame[2048];
    for (ssize_t came; (came = ::recv(fd.value(), frame, sizeof(frame), 0)) > 8;) {
      bool has_payload = ((frame[0] & 31) == SLP_EAGER || (frame[0] & 31) == SLP_DATA) &&
                         (frame[6] != 0 || frame[7] != 0);
      if (has_payload) ++((frame[1] & SLP_FLAG_PCRC) != 0 ? out.first : out.second);
    }
    return out;
  }
};

TEST_CASE(
    "a program that asks for checksums gets them over the module, from a peer that does not ask") {
  bool asks = GENERATE(false, true);
  INFO(asks);
  Module module;
  Wire wire;
  Sniffer there(wire.b);
  Echo echo(wire, "kmod://end0:7000", {500, 300'000});
  std::string address = echo.address();
  wire.a.space.run([&] {
    auto context = small_context();
    if (asks) ::setenv("SLUICE_L2_CHECKSUMS", "1", 1);
    auto server = context->connect(address);
    ::unsetenv("SLUICE_L2_CHECKSUMS");
    INFO(server.status().to_string());
    REQUIRE(server.ok());
    (void)there.payloads();  // the listener's own session, and the beginning
    exchange(*context, *server, 500, 1);
    exchange(*context, *server, 300'000, 2);
    auto [with, without] = there.payloads();
    CHECK((asks ? without : with) == 0);
    CHECK((asks ? with : without) > 200);
    CHECK(server->close(soon()).ok());
  });
  CHECK(echo.wait().ok());
}

TEST_CASE(
    "a listener lets in as many connections of one MAC address as it was told, and another when "
    "one has ended") {
  Module module;
  Wire wire;
  auto context = small_context();
  Listener listener;
  wire.b.space.run([&] {
    listener = context->listen("kmod://end0:7000", {.max_connections_by_address = 1}).value();
  });
  auto call = [&] {
    return std::async(std::launch::async, [&, address = listener.address()] {
      Status outcome;
      wire.a.space.run([&] {
        auto ours = small_context();
        auto server = ours->connect(address, {.timeout = 20s});
        outcome = server.status();
        if (!outcome.ok()) return;
        // Who is turned away hears of it here.
        auto got = server->receive_and_wait({.tag = 1}, ours->allocate({8}, uint8).value(), soon());
        outcome = got.status();
        (void)server->close(soon());
      });
      return outcome;
    });
  };
  // Connections are sockets of their own, which are made where the listener is.
  auto accept = [&](Instant deadline) {
    return wire.b.space.run([&] { return listener.accept(deadline); });
  };
  auto greet = [&](Endpoint& peer) {
    return peer.send_and_wait(1, context->allocate({8}, uint8).value().freeze(), soon()).ok();
  };
  std::future<Status> first = call();
  auto one = accept(soon());
  INFO(one.status().to_string());
  REQUIRE(one.ok());
  std::future<Status> second = call();
  auto none = accept(after(now(), 6s));
  CHECK_FALSE(none.ok());
  CHECK_FALSE(second.get().ok());
  CHECK(greet(*one));
  CHECK(first.get().ok());
  (void)one->close(soon());
  one = Endpoint();
  std::future<Status> third = call();
  auto next = accept(soon());
  INFO(next.status().to_string());
  REQUIRE(next.ok());
  CHECK(greet(*next));
  CHECK(third.get().ok());
}

TEST_CASE("where a granted window begins cannot be guessed from others, and a guess is denied") {
  Module module;
  Wire wire;
  auto context = small_context();
  Listener listener;
  wire.b.space.run([&] { listener = context->listen("kmod://end0:7000").value(); });
  std::promise<RemoteKey> told;
  std::future<Status> caller = std::async(std::launch::async, [&, address = listener.address()] {
    Status outcome;
    wire.a.space.run([&] {
      auto ours = small_context();
      auto server = ours->connect(address, {.timeout = 20s});
      outcome = server.status();
      if (!outcome.ok()) return;
      RemoteKey key = told.get_future().get(), guess = key;
      for (uint64_t address : {uint64_t{1} << 32, uint64_t{0}, key.address ^ uint64_t{1} << 61,
                               key.address + key.length}) {
        guess.address = address;
        auto room = ours->allocate({8}, uint8);
        if (server->read_and_wait(guess, 0, std::move(*room), soon()).status().code() !=
            Code::kAccessDenied)
          outcome = Status(Code::kInternal, Scope::kOperation, "test", "a guess was not denied");
      }
      auto right = server->read_and_wait(key, 0, ours->allocate({8}, uint8).value(), soon());
      if (outcome.ok()) outcome = right.status();
      (void)server->close(soon());
    });
    return outcome;
  });
  auto peer = wire.b.space.run([&] { return listener.accept(soon()); });
  REQUIRE(peer.ok());
  Buffer memory = context->allocate({20'000}, uint8).value();
  // Every bit of them is sometimes set and sometimes not: of 40 random ones one in 2^39 is not.
  uint64_t set = 0, clear = 0;
  for (int i = 0; i < 40; ++i) {
    auto key = peer->grant(memory, {.rights = Right::kReadWrite});
    REQUIRE(key.ok());
    set |= key->address - (uint64_t{1} << 32);
    clear |= ~(key->address - (uint64_t{1} << 32));
    CHECK(peer->revoke(*key).ok());
  }
  CHECK((set & clear) == SLUICE_MAX_BASE);
  auto key = peer->grant(memory, {.rights = Right::kRead});
  REQUIRE(key.ok());
  told.set_value(*key);
  while (caller.wait_for(0s) != std::future_status::ready) context->progress();
  Status outcome = caller.get();
  INFO(outcome.to_string());
  CHECK(outcome.ok());
}

constexpr std::byte kOld{0x11}, kNew{0x22};

// In the other namespace: reads what it is granted, again and again, until it may not.
class Reader {
 public:
  Reader(const Wire& wire, const std::string& address, size_t bytes)
      : thread_([this, &wire, address, bytes] {
          wire.b.space.run([&] { outcome_ = serve(address, bytes); });
          if (!told_) listening_.set_value(outcome_.to_string());
        }) {}
  ~Reader() { thread_.join(); }
  std::string address() { return listening_.get_future().get(); }
  void read(const RemoteKey& key) { key_.set_value(key); }
  Status wait() {
    thread_.join();
    thread_ = std::thread([] {});
    return outcome_;
  }

 private:
  Status serve(const std::string& address, size_t bytes) {
    auto context = small_context();
    SLUICE_TRY(Listener listener, context->listen(address));
    told_ = true;
    listening_.set_value(listener.address());
    SLUICE_TRY(Endpoint peer, listener.accept(soon()));
    RemoteKey key = key_.get_future().get();
    for (Status read; read.ok();) {
      SLUICE_TRY(Buffer room, context->allocate({static_cast<int64_t>(bytes)}, uint8));
      read = peer.read_and_wait(key, 0, std::move(room), soon()).status();
      if (!read.ok() && read != Code::kAccessDenied) return read;
    }
    SLUICE_TRY(Buffer word, context->allocate({1}, uint8));
    SLUICE_RETURN_IF_ERROR(peer.send_and_wait(9, std::move(word).freeze(), soon()).status());
    return peer.close(soon());
  }

  std::promise<std::string> listening_;
  std::promise<RemoteKey> key_;
  std::atomic<bool> told_ = false;
  Status outcome_;
  std::thread thread_;
};

// Each round is a connection of its own, whose first frames go as the process's pages. The queue
// holds them when the grant is revoked.
TEST_CASE(
    "what is written after revoke() has returned reaches no peer, although a queue had frames of "
    "that memory") {
  constexpr size_t kBytes = 256 << 10;
  constexpr uint16_t kRounds = 16;
  ::setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
  Module module;
  Wire wire;
  REQUIRE(wire.a.space.run([] {
    return std::system(
        "modprobe sch_netem 2>/dev/null; tc qdisc replace dev end0 root netem delay 10ms limit "
        "100000");
  }) == 0);
  Sniffer there(wire.b);
  uint64_t revoked_with_loans = 0, with_new = 0, with_old = 0;
  for (uint16_t round = 0; round < kRounds; ++round) {
    Reader reader(wire, "kmod://end0:" + std::to_string(7000 + round), kBytes);
    std::string address = reader.address();
    wire.a.space.run([&] {
      auto context = small_context();
      auto peer = context->connect(address);
      INFO(peer.status().to_string());
      REQUIRE(peer.ok());
      auto memory = context->allocate({static_cast<int64_t>(kBytes)}, uint8);
      REQUIRE(memory.ok());
      auto bytes = memory->bytes();
      std::fill(bytes.begin(), bytes.end(), kOld);
      auto key = peer->grant(*memory, {.rights = Right::kRead});
      REQUIRE(key.ok());
      uint64_t before = counter(wire.a.space, "bytes_lent");
      reader.read(*key);
      // At another point of the read each time.
      while (counter(wire.a.space, "bytes_lent") < before + 1 + round * 4096u % 65536)
        context->progress();
      CHECK(peer->revoke(*key).ok());
      std::fill(bytes.begin(), bytes.end(), kNew);
      ++revoked_with_loans;
      // Until the reader has heard of it.
      auto room = context->allocate({1}, uint8);
      auto heard = peer->receive_and_wait({.tag = 9}, std::move(*room), soon());
      INFO(heard.status().to_string());
      CHECK(heard.ok());
    });
    Status outcome = reader.wait();
    INFO(outcome.to_string());
    CHECK(outcome.ok());
    uint8_t frame[2048];
    for (ssize_t came; (came = ::recv(there.fd.value(), frame, sizeof(frame), 0)) > 0;) {
      slp_base base;
      auto length = static_cast<size_t>(came);
      if (slp_decode_base(frame, length, length, &base) != SLP_TAKEN || base.type != SLP_DATA)
        continue;
      const auto* payload =
          reinterpret_cast<const std::byte*>(frame) + SLP_BASE_BYTES + SLP_DATA_BYTES;
      with_new +=
          std::find(payload, payload + base.payload_bytes, kNew) != payload + base.payload_bytes;
      with_old +=
          std::find(payload, payload + base.payload_bytes, kOld) != payload + base.payload_bytes;
    }
  }
  CHECK(revoked_with_loans == kRounds);
  CHECK(with_old > kRounds);
  CHECK(with_new == 0);
}

// Three messages into eight buffers each: two of them have all the pulls that a session has.
TEST_CASE("a receive that waits for the kernel's transfers goes on when those that have them end") {
  constexpr int64_t kPart = 64 << 10, kParts = 8;
  constexpr Tag kTags[] = {1, 2, 3};
  ::setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
  Module module;
  Wire wire;
  std::promise<std::string> listening;
  std::promise<void> slow;
  std::atomic<bool> done = false;
  std::future<void> sender = std::async(std::launch::async, [&] {
    wire.b.space.run([&] {
      auto context = small_context();
      Listener listener = context->listen("kmod://end0:7000").value();
      listening.set_value(listener.address());
      Endpoint peer = listener.accept(soon()).value();
      slow.get_future().wait_for(20s);
      for (Tag tag : kTags) {
        auto message = context->allocate({kParts * kPart}, uint8);
        (void)peer.send(tag, std::move(*message).freeze());
      }
      for (const Instant limit = soon(); !done && now() < limit;) context->progress();
    });
  });
  wire.a.space.run([&, address = listening.get_future().get()] {
    CompletionQueue ended;
    auto context = small_context();
    auto peer = context->connect(address);
    INFO(peer.status().to_string());
    REQUIRE(peer.ok());
    std::vector<OperationId> ids;
    for (Tag tag : kTags) {
      std::vector<Buffer> into;
      for (int64_t i = 0; i < kParts; ++i)
        into.push_back(context->allocate({kPart}, uint8).value());
      ids.push_back(peer->receive({.tag = tag}, into, {.sink = &ended, .user_data = tag}).value());
    }
    // What is asked for takes so long to come.
    CHECK(wire.b.space.run([] {
      return std::system(
          "modprobe sch_netem 2>/dev/null; tc qdisc replace dev end0 root netem delay 100ms");
    }) == 0);
    // Of each message the source, and the places for it.
    const uint64_t pinned = pinned_kib() + 3 * 2 * kParts * kPart / 1024;
    slow.set_value();
    const Instant deadline = soon();
    while (pinned_kib() < pinned && now() < deadline) context->progress();
    CHECK(peer->cancel(ids[0]).ok());
    CHECK(peer->cancel(ids[1]).ok());
    int left = 3;
    for (Completion one; left > 0 && now() < deadline; context->progress()) {
      for (; ended.poll(one); --left)
        CHECK(one.status.code() == (one.user_data == 3 ? Code::kOk : Code::kCancelled));
    }
    CHECK(left == 0);
    done = true;
  });
  done = true;
  sender.get();
}

TEST_CASE(
    "a listener that computes for longer than a greeting may take keeps who has greeted "
    "meanwhile") {
  Module module;
  Wire wire;
  auto context = small_context();
  Listener listener;
  wire.b.space.run([&] { listener = context->listen("kmod://end0:7000").value(); });
  uint64_t before = read_counter("kmod.accepts");
  std::future<Status> caller = std::async(std::launch::async, [&, address = listener.address()] {
    Status outcome;
    wire.a.space.run([&] {
      auto ours = small_context();
      auto server = ours->connect(address, {.timeout = 20s});
      outcome = server.status();
      if (!outcome.ok()) return;
      auto buffer = ours->allocate({64}, uint8);
      outcome = server->send_and_wait(1, std::move(*buffer).freeze(), soon()).status();
    });
    return outcome;
  });
  wire.b.space.run([&] {
    while (read_counter("kmod.accepts") == before &&
           caller.wait_for(0s) != std::future_status::ready)
      context->progress();
  });
  // The computation: nobody looks at the context. A greeting may take 5 s.
  CHECK(caller.wait_for(5500ms) == std::future_status::timeout);
  auto peer = listener.accept(soon());
  INFO(peer.status().to_string());
  CHECK(peer.ok());
  if (peer.ok())
    CHECK(peer->receive_and_wait({.tag = 1}, context->allocate({64}, uint8).value(), soon()).ok());
  Status called = caller.get();
  INFO(called.to_string());
  CHECK(called.ok());
}

}  // namespace
}  // namespace sluice::module_test
