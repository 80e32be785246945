// What one peer can make a context keep over shared memory, each limit with a peer that goes past
// it.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sluice/api/connecting.h>
#include <sluice/base/counters.h>
#include <sluice/proto/hello.h>
#include <sluice/runtime/context_core.h>
#include <sluice/runtime/peer_account.h>
#include <sluice/shm/rendezvous.h>
#include <sluice/spi/path_choice.h>

#include "tests/shm/raw_peer.h"
#include "tests/shm/server.h"
#include "tests/support/audit.h"

namespace sluice::test {
namespace {

size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

uint64_t used(Server& server, PeerResource resource) {
  return ContextCore::of(*server.context).peer_accounts().used(resource);
}

bool everything_is_given_back(Server& server) {
  return server.until([&, turns = 1000]() mutable {
    bool none = true;
    for (PeerResource resource : {PeerResource::kConnections, PeerResource::kHalfOpen,
                                  PeerResource::kExtents, PeerResource::kAddressBytes}) {
      none = none && used(server, resource) == 0;
    }
    return none || --turns == 0;
  }) && used(server, PeerResource::kConnections) + used(server, PeerResource::kExtents) +
                 used(server, PeerResource::kAddressBytes) ==
             0;
}

TEST_CASE("a listener whose requirements shared memory cannot meet does not listen there",
          "[shm]") {
  auto context = open_small();
  ListenOptions options;
  options.require = rdma;
  auto listener = context->listen("shm:" + fresh_name("picky"), options);
  REQUIRE_FALSE(listener.ok());
  CHECK(listener.code() == Code::kUnsupported);
  INFO(listener.status().to_string());
  CHECK(listener.status().to_string().find("cannot meet the requirements") != std::string::npos);
}

// A listener of its own, whose limits are short.
struct Rendezvous {
  explicit Rendezvous(shm::RendezvousOptions options, const PeerLimits& limits = {})
      : context(open_small(limits)) {
    auto made = shm::RendezvousListener::open(ContextCore::of(*context), shm::socket_name(name),
                                              proto::hello_for(ContextCore::of(*context), {}),
                                              std::move(options));
    REQUIRE(made.ok());
    listener = std::move(*made);
  }
  bool until(const std::function<bool()>& done) {
    for (const Instant limit = soon(); !done();) {
      if (now() >= limit) return false;
      (void)context->wait(after(now(), std::chrono::milliseconds(1)));
    }
    return true;
  }
  std::string name = fresh_name("rendezvous");
  std::unique_ptr<Context> context;
  std::unique_ptr<shm::RendezvousListener> listener;
};

TEST_CASE("who connects and says nothing is dropped when its time is over, while nobody else comes",
          "[shm]") {
  NothingLeftBehind audit;
  Rendezvous rendezvous({.half_open_limit = std::chrono::milliseconds(50)});
  RawPeer peer(rendezvous.name);
  REQUIRE(rendezvous.until([&] { return rendezvous.listener->half_open() == 1; }));
  // One wait, which only the listener's own timer can end before the minute is over.
  REQUIRE(
      rendezvous.context->wait_until([&] { return rendezvous.listener->half_open() == 0; }, soon())
          .ok());
  CHECK(peer.ended());
  CHECK(ContextCore::of(*rendezvous.context).peer_accounts().used(PeerResource::kHalfOpen) == 0);
}

TEST_CASE("who was met and is not taken is dropped when its time is over", "[shm]") {
  NothingLeftBehind audit;
  Rendezvous rendezvous({.met_limit = std::chrono::milliseconds(50)});
  RawPeer peer(rendezvous.name);
  REQUIRE(peer.greet());
  REQUIRE(rendezvous.until([&] { return peer.met(); }));
  pollfd look{.fd = peer.socket(), .events = POLLRDHUP, .revents = 0};
  REQUIRE(rendezvous.context->wait_until([&] { return ::poll(&look, 1, 0) == 1; }, soon()).ok());
  shm::Meeting meeting;
  CHECK_FALSE(rendezvous.listener->take(meeting));
}

TEST_CASE("who was met while the program computes is still there afterwards", "[shm]") {
  NothingLeftBehind audit;
  Rendezvous rendezvous({.met_limit = std::chrono::milliseconds(50)});
  RawPeer peer(rendezvous.name);
  REQUIRE(peer.greet());
  REQUIRE(rendezvous.until([&] { return peer.met(); }));
  for (const Instant back = after(now(), 2 * kLateLook); now() < back;) {}
  (void)rendezvous.context->wait(after(now(), std::chrono::milliseconds(1)));
  shm::Meeting meeting;
  CHECK(rendezvous.listener->take(meeting));
}

TEST_CASE("the oldest half-open connection makes room, and whoever greets gets in", "[shm]") {
  Rendezvous rendezvous({}, {.half_open = {8, 16}});
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(std::make_unique<RawPeer>(rendezvous.name));
    REQUIRE(silent.back()->connected());
    REQUIRE(rendezvous.until([&] {
      return rendezvous.listener->half_open() == static_cast<size_t>(std::min(i + 1, 8));
    }));
  }
  RawPeer honest(rendezvous.name);
  REQUIRE(honest.greet());
  REQUIRE(rendezvous.until([&] { return honest.met(); }));
  for (int i = 0; i < 40; ++i) {
    INFO(i);
    CHECK(silent[static_cast<size_t>(i)]->ended() == (i < 33));
    if (i < 33) CHECK(silent[static_cast<size_t>(i)]->bye() == Code::kTimedOut);
  }
}

// Another process that fills the table does not displace who was there before it.
TEST_CASE("the process that has most half-open connections makes room for others", "[shm]") {
  Rendezvous rendezvous({}, {.half_open = {8, 16}});
  RawPeer early(rendezvous.name);
  REQUIRE(rendezvous.until([&] { return rendezvous.listener->half_open() == 1; }));
  int ready[2], done[2];
  REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(done, O_CLOEXEC) == 0);
  pid_t child = ::fork();
  if (child == 0) {
    ::close(done[1]);
    std::vector<std::unique_ptr<RawPeer>> silent;
    for (int i = 0; i < 30; ++i) silent.push_back(std::make_unique<RawPeer>(rendezvous.name));
    (void)!::write(ready[1], "r", 1);
    char byte;
    (void)!::read(done[0], &byte, 1);
    std::_Exit(0);
  }
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  uint64_t before = read_counter("shm.meetings_displaced");
  REQUIRE(
      rendezvous.until([&] { return read_counter("shm.meetings_displaced") + 8 >= before + 30; }));
  CHECK_FALSE(early.ended());
  REQUIRE(early.greet());
  CHECK(rendezvous.until([&] { return early.met(); }));
  for (int end : {done[0], done[1], ready[0], ready[1]}) ::close(end);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
}

TEST_CASE("peers that are never accepted are bounded in number, and the next one is told",
          "[shm]") {
  Server server;
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < 128; ++i) {
    peers.push_back(std::make_unique<RawPeer>(server.name));
    REQUIRE(peers.back()->greet());
    REQUIRE(server.until([&] { return peers.back()->met() || peers.back()->ended(); }));
    REQUIRE(peers.back()->met());
  }
  Holdings full = holdings();
  for (int i = 0; i < 20; ++i) {
    RawPeer more(server.name);
    REQUIRE(more.greet());
    REQUIRE(server.until([&] { return more.ended(); }));
    CHECK(more.bye() == Code::kTimedOut);
  }
  std::string left = left_behind(full, holdings());
  INFO(left);
  CHECK(left.empty());
  Endpoint one = server.accept();
  RawPeer next(server.name);
  REQUIRE(next.greet());
  CHECK(server.until([&] { return next.met(); }));
}

TEST_CASE("connect() calls again while a listener has more callers than it keeps", "[shm]") {
  Server server;
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < 128; ++i) {
    peers.push_back(std::make_unique<RawPeer>(server.name));
    REQUIRE(peers.back()->greet());
    REQUIRE(server.until([&] { return peers.back()->met(); }));
  }
  std::unique_ptr<Context> caller = open_small();
  const uint64_t before = read_counter("shm.meetings_repeated");
  const std::string address = "shm:" + server.name;
  const ConnectOptions patient{.timeout = std::chrono::seconds(60)};
  Connecting late = start_connect(*caller, address, patient);
  auto run = [&](const std::function<bool()>& done) {
    return server.until([&] {
      caller->progress();
      return done();
    });
  };
  REQUIRE(run([&] { return read_counter("shm.meetings_repeated") > before + 1 || late.ready(); }));
  CHECK_FALSE(late.ready());
  Endpoint one = server.accept();
  REQUIRE(run([&] { return late.ready(); }));
  Result<Endpoint> endpoint = late.take();
  INFO(endpoint.status().to_string());
  CHECK(endpoint.ok());
}

// Their connect() has returned.
TEST_CASE("the only peer of a process that waits for accept() makes no room for others", "[shm]") {
  constexpr int kProcesses = 128;
  Server server({.half_open = {2 * kProcesses, 2 * kProcesses}});
  int done[2];
  REQUIRE(::pipe2(done, O_CLOEXEC) == 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(done[1]);
      RawPeer peer(server.name);
      char byte;
      if (peer.greet()) (void)!::read(done[0], &byte, 1);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  CHECK(server.until([&] { return used(server, PeerResource::kConnections) == kProcesses; }));
  const uint64_t before = read_counter("shm.meetings_displaced");
  RawPeer more(server.name);
  CHECK(more.greet());
  CHECK(server.until([&] { return more.ended() || more.met(); }));
  CHECK(more.bye() == Code::kTimedOut);
  CHECK(read_counter("shm.meetings_displaced") == before);
  for (int end : done) ::close(end);
  for (pid_t child : children) {
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
  }
}

TEST_CASE("a meeting is found by its token, and the others wait for theirs", "[shm]") {
  Rendezvous rendezvous({});
  std::vector<std::unique_ptr<RawPeer>> peers;
  std::vector<wire::Uuid> tokens(3);
  for (uint8_t i = 0; i < 3; ++i) {
    tokens[i].bytes[0] = std::byte{i};
    peers.push_back(std::make_unique<RawPeer>(rendezvous.name));
    peers[i]->hello.has_rendezvous = true;
    peers[i]->hello.token = tokens[i];
    REQUIRE(peers[i]->greet());
    REQUIRE(rendezvous.until([&] { return peers[i]->met(); }));
  }
  for (size_t i : {1, 2, 0}) {
    shm::Meeting meeting;
    REQUIRE(rendezvous.listener->take_by(tokens[i], meeting));
    CHECK(meeting.peer.token == tokens[i]);
    CHECK_FALSE(rendezvous.listener->take_by(tokens[i], meeting));
  }
}

TEST_CASE("a user's connections are limited, and count until they are over", "[shm]") {
  NothingLeftBehind audit;
  Server server({.connections = {3, 64}});
  std::vector<std::pair<std::unique_ptr<RawPeer>, Endpoint>> open;
  for (int i = 0; i < 3; ++i) open.push_back(server.meet());
  CHECK(used(server, PeerResource::kConnections) == 3);
  RawPeer refused(server.name);
  REQUIRE(refused.greet());
  REQUIRE(server.until([&] { return refused.ended(); }));
  CHECK(refused.bye() == Code::kTryAgain);
  open.erase(open.begin());
  REQUIRE(server.until([&] { return used(server, PeerResource::kConnections) == 2; }));
  open.push_back(server.meet());
  open.clear();
  CHECK(everything_is_given_back(server));
}

TEST_CASE("the program is asked about a peer, with what the kernel says of it", "[shm]") {
  ListenOptions options;
  std::vector<std::pair<uint32_t, uint32_t>> asked;
  bool answer = false;
  options.accept = [&](const PeerIntroduction& who) {
    asked.emplace_back(who.user_id.value_or(12345), who.process_id.value_or(0));
    CHECK(who.path == Path::kShm);
    return answer;
  };
  Server server({}, options);
  RawPeer refused(server.name);
  REQUIRE(refused.greet());
  REQUIRE(server.until([&] { return refused.ended(); }));
  CHECK(refused.bye() == Code::kAccessDenied);
  answer = true;
  auto met = server.meet();
  CHECK(asked.size() == 2);
  for (const auto& [user, process] : asked) {
    CHECK(user == ::geteuid());
    CHECK(process == static_cast<uint32_t>(::getpid()));
  }
}

// Extents of one peer: as many as it may, each 2 MiB, and then one more.
TEST_CASE("a peer's extents are limited in number, and the connection that goes past it ends",
          "[shm]") {
  NothingLeftBehind audit;
  Server server({.extents = {16, 64}});
  int memory = memfd(2 * kMiB, all_seals(), true);
  {
    auto [peer, endpoint] = server.meet(uint64_t{1} << 36);
    for (uint32_t i = 0; i < 16; ++i)
      REQUIRE(peer->announce(i + 1, uint64_t{i} * 4 * kMiB, 2 * kMiB, memory));
    REQUIRE(server.until([&] { return used(server, PeerResource::kExtents) == 16; }));
    CHECK(endpoint.state() == EndpointState::kConnected);
    REQUIRE(peer->announce(17, uint64_t{17} * 4 * kMiB, 2 * kMiB, memory));
    REQUIRE(server.until([&, &end = endpoint] { return end.state() == EndpointState::kClosed; }));
  }
  ::close(memory);
  CHECK(everything_is_given_back(server));
}

TEST_CASE("an offer whose memory is refused ends the connection with that refusal", "[shm]") {
  Server server({.extents = {16, 64}});
  int memory = memfd(2 * kMiB, all_seals(), true);
  {
    auto [peer, endpoint] = server.meet(uint64_t{1} << 36);
    for (uint32_t i = 0; i < 16; ++i)
      REQUIRE(peer->announce(i + 1, uint64_t{i} * 4 * kMiB, 2 * kMiB, memory));
    REQUIRE(server.until([&] { return used(server, PeerResource::kExtents) == 16; }));
    // The offer is found first, and with it what was announced before.
    REQUIRE(peer->announce(17, uint64_t{17} * 4 * kMiB, 2 * kMiB, memory));
    wire::Offer offer{.id = 1, .about = wire::TaggedOffer{.tag = 1}, .total = kMiB};
    offer.segment_count = 1;
    offer.segments[0] = {.extent = 17, .offset = 0, .length = kMiB};
    std::array<std::byte, wire::kMaxHeaderBytes> header;
    REQUIRE(peer->write(std::span(header).first(wire::encode(offer, header))));
    auto got = endpoint.receive_and_wait({.tag = 1},
                                         server.context->allocate({kMiB}, uint8).value(), soon());
    INFO(got.status().to_string());
    CHECK(got.status().detail().find("extents") != std::string_view::npos);
    REQUIRE(server.until([&, &end = endpoint] { return end.state() == EndpointState::kClosed; }));
  }
  ::close(memory);
  CHECK(everything_is_given_back(server));
}

// Each extent covers half of the one before it, whose other half stays mapped.
TEST_CASE("what is left of extents that were covered counts as well", "[shm]") {
  Server server({.extents = {64, 256}});
  int memory = memfd(4 * kMiB, all_seals(), true);
  auto [peer, endpoint] = server.meet(uint64_t{1} << 36);
  size_t before = mappings();
  bool closed = false;
  for (uint32_t i = 0; i < 1000 && !closed; ++i) {
    // Without room now: what lies in the socket is read.
    REQUIRE(server.until([&, &raw = *peer, &end = endpoint] {
      closed = end.state() == EndpointState::kClosed;
      return closed || raw.announce(i + 1, uint64_t{i} * 2 * kMiB, 4 * kMiB, memory) ||
             errno == EPIPE;
    }));
    CHECK(mappings() < before + 3 * 64);
  }
  ::close(memory);
  REQUIRE(server.until([&, &end = endpoint] { return end.state() == EndpointState::kClosed; }));
}

TEST_CASE("an extent that covers earlier ones for good gives them back, however often", "[shm]") {
  Server server({.extents = {16, 64}});
  int small = memfd(2 * kMiB, all_seals(), true), large = memfd(8 * kMiB, all_seals(), true);
  auto [peer, endpoint] = server.meet(uint64_t{1} << 36);
  uint32_t id = 0;
  uint64_t announced = read_counter("shm.extents_mapped");
  for (int round = 0; round < 50; ++round) {
    for (uint64_t i = 0; i < 4; ++i) REQUIRE(peer->announce(++id, i * 2 * kMiB, 2 * kMiB, small));
    REQUIRE(peer->announce(++id, 0, 8 * kMiB, large));
    announced += 5;
    REQUIRE(server.until([&] { return read_counter("shm.extents_mapped") == announced; }));
    CHECK(used(server, PeerResource::kExtents) == 1);
    REQUIRE(endpoint.state() == EndpointState::kConnected);
  }
  ::close(small);
  ::close(large);
}

TEST_CASE(
    "the addresses that a user's peers reserve are limited, and come back with their last view",
    "[shm]") {
  NothingLeftBehind audit;
  constexpr uint64_t kArena = uint64_t{1} << 44;
  Server server({.address_bytes = {kArena + kArena / 2, uint64_t{1} << 46}});
  int memory = memfd(2 * kMiB, all_seals(), true);
  // The first and the last of an arena, which are mapped in one range.
  auto announce_far = [&](RawPeer& peer) {
    return peer.announce(1, 0, 2 * kMiB, memory) &&
           peer.announce(2, kArena - 2 * kMiB, 2 * kMiB, memory);
  };
  auto [first, one] = server.meet(kArena);
  auto [second, two] = server.meet(kArena);
  REQUIRE(announce_far(*first));
  REQUIRE(server.until([&] { return used(server, PeerResource::kAddressBytes) >= kArena; }));
  REQUIRE(announce_far(*second));
  REQUIRE(server.until([&, &end = two] { return end.state() == EndpointState::kClosed; }));
  CHECK(one.state() == EndpointState::kConnected);
  first.reset();
  REQUIRE(server.until([&, &end = one] { return end.state() == EndpointState::kClosed; }));
  auto [third, three] = server.meet(kArena);
  REQUIRE(announce_far(*third));
  REQUIRE(server.until([&] {
    return used(server, PeerResource::kAddressBytes) >= kArena &&
           used(server, PeerResource::kExtents) == 2;
  }));
  CHECK(three.state() == EndpointState::kConnected);
  third.reset();
  ::close(memory);
  CHECK(everything_is_given_back(server));
}

}  // namespace
}  // namespace sluice::test
