// What a listener bears: strangers that say nothing, full tables, no descriptors.
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <vector>

#include <sluice/base/counters.h>
#include "tests/support/few_descriptors.h"
#include "tests/tcp/testing_greeting.h"

namespace sluice::tcp {
namespace {

using namespace testing;
using Server = GreetingServer;

// On the loopback address; returns the port.
uint16_t listen_at_any_port(int fd) {
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(here);
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&here), length) == 0);
  REQUIRE(::listen(fd, 4) == 0);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &length);
  return ntohs(here.sin_port);
}

TEST_CASE("strangers that say nothing are bounded, and a good client is served among them",
          "[tcp][greeting][hostile]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone, {.half_open_limit = 16});
  uint64_t evicted = read_counter("tcp.greetings_evicted");
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 40; ++i) {
    strangers.push_back(server.stranger());
    server.pump();
    CHECK(server.listener->half_open() <= 16);
  }
  server.pump_until([&] { return read_counter("tcp.greetings_evicted") == evicted + 24; });
  CHECK(read_counter("tcp.greetings_evicted") == evicted + 24);
  CHECK(bye_code(server.read_until_closed(strangers[0].value())) == Code::kTimedOut);
  auto client = greet(lone.context, server.listener->address(), local_hello(0), soon());
  CHECK(client.ok());
}

TEST_CASE(
    "callers from one address that come at once all get in, though they are more than it may "
    "greet and than a program takes at a time",
    "[tcp][greeting]") {
  LoneContext lone;
  Server server(lone, {.backlog = 8});
  Awaits awaits(lone.context);
  const Address address = server.listener->address();
  std::vector<Task<Result<Greeting>>> calls;
  for (int i = 0; i < 300; ++i)
    calls.push_back(start_greet(awaits, address, local_hello(0), soon()));
  size_t over = 0;
  std::vector<Greeting> served;
  std::vector<bool> seen(calls.size());
  server.pump_until([&] {
    for (size_t i = 0; i < calls.size(); ++i) {
      if (seen[i] || !calls[i].ready()) continue;
      seen[i] = true, ++over;
      Result<Greeting> greeting = calls[i].take();
      CHECK(greeting.ok());
      if (greeting.ok()) CHECK(choose(*greeting, Path::kTcp).ok());
    }
    while (auto next = server.listener->take()) served.push_back(std::move(*next));
    return over == calls.size() && served.size() == calls.size();
  });
  CHECK(served.size() == calls.size());
}

TEST_CASE("who was ended for others while its HELLO was under way calls again", "[tcp][greeting]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone);  // for its pump
  const uint64_t repeated = read_counter("tcp.greetings_repeated");
  Awaits awaits(lone.context);
  Descriptor listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Ends callers, first by BYE, then without.
  const Address busy = loopback_address("127.0.0.1", listen_at_any_port(listening.value()));
  Task<Result<Greeting>> call = start_greet(awaits, busy, local_hello(0), soon());
  Descriptor first, second, third;
  auto next = [&](Descriptor& caller) {
    return server.pump_until([&] {
      caller = Descriptor(::accept4(listening.value(), nullptr, nullptr, SOCK_CLOEXEC));
      return static_cast<bool>(caller);
    });
  };
  REQUIRE(next(first));
  write_all(first.value(), frame(wire::Bye{.code = Code::kTimedOut}));
  REQUIRE(next(second));
  second.reset();  // its HELLO is unread: a reset
  REQUIRE(next(third));
  write_all(third.value(), hello_bytes());
  CHECK(server.pump_until([&] { return call.ready(); }));
  CHECK(call.take().ok());
  CHECK(read_counter("tcp.greetings_repeated") == repeated + 2);
}

TEST_CASE("strangers that say nothing end no peer that has said HELLO",
          "[tcp][greeting][hostile]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone, {.half_open_limit = 16});
  Descriptor honest = server.stranger();
  write_all(honest.value(), hello_bytes());
  std::byte answer;
  REQUIRE(server.pump_until(
      [&] { return ::recv(honest.value(), &answer, 1, MSG_PEEK | MSG_DONTWAIT) == 1; }));
  const uint64_t evicted = read_counter("tcp.greetings_evicted");
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(server.stranger());
  CHECK(server.pump_until([&] { return read_counter("tcp.greetings_evicted") == evicted + 4; }));
  CHECK(server.listener->half_open() == 17);
  write_all(honest.value(), choice_bytes(Path::kTcp));
  CHECK(server.take().has_value());
}

TEST_CASE("an address that fills the table of greetings ends its own oldest, not somebody else's",
          "[tcp][greeting][hostile]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone, {.half_open_limit = 16});
  // Connected first, and slow: the oldest of all.
  Descriptor honest = server.stranger(7);
  server.pump_until([&] { return server.listener->half_open() == 1; });
  uint64_t evicted = read_counter("tcp.greetings_evicted");
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 60; ++i) {
    strangers.push_back(server.stranger(8));
    server.pump();
  }
  server.pump_until([&] { return read_counter("tcp.greetings_evicted") == evicted + 45; });
  CHECK(server.listener->half_open() == 16);
  CHECK(bye_code(server.read_until_closed(strangers[0].value())) == Code::kTimedOut);
  write_all(honest.value(), hello_bytes());
  write_all(honest.value(), choice_bytes(Path::kTcp));
  CHECK(server.take().has_value());
}

TEST_CASE(
    "an address has as many greetings as PeerLimits gives one peer, in all listeners of a context",
    "[tcp][greeting][hostile]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone), other(lone);
  const uint64_t most = lone.context.peer_accounts().limits().half_open.by_peer;
  std::vector<Descriptor> strangers;
  for (uint64_t i = 0; i < most + 6; ++i) {
    strangers.push_back(server.stranger(8));
    server.pump();
  }
  server.pump_until([&] { return read_counter("tcp.greetings_evicted") > 0; });
  CHECK(server.listener->half_open() == most);
  // No greeting of its own there that could make room, and a neighbour's does not.
  Descriptor neighbour = other.stranger(9);
  CHECK(other.pump_until([&] { return other.listener->half_open() == 1; }));
  Descriptor refused = other.stranger(8);
  CHECK(bye_code(other.read_until_closed(refused.value())) == Code::kTimedOut);
  CHECK(other.listener->half_open() == 1);
  // What ends is given back.
  strangers.clear();
  CHECK(server.pump_until([&] { return server.listener->half_open() == 0; }));
  CHECK(lone.context.peer_accounts().used(PeerResource::kHalfOpen) == 1);
}

TEST_CASE("a stranger that says nothing is sent away after the time it has",
          "[tcp][greeting][hostile]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone);
  Descriptor silent = server.stranger();
  Descriptor slow = server.stranger();
  server.pump();
  write_all(slow.value(), hello_bytes());
  CHECK(server.pump_until([&] { return server.listener->half_open() == 2; }));
  CHECK(server.listener->next_timeout() <= after(lone.context.now(), std::chrono::seconds(5)));
  server.listener->progress(after(now(), std::chrono::seconds(6)));
  CHECK(server.listener->half_open() == 0);
  CHECK(bye_code(server.read_until_closed(silent.value())) == Code::kTimedOut);
  CHECK(server.listener->next_timeout() == kNever);
}

TEST_CASE(
    "who has finished greeting while the listener was busy for longer than that may take is served",
    "[tcp][greeting]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone);
  Descriptor peer = server.stranger();
  Bytes hello = hello_bytes(), choice = choice_bytes(Path::kTcp);
  REQUIRE(::send(peer.value(), hello.data(), hello.size(), 0) ==
          static_cast<ssize_t>(hello.size()));
  std::byte answer;
  REQUIRE(server.pump_until(
      [&] { return ::recv(peer.value(), &answer, 1, MSG_PEEK | MSG_DONTWAIT) == 1; }));
  REQUIRE(::send(peer.value(), choice.data(), choice.size(), 0) ==
          static_cast<ssize_t>(choice.size()));
  int not_there_yet = 1;
  for (Instant deadline = soon(); not_there_yet != 0 && now() < deadline;)
    REQUIRE(::ioctl(peer.value(), SIOCOUTQ, &not_there_yet) == 0);
  // A turn long after its time was over, in which no event has been looked at yet.
  server.listener->progress(after(now(), std::chrono::hours(1)));
  CHECK(server.listener->half_open() == 0);
  CHECK(server.listener->take().has_value());
}

TEST_CASE("greeted connections that nobody takes are bounded", "[tcp][greeting]") {
  LoneContext lone;
  Server server(lone, {.backlog = 2});
  std::vector<Descriptor> peers;
  for (int i = 0; i < 4; ++i) {
    peers.push_back(server.stranger());
    write_all(peers.back().value(), hello_bytes());
    write_all(peers.back().value(), choice_bytes(Path::kTcp));
    server.pump();
  }
  // The third waits in the kernel until there is room.
  CHECK(server.listener->half_open() == 0);
  for (int i = 0; i < 4; ++i) CHECK(server.take().has_value());
  CHECK_FALSE(server.listener->take().has_value());
}

TEST_CASE("a listener that closes tells those who greet and those who wait, and nobody gets in",
          "[tcp][greeting]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone);
  Descriptor greeting = server.stranger(), waiting = server.stranger();
  write_all(waiting.value(), hello_bytes());
  write_all(waiting.value(), choice_bytes(Path::kTcp));
  REQUIRE(server.pump_until([&] { return server.listener->half_open() == 1; }));
  const Address address = server.listener->address();
  server.listener->close();
  CHECK(server.listener->half_open() == 0);
  CHECK(bye_code(server.read_until_closed(greeting.value())) == Code::kUnreachable);
  (void)server.read_until_closed(waiting.value());  // our HELLO, and then the end
  auto late = greet(lone.context, address, local_hello(0), soon());
  CHECK(late.status().code() == Code::kUnreachable);
}

TEST_CASE("a lack of descriptors is survived by the listener and named to the client",
          "[tcp][greeting]") {
  LoneContext lone;
  Server server(lone);
  Descriptor peer = server.stranger();
  write_all(peer.value(), hello_bytes());
  write_all(peer.value(), choice_bytes(Path::kTcp));
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &old) == 0);
  rlimit none{.rlim_cur = 3, .rlim_max = old.rlim_max};
  uint64_t failed = read_counter("tcp.accepts_failed");
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  server.pump_until([&] { return read_counter("tcp.accepts_failed") > failed; });
  auto client = greet(lone.context, server.listener->address(), local_hello(0), soon());
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &old) == 0);
  CHECK(client.code() == Code::kNoMemory);
  CHECK(client.status().detail().find("ulimit -n") != std::string::npos);
  CHECK(read_counter("tcp.accepts_failed") > failed);
  server.listener->progress(after(now(), std::chrono::seconds(1)));
  CHECK(server.take().has_value());
}

TEST_CASE(
    "without descriptors those who wait are told so, nobody spins, and who is connected goes on",
    "[tcp][greeting][hostile]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone);
  auto client = greet(lone.context, server.listener->address(), local_hello(0), soon());
  REQUIRE(client.ok());
  REQUIRE(choose(*client, Path::kTcp).ok());
  auto served = server.take();
  REQUIRE(served.has_value());
  std::vector<Descriptor> strangers;
  std::vector<Bytes> farewells;
  bool all_told = false;
  uint64_t tries = 0;
  ssize_t sent = 0, received = 0;
  {
    // The kernel takes them before we do.
    for (int i = 0; i < 10; ++i) strangers.push_back(server.stranger());
    test::FewDescriptors none(0);
    const uint64_t told = read_counter("tcp.turned_away_without_descriptors"),
                   failed = read_counter("tcp.accepts_failed");
    all_told = server.pump_until(
        [&] { return read_counter("tcp.turned_away_without_descriptors") == told + 10; });
    for (Descriptor& stranger : strangers)
      farewells.push_back(server.read_until_closed(stranger.value()));
    tries = read_counter("tcp.accepts_failed") - failed;
    sent = ::send(client->fd(), "x", 1, 0);
    char byte = 0;
    if (sent == 1) received = ::recv(served->fd(), &byte, 1, 0);
  }
  // Descriptors are back.
  CHECK(all_told);
  CHECK(farewells.size() == 10);
  for (const Bytes& farewell : farewells) CHECK(bye_code(farewell) == Code::kNoMemory);
  CHECK(tries <= 2);
  CHECK(sent == 1);
  CHECK(received == 1);
  server.listener->progress(after(now(), std::chrono::seconds(1)));
  auto next = greet(lone.context, server.listener->address(), local_hello(0), soon());
  CHECK(next.ok());
}

TEST_CASE("without descriptors the oldest greeting of the address with most makes room",
          "[tcp][greeting][hostile]") {
  DescriptorAudit audit;
  LoneContext lone;
  Server server(lone);
  Descriptor honest = server.stranger(7);
  server.pump_until([&] { return server.listener->half_open() == 1; });
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 8; ++i) strangers.push_back(server.stranger(8));
  const uint64_t evicted = read_counter("tcp.greetings_evicted");
  {
    test::FewDescriptors few(3);
    CHECK(server.pump_until([&] { return read_counter("tcp.greetings_evicted") >= evicted + 5; }));
    CHECK(server.listener->half_open() <= 4);
    write_all(honest.value(), hello_bytes());
    write_all(honest.value(), choice_bytes(Path::kTcp));
    CHECK(server.take().has_value());
  }
}

TEST_CASE("a half-open greeting costs less than a kilobyte", "[tcp][greeting]") {
  // Two HELLOs, a descriptor and a place in a list; see GreetingListener::HalfOpen.
  CHECK(2 * sizeof(wire::Hello) + 200 < 1024);
  CHECK(sizeof(Greeting) + 128 < 1024);
}

}  // namespace
}  // namespace sluice::tcp
