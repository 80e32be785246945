// Ends and full sockets: what a peer writes after its end, bells and announcements that find no
// room, and descriptors that there are none of.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/exchange/exchange.h>

#include "tests/shm/raw_peer.h"
#include "tests/shm/server.h"
#include "tests/support/single_turns.h"

namespace {
// The next so many packets of the library are refused by the kernel, with that errno.
std::atomic<int> refusals{0};
std::atomic<int> refused_with{0};
// Of those packets: only ones with, or only ones without, a descriptor.
std::atomic<bool> with_descriptor{false};
// What a peer does at the moment that the library rings for it.
std::function<void()> at_bell;
// Descriptors that the process can still get; below zero: as many as it likes.
std::atomic<int> descriptors_left{-1};

bool no_descriptor() {
  if (descriptors_left.load() < 0) return false;
  if (descriptors_left.load() > 0) {
    descriptors_left.fetch_sub(1);
    return false;
  }
  errno = EMFILE;
  return true;
}
}  // namespace

// These are in place of libc's, for the whole program.
extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  bool carries = message->msg_controllen > 0;
  if (carries == with_descriptor.load() && refusals.load() > 0) {
    refusals.fetch_sub(1);
    errno = refused_with.load();
    return -1;
  }
  if (!carries && at_bell) at_bell();
  return ::syscall(SYS_sendmsg, socket, message, flags);
}

extern "C" int socket(int family, int type, int protocol) noexcept {
  return no_descriptor() ? -1 : static_cast<int>(::syscall(SYS_socket, family, type, protocol));
}
extern "C" int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  return no_descriptor()
             ? -1
             : static_cast<int>(::syscall(SYS_accept4, listener, address, length, flags));
}
extern "C" int memfd_create(const char* name, unsigned flags) noexcept {
  return no_descriptor() ? -1 : static_cast<int>(::syscall(SYS_memfd_create, name, flags));
}
extern "C" int fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  bool makes_one = command == F_DUPFD_CLOEXEC || command == F_DUPFD;
  return makes_one && no_descriptor()
             ? -1
             : static_cast<int>(::syscall(SYS_fcntl, fd, command, argument));
}
// Without one for what the packet carries, the kernel drops that and says so.
extern "C" ssize_t recvmsg(int socket, msghdr* message, int flags) {
  ssize_t length = ::syscall(SYS_recvmsg, socket, message, flags);
  cmsghdr* header = length >= 0 ? CMSG_FIRSTHDR(message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || !no_descriptor()) return length;
  int fd;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  ::close(fd);
  message->msg_controllen = 0;
  message->msg_flags |= MSG_CTRUNC;
  return length;
}

namespace sluice::test {
namespace {

struct Box final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    all.push_back(std::move(completion));
  }
  std::vector<Completion> all;
};

Tensor tensor_of(Context& context, int64_t bytes) {
  auto buffer = context.allocate({bytes}, uint8);
  REQUIRE(buffer.ok());
  return std::move(*buffer).freeze();
}

void refuse(int count, int error, bool carrying) {
  refused_with = error;
  with_descriptor = carrying;
  refusals = count;
}

TEST_CASE("a bell that the kernel had no room for is rung later", "[shm]") {
  Server server;
  for (int error : {ENOBUFS, EAGAIN, ENOMEM}) {
    INFO("errno " << error);
    auto [peer, endpoint] = server.meet();
    REQUIRE(peer->reader().begin_sleep());
    refuse(3, error, false);
    Tensor message = tensor_of(*server.context, 8);
    REQUIRE(endpoint.send(1, message).ok());
    CHECK_FALSE(peer->has_bell());
    // The context looks again by itself: nothing comes that would wake it.
    REQUIRE(server.until([&, &raw = *peer] { return raw.has_bell(); }));
    CHECK(refusals.load() == 0);
    peer->reader().end_sleep();
    CHECK(peer->read().has_value());
  }
  CHECK(read_counter("shm.doorbells_delayed") >= 9);
}

TEST_CASE(
    "an announcement that the kernel had no room for goes out later, and its message after it",
    "[shm]") {
  Server server;
  for (int error : {EAGAIN, ETOOMANYREFS, ENOBUFS}) {
    INFO("errno " << error);
    auto [peer, endpoint] = server.meet();
    refuse(3, error, true);
    Tensor message = tensor_of(*server.context, 1 << 20);
    REQUIRE(endpoint.send(1, message).ok());
    std::optional<wire::Header> heard;
    REQUIRE(server.until([&, &raw = *peer] { return (heard = raw.read()).has_value(); }));
    CHECK(heard->type == wire::MessageType::kOffer);
    CHECK(refusals.load() == 0);
    auto packet = peer->hear();
    REQUIRE(packet.has_value());
    CHECK(packet->size() == 24);
  }
}

// Whoever has said that it ends and goes on writing is not heard without end. It is as quick as can
// be: it says with each answer that it sleeps, so the library rings, and from there it fills its
// ring again.
TEST_CASE("of a peer that has ended no more is read than a ring holds", "[shm]") {
  constexpr uint64_t kEnough = 200'000;
  Server server;
  auto [peer, endpoint] = server.meet();
  uint64_t written = 0, answered = 0;
  auto go_on = [&, &raw = *peer] {
    while (raw.read()) ++answered;
    raw.region()->sleeping.store(raw.region()->sleeping.load() + 2);
    while (written < kEnough && raw.write(wire::Ping{.nonce = written, .reply = false})) ++written;
  };
  peer->region()->sleeping.store(1);
  for (; written < 100; ++written)
    REQUIRE(peer->write(wire::Ping{.nonce = written, .reply = false}));
  REQUIRE(peer->say(2));  // the end
  at_bell = go_on;
  CHECK(server.until([&, &end = endpoint] { return end.state() == EndpointState::kClosed; }));
  at_bell = nullptr;
  go_on();
  CHECK(answered >= 100);
  // Events are looked for once in 64 turns of 32 messages; then a ring is left.
  CHECK(answered <= 4 * shm::kSlotCount);
}

TEST_CASE("what a peer wrote before its end is read, a ring of it", "[shm]") {
  Server server;
  auto [peer, endpoint] = server.meet();
  Box box;
  auto room = server.context->allocate({8}, uint8);
  REQUIRE(room.ok());
  REQUIRE(endpoint.receive({.tag = 7}, std::move(*room), {.sink = &box, .deadline = soon()}).ok());
  // Asleep, the context hears of the end before it looks into the ring.
  server.context->progress();
  REQUIRE(server.context->prepare_to_sleep());
  // One slot says where the ring grew, and one is the message's below.
  for (uint64_t i = 0; i + 2 < shm::kSlotCount; ++i)
    REQUIRE(peer->write(wire::Ping{.nonce = i, .reply = true}));
  std::byte header[wire::kMaxHeaderBytes];
  std::byte payload[8] = {};
  size_t length = wire::encode(
      wire::TaggedInline{.id = 1, .tag = 7, .payload_bytes = sizeof(payload), .report = false},
      header);
  REQUIRE(peer->write(std::span(header).first(length), payload));
  peer.reset();
  REQUIRE(server.until([&, &end = endpoint] { return end.state() == EndpointState::kClosed; }));
  REQUIRE(box.all.size() == 1);
  CHECK(box.all[0].status.ok());
}

// Many peers with full rings: a turn serves all, and none for long.
TEST_CASE("a turn handles a bounded number of messages, and the next goes on with the others",
          "[shm]") {
  Server server;
  constexpr size_t kPeers = 40;
  std::vector<std::pair<std::unique_ptr<RawPeer>, Endpoint>> open;
  for (size_t i = 0; i < kPeers; ++i) open.push_back(server.meet());
  // The first rest since: who waits for a peer sleeps a lot.
  for (auto& [peer, endpoint] : open) {
    if (peer->other_sleeps()) REQUIRE(peer->ring());
  }
  auto sleeps = [](const auto& one) { return one.first->other_sleeps(); };
  for (int i = 0; i < 2'000 && std::any_of(open.begin(), open.end(), sleeps); ++i)
    server.context->progress();
  REQUIRE(std::none_of(open.begin(), open.end(), sleeps));
  for (auto& [peer, endpoint] : open) {
    for (uint64_t i = 0; i < 900; ++i) REQUIRE(peer->write(wire::Ping{.nonce = i, .reply = false}));
  }
  std::vector<uint64_t> answers(kPeers);
  uint64_t least = 0;
  test::SingleTurns turns(*server.context);
  for (int turn = 0; turn < 100'000 && least < 900; ++turn) {
    const bool single = turns.progress();
    least = UINT64_MAX;
    uint64_t most = 0;
    for (size_t i = 0; i < kPeers; ++i) {
      uint64_t before = answers[i];
      while (open[i].first->read()) ++answers[i];
      if (single) CHECK(answers[i] - before <= 32);
      least = std::min(least, answers[i]);
      most = std::max(most, answers[i]);
    }
    CHECK(most - least <= 64);
  }
  CHECK(least == 900);
}

// Thousands of idle connections must not cost every turn a look at each.
TEST_CASE("connections on which nothing comes are not looked at until their peers ring", "[shm]") {
  Server server({.connections = {4096, 8192}});
  constexpr size_t kPeers = 60, kStillPolled = 16;
  std::vector<std::pair<std::unique_ptr<RawPeer>, Endpoint>> open;
  for (size_t i = 0; i < kPeers; ++i) open.push_back(server.meet());
  auto resting = [&] {
    size_t count = 0;
    for (auto& [peer, endpoint] : open) count += peer->other_sleeps() ? 1 : 0;
    return count;
  };
  for (int i = 0; i < 20'000 && resting() < kPeers - kStillPolled; ++i) server.context->progress();
  CHECK(resting() == kPeers - kStillPolled);
  // Whoever rings is heard at once, also many; and so is whoever is sent to, and ends, and has no
  // room.
  for (int round = 0; round < 3; ++round) {
    for (auto& [peer, endpoint] : open) {
      REQUIRE(peer->write(wire::Ping{.nonce = 7, .reply = false}));
      if (peer->other_sleeps()) REQUIRE(peer->ring());
    }
    size_t answers = 0;
    REQUIRE(server.until([&] {
      for (auto& [peer, endpoint] : open) answers += peer->read() ? 1 : 0;
      return answers == kPeers;
    }));
    for (int i = 0; i < 20'000 && resting() < kPeers - kStillPolled; ++i)
      server.context->progress();
    CHECK(resting() == kPeers - kStillPolled);
  }
  Tensor message = tensor_of(*server.context, 8);
  refuse(static_cast<int>(kPeers), ENOBUFS, false);
  for (auto& [peer, endpoint] : open) {
    REQUIRE(peer->reader().begin_sleep());
    REQUIRE(endpoint.send(1, message).ok());
  }
  for (auto& [peer, endpoint] : open)
    REQUIRE(server.until([&, &raw = *peer] { return raw.has_bell(); }));
  for (auto& [peer, endpoint] : open) peer->reader().end_sleep();
  for (int i = 0; i < 20'000 && resting() < kPeers - kStillPolled; ++i) server.context->progress();
  for (auto& [peer, endpoint] : open) {
    for (uint64_t i = 0; i < 100; ++i) REQUIRE(peer->write(wire::Ping{.nonce = i, .reply = true}));
    peer.reset();
  }
  for (auto& [peer, endpoint] : open)
    REQUIRE(server.until([&, &end = endpoint] { return end.state() == EndpointState::kClosed; }));
}

TEST_CASE("a context that sleeps looks at idle connections a few times only", "[shm]") {
  Server server({.connections = {4096, 8192}});
  constexpr size_t kPeers = 60, kStillPolled = 16;
  std::vector<std::pair<std::unique_ptr<RawPeer>, Endpoint>> open;
  for (size_t i = 0; i < kPeers; ++i) open.push_back(server.meet());
  auto resting = [&] {
    size_t count = 0;
    for (auto& [peer, endpoint] : open) count += peer->other_sleeps() ? 1 : 0;
    return count;
  };
  for (int sleep = 0; sleep < 8; ++sleep) {
    server.context->progress();
    REQUIRE(server.until([&, &context = *server.context] { return context.prepare_to_sleep(); }));
    REQUIRE(resting() == kPeers);
    server.context->progress();  // awake
  }
  CHECK(resting() == kPeers - kStillPolled);
  // All are heard again.
  for (auto& [peer, endpoint] : open) {
    REQUIRE(peer->write(wire::Ping{.nonce = 7, .reply = false}));
    if (peer->other_sleeps()) REQUIRE(peer->ring());
  }
  size_t answers = 0;
  REQUIRE(server.until([&] {
    for (auto& [peer, endpoint] : open) answers += peer->read() ? 1 : 0;
    return answers == kPeers;
  }));
}

// As if this process had so many descriptors left and got none back. (Not by RLIMIT_NOFILE: UBSan
// needs some for itself.)
struct Descriptors {
  explicit Descriptors(int left) { descriptors_left = left; }
  ~Descriptors() { descriptors_left = -1; }
};

struct Run final : ProgressHook {
  size_t progress(Instant) override { return other->progress(); }
  Instant next_timeout() override { return Instant{}; }  // nothing else wakes who waits
  Context* other = nullptr;
};

// A connection either comes about with all that it needs, or not at all: in no case does the lender
// hear that a view is over that lives.
TEST_CASE("whichever descriptor is missing, a lender keeps what its peer still looks at", "[shm]") {
  int refused = 0, lent = 0;
  for (int left = 0; left < 14; ++left) {
    INFO(left << " descriptors are left");
    auto lender = open_small(), reader = open_small();
    Tensor tensor = tensor_of(*lender, 1 << 20);
    auto listener = reader->listen("shm:" + fresh_name("few"));
    REQUIRE(listener.ok());
    Run hook;
    hook.other = reader.get();
    lender->add_hook(&hook);
    auto run = [&](const std::function<bool()>& done) {
      for (const Instant limit = soon(); !done() && now() < limit;) lender->progress();
      return done();
    };
    Result<Endpoint> connected = [&] {
      Descriptors few(left);
      return lender->connect(listener->address(), {.timeout = std::chrono::milliseconds(300)});
    }();
    if (!connected.ok()) {
      ++refused;
      lender->remove_hook(&hook);
      continue;
    }
    Result<Endpoint> accepted = [&] {
      Descriptors none(0);
      return listener->accept(soon());
    }();
    REQUIRE(accepted.ok());
    Exchange ours(*lender), theirs(*reader);
    REQUIRE(ours.add(*connected).ok());
    REQUIRE(theirs.add(*accepted).ok());
    auto publication = ours.publish({"tensor", 0}, std::move(tensor));
    REQUIRE(publication.ok());
    Fetch fetch = theirs.fetch({"tensor", 0}, soon());
    REQUIRE(run([&] { return fetch.ready(); }));
    auto got = fetch.take();
    REQUIRE(got.ok());
    ++lent;
    *accepted = Endpoint();
    publication->retire();
    REQUIRE(run([&] { return connected->state() == EndpointState::kClosed; }));
    *publication = Publication();
    for (int i = 0; i < 1000; ++i) lender->progress();
    CHECK(lender->arena().statistics().outstanding == 1);
    got->value = Tensor();
    CHECK(run([&] { return lender->arena().statistics().outstanding == 0; }));
    lender->remove_hook(&hook);
  }
  CHECK(refused > 0);
  CHECK(lent > 0);
}

TEST_CASE("what a peer gives back after the end comes home, though memory of its is still viewed",
          "[shm]") {
  auto near = open_small(), far = open_small();
  Run hook;
  hook.other = far.get();
  near->add_hook(&hook);
  auto run = [&](const std::function<bool()>& done) {
    for (const Instant limit = soon(); !done() && now() < limit;) near->progress();
    return done();
  };
  auto listener = far->listen("shm:" + fresh_name("both"));
  REQUIRE(listener.ok());
  auto connected = near->connect(listener->address(), {.timeout = std::chrono::seconds(10)});
  REQUIRE(connected.ok());
  auto accepted = listener->accept(soon());
  REQUIRE(accepted.ok());
  Exchange ours(*near), theirs(*far);
  REQUIRE(ours.add(*connected).ok());
  REQUIRE(theirs.add(*accepted).ok());
  // Each end views a tensor of the other's.
  auto lent = ours.publish({"ours", 0}, tensor_of(*near, 1 << 20));
  auto borrowed = theirs.publish({"theirs", 0}, tensor_of(*far, 1 << 20));
  REQUIRE(lent.ok());
  REQUIRE(borrowed.ok());
  Fetch there = theirs.fetch({"ours", 0}, soon()), here = ours.fetch({"theirs", 0}, soon());
  REQUIRE(run([&] { return there.ready() && here.ready(); }));
  auto view_there = there.take(), view_here = here.take();
  REQUIRE(view_there.ok());
  REQUIRE(view_here.ok());
  *accepted = Endpoint();
  lent->retire();
  REQUIRE(run([&] { return connected->state() == EndpointState::kClosed; }));
  *lent = Publication();
  for (int i = 0; i < 1000; ++i) near->progress();
  CHECK(near->arena().statistics().outstanding == 1);
  view_there->value = Tensor();
  CHECK(run([&] { return near->arena().statistics().outstanding == 0; }));
  view_here->value = Tensor();
  borrowed->retire();
  *borrowed = Publication();
  CHECK(run([&] { return far->arena().statistics().outstanding == 0; }));
  near->remove_hook(&hook);
}

TEST_CASE("a listener without a descriptor waits for one, and does not spin", "[shm]") {
  Server server;
  std::vector<std::unique_ptr<RawPeer>> peers;
  peers.push_back(std::make_unique<RawPeer>(server.name));
  REQUIRE(peers[0]->greet());
  {
    Descriptors none(0);
    uint64_t before = read_counter("shm.accepting_paused");
    const Instant first = now();
    REQUIRE(server.until([&] { return read_counter("shm.accepting_paused") > before; }));
    REQUIRE(server.until([&] { return read_counter("shm.accepting_paused") > before + 1; }));
    CHECK(now() - first > std::chrono::milliseconds(50));
  }
  CHECK(server.until([&] { return peers[0]->met(); }));
}

}  // namespace
}  // namespace sluice::test
