// The greeting, both sides, with peers that follow it and peers that do not.
#include <errno.h>

#include <fstream>

#include <sluice/base/counters.h>
#include <sluice/runtime/event_handler.h>
#include <sluice/runtime/identity.h>
#include <sluice/tcp/resolve.h>
#include "tests/support/skip.h"
#include "tests/tcp/own_network.h"
#include "tests/tcp/testing_greeting.h"

namespace sluice::tcp {
namespace {

using namespace testing;
using Server = GreetingServer;

TEST_CASE("client and server learn each other's HELLO and the choice", "[tcp][greeting]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone, {.paths = {Path::kTcp, Path::kShm}}, [](wire::Hello& ours, int) {
    ours.has_rendezvous = true;
    ours.token.bytes[3] = std::byte{42};
  });
  wire::Hello ours = local_hello(2000);
  auto client = greet(lone.context, server.listener->address(), ours, soon());
  REQUIRE(client.ok());
  CHECK(client->peer.has_rendezvous);
  CHECK(client->peer.token.bytes[3] == std::byte{42});
  CHECK(client->peer.arena_bytes == 1000);
  CHECK(client->version == wire::kMaxVersion);
  server.pump();
  CHECK_FALSE(server.listener->take().has_value());
  REQUIRE(choose(*client, Path::kShm).ok());
  auto served = server.take();
  REQUIRE(served.has_value());
  CHECK(served->chosen == Path::kShm);
  CHECK(served->peer.arena_bytes == 2000);
  CHECK(served->peer.incarnation == ours.incarnation);
  CHECK(served->ours.token.bytes[3] == std::byte{42});
  // The connection is theirs now, and clean.
  Descriptor theirs(served->release_fd());
  REQUIRE(::send(client->fd(), "x", 1, 0) == 1);
  char byte = 0;
  CHECK(::recv(theirs.value(), &byte, 1, 0) == 1);
  CHECK(byte == 'x');
}

TEST_CASE("the numbers of paths are those of the wire", "[tcp][greeting]") {
  const Path in_order[] = {Path::kNone,   Path::kLoopback, Path::kShm, Path::kVerbs, Path::kModule,
                           Path::kPacket, Path::kUdp,      Path::kTcp, Path::kXdp};
  for (size_t i = 0; i < std::size(in_order); ++i) CHECK(static_cast<size_t>(in_order[i]) == i);
}

TEST_CASE("a client may send its choice and its first message right behind its HELLO",
          "[tcp][greeting]") {
  LoneContext lone;
  Server server(lone);
  Descriptor peer = server.stranger();
  Bytes stream = hello_bytes();
  Bytes choice = choice_bytes(Path::kTcp), ping = frame(wire::Ping{.nonce = 1, .reply = false});
  stream.insert(stream.end(), choice.begin(), choice.end());
  stream.insert(stream.end(), ping.begin(), ping.end());
  write_all(peer.value(), stream);
  auto served = server.take();
  REQUIRE(served.has_value());
  Bytes got(ping.size());
  CHECK(::recv(served->fd(), got.data(), got.size(), 0) == static_cast<ssize_t>(got.size()));
  CHECK(got == ping);
}

TEST_CASE("a greeting may arrive byte by byte", "[tcp][greeting]") {
  LoneContext lone;
  Server server(lone);
  Descriptor peer = server.stranger();
  for (const Bytes& message : {hello_bytes(), choice_bytes(Path::kTcp)}) {
    for (std::byte byte : message) {
      CHECK_FALSE(server.listener->take().has_value());
      write_all(peer.value(), &byte, 1);
      server.pump();
    }
  }
  CHECK(server.take().has_value());
}

TEST_CASE("a path that is not served is refused with kUnsupported", "[tcp][greeting]") {
  LoneContext lone;
  Server server(lone);
  auto client = greet(lone.context, server.listener->address(), local_hello(0), soon());
  REQUIRE(client.ok());
  REQUIRE(choose(*client, Path::kShm).ok());
  CHECK(bye_code(server.read_until_closed(client->fd())) == Code::kUnsupported);
  CHECK_FALSE(server.listener->take().has_value());
}

TEST_CASE("versions that do not overlap are refused on both sides, naming both ranges",
          "[tcp][greeting]") {
  LoneContext lone;
  Server server(lone);
  wire::Hello future = local_hello(0);
  future.min_version = future.max_version = 7;
  auto client = greet(lone.context, server.listener->address(), future, soon());
  REQUIRE_FALSE(client.ok());
  CHECK(client.code() == Code::kUnsupported);
  CHECK(client.status().detail().find("version") != std::string::npos);
}

TEST_CASE("every byte of a greeting flipped, deleted or doubled gives a clear end and harms nobody",
          "[tcp][greeting][hostile]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone);
  wire::Hello hello = local_hello(2000);
  hello.has_rendezvous = true;
  Bytes stream = frame(hello);
  Bytes choice = choice_bytes(Path::kTcp);
  stream.insert(stream.end(), choice.begin(), choice.end());
  for (size_t at = 0; at < stream.size(); ++at) {
    for (int change = 0; change < 3; ++change) {
      Bytes bad = stream;
      if (change == 0) bad[at] ^= std::byte{0xff};
      if (change == 1) bad.erase(bad.begin() + static_cast<ptrdiff_t>(at));
      if (change == 2) bad.insert(bad.begin() + static_cast<ptrdiff_t>(at), bad[at]);
      Descriptor peer = server.stranger();
      (void)::send(peer.value(), bad.data(), bad.size(), MSG_NOSIGNAL);
      ::shutdown(peer.value(), SHUT_WR);
      // Accepted (the byte carries no rule), or ended: nothing stays half open.
      uint64_t before = read_counter("tcp.greetings_refused");
      CHECK(server.pump_until([&] {
        return server.listener->take().has_value() ||
               read_counter("tcp.greetings_refused") > before;
      }));
      CHECK(server.listener->half_open() == 0);
    }
  }
  auto client = greet(lone.context, server.listener->address(), local_hello(0), soon());
  CHECK(client.ok());
}

TEST_CASE("a server that is not sluice is told apart from one that is not there",
          "[tcp][greeting]") {
  DescriptorAudit audit;
  LoneContext lone;
  SECTION("nobody listens") {
    uint16_t port;
    {
      Server gone(lone);
      port = gone.listener->address().port;
    }
    auto client = greet(lone.context, loopback_address("127.0.0.1", port), local_hello(0), soon());
    CHECK(client.code() == Code::kUnreachable);
    CHECK(client.status().detail().find("127.0.0.1:" + std::to_string(port)) != std::string::npos);
  }
  Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  REQUIRE(::bind(listener.value(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(::listen(listener.value(), 4) == 0);
  ::getsockname(listener.value(), reinterpret_cast<sockaddr*>(&address), &length);
  uint16_t port = ntohs(address.sin_port);
  // Answers from inside progress, as the client waits there.
  struct Answer final : EventHandler {
    Answer(int listener, std::string text, bool hang_up)
        : listener(listener), text(std::move(text)), hang_up(hang_up) {}
    void on_event(uint32_t) noexcept override {
      peer = Descriptor(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
      if (peer && !text.empty()) (void)::send(peer.value(), text.data(), text.size(), MSG_NOSIGNAL);
      if (hang_up) peer.reset();
    }
    int listener;
    std::string text;
    bool hang_up;
    Descriptor peer;
  };
  auto attempt = [&](const std::string& text, bool hang_up, Instant deadline) {
    Answer answer(listener.value(), text, hang_up);
    REQUIRE(lone.context.watch(listener.value(), EPOLLIN, &answer).ok());
    auto client =
        greet(lone.context, loopback_address("127.0.0.1", port), local_hello(0), deadline);
    lone.context.unwatch(listener.value(), &answer);
    REQUIRE_FALSE(client.ok());
    return client.status();
  };
  SECTION("an SSH server") {
    Status status = attempt("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", false, soon());
    CHECK(status == Code::kCorrupt);
    INFO(status.to_string());
    CHECK(status.detail().find("check the host and port") != std::string::npos);
  }
  SECTION("one that hangs up") { CHECK(attempt("", true, soon()) == Code::kUnreachable); }
  SECTION("one that says nothing") {
    Status status = attempt("", false, after(now(), std::chrono::milliseconds(30)));
    CHECK(status == Code::kTimedOut);
    CHECK(status.detail().find("HELLO") != std::string::npos);
  }
}

TEST_CASE("IPv6 addresses are listened on and connected to", "[tcp][greeting]") {
  LoneContext lone;
  Descriptor probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(probe);
  Server server(lone, {}, {}, "::1");
  CHECK(server.listener->address().to_string().starts_with("tcp://[::1]:"));
  auto client = greet(lone.context, server.listener->address(), local_hello(0), soon());
  REQUIRE(client.ok());
  CHECK(client->peer_name() == server.listener->address().to_string());
}

TEST_CASE("a listener on all addresses serves both families", "[tcp][greeting]") {
  LoneContext lone;
  Server server(lone, {}, {}, "::");
  for (const char* host : {"127.0.0.1", "::1", "localhost"}) {
    auto client = greet(lone.context, loopback_address(host, server.listener->address().port),
                        local_hello(0), soon());
    INFO(host);
    CHECK(client.ok());
  }
}

TEST_CASE("a name that does not resolve is named", "[tcp][resolve]") {
  auto found = resolve(loopback_address("no-such-host.invalid", 7000));
  REQUIRE_FALSE(found.ok());
  CHECK(found.code() == Code::kUnreachable);
  CHECK(found.status().detail().find("no-such-host.invalid") != std::string::npos);
}

TEST_CASE("a port in use is named with the remedy", "[tcp][greeting]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone);
  auto second =
      GreetingListener::open(lone.context, server.listener->address(), local_hello(0), {});
  REQUIRE_FALSE(second.ok());
  CHECK(second.code() == Code::kInvalidArgument);
  CHECK(second.status().os_error() == EADDRINUSE);
  CHECK(second.status().detail().find(server.listener->address().to_string()) != std::string::npos);
  CHECK(second.status().detail().find("choose another") != std::string::npos);
}

TEST_CASE("an address of another machine cannot be listened on", "[tcp][greeting]") {
  LoneContext lone;
  auto opened =
      GreetingListener::open(lone.context, loopback_address("192.0.2.1"), local_hello(0), {});
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.code() == Code::kInvalidArgument);
}

TEST_CASE("a peer on this machine is known by its address, whatever the family",
          "[tcp][identity]") {
  LoneContext lone;
  for (const char* host : {"127.0.0.1", "::1", "::"}) {
    Server server(lone, {}, {}, host);
    Address to = loopback_address(std::string(host) == "::1" ? "::1" : "127.0.0.1",
                                  server.listener->address().port);
    auto client = greet(lone.context, to, local_hello(0), soon());
    INFO(host);
    REQUIRE(client.ok());
    CHECK(peer_is_local(client->fd()));
    CHECK(same_host(client->ours, client->peer));
    CHECK(client->peer.pid == static_cast<uint32_t>(::getpid()));
  }
  CHECK_FALSE(peer_is_local(-1));
}

TEST_CASE("a peer that has closed between two messages is not waited for", "[tcp][greeting]") {
  DescriptorAudit audit;
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  Descriptor ours(ends[0]);
  std::array<std::byte, kMaxGreetingBytes> scratch;
  CHECK(take_message(ours.value(), scratch).state == Glimpse::State::kIncomplete);
  ::close(ends[1]);
  errno = EAGAIN;  // of the look before
  Glimpse end = take_message(ours.value(), scratch);
  REQUIRE(end.state == Glimpse::State::kEnded);
  CHECK(end.why.code() == Code::kUnreachable);
}

constexpr int kPortsStay = 2;

// What a child finds: 0 as it should be. Its network has two ports for callers, and the kernel
// takes the first of them.
int calls_its_own_port() {
  constexpr uint16_t kPort = 40000;
  std::ofstream ports("/proc/sys/net/ipv4/ip_local_port_range");
  if (!(ports << "40000 40001" << std::flush)) return kPortsStay;
  LoneContext lone;
  const Address there = loopback_address("127.0.0.1", kPort);
  for (int call = 0; call < 4; ++call) {
    auto greeting = greet(lone.context, there, local_hello(1000), soon());
    if (greeting.ok()) return 3;
    if (greeting.code() != Code::kUnreachable) return 4;
    if (greeting.status().os_error() != ECONNREFUSED) return 5;
  }
  // The server that comes then finds its port free.
  return GreetingListener::open(lone.context, there, local_hello(1000), {}).ok() ? 0 : 6;
}

TEST_CASE("who is given the port that it calls has not reached a listener", "[tcp][greeting]") {
  int result = in_own_network(calls_its_own_port);
  if (result < 0) return test::skip("netns", "unshare(CLONE_NEWNET) is not allowed here");
  if (result == kPortsStay)
    return test::skip("netns", "/proc/sys/net/ipv4/ip_local_port_range cannot be written here");
  CHECK(result == 0);
}

TEST_CASE("a hidden identity is nobody's", "[api][identity]") {
  wire::Hello one = local_hello(5), two = one;
  hide_identity(one);
  hide_identity(two);
  CHECK_FALSE(same_host(one, two));
  CHECK_FALSE(same_host(one, local_hello(5)));
  CHECK(one.pid == 0);
  CHECK(one.uid == 0);
  CHECK(one.network_namespace == 0);
  CHECK(one.user_namespace == 0);
  CHECK(one.incarnation == local_hello(5).incarnation);
  CHECK(one.arena_bytes == 5);
}

TEST_CASE("identity names this process and this host", "[api][identity]") {
  wire::Hello a = local_hello(5), b = local_hello(6);
  CHECK(a.incarnation == b.incarnation);
  CHECK(a.incarnation != 0);
  CHECK(same_host(a, b));
  CHECK(a.host != wire::Uuid{});
  CHECK(a.network_namespace != 0);
  CHECK(a.user_namespace != 0);
  CHECK(a.pid == static_cast<uint32_t>(::getpid()));
  CHECK(b.arena_bytes == 6);
}

}  // namespace
}  // namespace sluice::tcp
