// A peer that is stopped in the middle of a stream of transfers: it is reported silent,
// operations end by their own deadlines, the connection stays; woken, it goes on. Stopped
// for longer than an unplugged peer would be borne.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <string>

#include <sluice/select/open.h>

#include "tests/l2/wire.h"
#include "tests/support/audit.h"
#include "tests/support/fresh_name.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

constexpr size_t kSize = size_t{1} << 20;
constexpr int kDepth = 8;
constexpr Tag kStream = 1, kKey = 2;
// Longer than a peer may be silent before it is reported (4 s), so that both are seen.
constexpr Duration kDeadline = std::chrono::seconds(6);
// Over Ethernet a silent peer is given up after 10 s, and an operation may end 2 s after its
// deadline.
constexpr Duration kShortDeadline = std::chrono::seconds(5);
constexpr Duration kPatience = std::chrono::seconds(40);
// Exit codes of the server.
enum { kFine = 0, kNoContext = 10, kNoPeer, kNoKey, kWrongBytes, kNoReceive };

ContextOptions options() {
  return {
      .arena = {},
      .arena_options = {.limit_bytes = size_t{64} << 20, .first_extent_bytes = size_t{32} << 20},
      .waiting = Waiting::kSleep};
}
Instant soon() { return after(now(), kPatience); }

// The number of the message in every word: late or torn bytes are seen.
void fill(std::span<std::byte> bytes, uint64_t number) {
  for (size_t i = 0; i < bytes.size(); i += 8) std::memcpy(bytes.data() + i, &number, 8);
}
bool whole(std::span<const std::byte> bytes) {
  for (size_t i = 8; i < bytes.size(); i += 8) {
    if (std::memcmp(bytes.data(), bytes.data() + i, 8) != 0) return false;
  }
  return true;
}

struct Sink final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override {
    all.push_back(std::move(completion));
  }
  std::deque<Completion> all;
};

// Grants memory, then receives whatever comes until the peer closes.
[[noreturn]] void serve(const std::string& at, int address_pipe) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto context = open_context(options());
  if (!context.ok()) ::_exit(kNoContext);
  Context& c = **context;
  auto listener = c.listen(at);
  if (!listener.ok()) ::_exit(kNoContext);
  std::string address = listener->address();
  if (::write(address_pipe, address.data(), address.size()) != static_cast<ssize_t>(address.size()))
    ::_exit(kNoContext);
  ::close(address_pipe);
  auto peer = listener->accept(soon());
  if (!peer.ok()) ::_exit(kNoPeer);
  auto granted = c.allocate({static_cast<int64_t>(kSize)}, uint8);
  auto key = granted.ok() ? peer->grant(std::move(*granted), {.rights = Right::kReadWrite})
                          : Result<RemoteKey>(granted.status());
  if (!key.ok()) ::_exit(kNoKey);
  auto encoded = key->encode();
  auto message = c.allocate({static_cast<int64_t>(encoded.size())}, uint8);
  if (!message.ok()) ::_exit(kNoKey);
  std::memcpy(message->data(), encoded.data(), encoded.size());
  if (!peer->send_and_wait(kKey, std::move(*message).freeze(), soon()).ok()) ::_exit(kNoKey);

  Sink received;
  for (bool asked = false; peer->state() == EndpointState::kConnected;) {
    if (!asked) {
      auto room = c.allocate({static_cast<int64_t>(kSize)}, uint8);
      asked = room.ok() && peer->receive({.tag = kStream}, std::move(*room),
                                         {.sink = &received, .deadline = kNever})
                               .ok();
      if (!asked) ::_exit(kNoReceive);
    }
    (void)c.wait(soon());
    while (!received.all.empty()) {
      Completion got = std::move(received.all.front());
      received.all.pop_front();
      asked = false;
      if (got.status.ok() && !whole(got.buffers[0].bytes())) ::_exit(kWrongBytes);
    }
  }
  ::_exit(kFine);
}

class Server {
 public:
  explicit Server(const std::string& at) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      serve(at, ends[1]);
    }
    ::close(ends[1]);
    char text[200];
    ssize_t length = ::read(ends[0], text, sizeof(text));
    ::close(ends[0]);
    if (length > 0) address.assign(text, static_cast<size_t>(length));
  }
  ~Server() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  // Returns when the process has stopped.
  void stop() {
    REQUIRE(::kill(pid_, SIGSTOP) == 0);
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(status));
  }
  void kill() {
    REQUIRE(::kill(pid_, SIGKILL) == 0);
    REQUIRE(WIFSIGNALED(exit_status()));
  }
  void wake() { REQUIRE(::kill(pid_, SIGCONT) == 0); }
  int exit_status() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }
  std::string address;

 private:
  pid_t pid_ = -1;
};

// Sends or writes, kDepth at a time, as `sluice perf` does.
class Stream {
 public:
  Stream(Context& context, Endpoint& endpoint, const RemoteKey* key)
      : context_(context),
        endpoint_(endpoint),
        key_(key),
        deadline_(endpoint.info().path.path == Path::kPacket ? kShortDeadline : kDeadline) {}

  // False: an operation could not be posted.
  bool post() {
    while (outstanding_ < kDepth) {
      auto buffer = context_.allocate({static_cast<int64_t>(kSize)}, uint8);
      if (!buffer.ok()) return true;  // memory on loan to a stopped peer
      fill(buffer->bytes(), ++number_);
      Tensor tensor = std::move(*buffer).freeze();
      PostOptions how{.sink = &sink_, .deadline = after(now(), deadline_), .level = Level::kPlaced};
      auto id = key_ != nullptr ? endpoint_.write(*key_, 0, std::move(tensor), how)
                                : endpoint_.send(kStream, std::move(tensor), how);
      if (!id.ok()) return id.code() == Code::kTryAgain;
      ++outstanding_;
    }
    return true;
  }
  // Takes what has ended.
  void collect() {
    while (!sink_.all.empty()) {
      Status status = sink_.all.front().status;
      sink_.all.pop_front();
      --outstanding_;
      if (status.ok()) ++done;
      if (status == Code::kTimedOut || status == Code::kOutcomeUnknown)
        ++ended_late;
      else if (!status.ok())
        other = status.to_string();
    }
  }
  int outstanding() const { return outstanding_; }
  int done = 0, ended_late = 0;
  std::string other;  // an end that nobody may see here

 private:
  Context& context_;
  Endpoint& endpoint_;
  const RemoteKey* key_;
  Duration deadline_;
  Sink sink_;
  uint64_t number_ = 0;
  int outstanding_ = 0;
};

void check_stop_and_wake(const std::string& at, bool writes) {
  NothingLeftBehind audit;
  Server server(at);
  REQUIRE_FALSE(server.address.empty());
  {
    auto context = open_context(options());
    REQUIRE(context.ok());
    Context& c = **context;
    auto endpoint = c.connect(server.address);
    REQUIRE(endpoint.ok());
    auto room = c.allocate({RemoteKey::kEncodedBytes}, uint8);
    REQUIRE(room.ok());
    auto encoded = endpoint->receive_and_wait({.tag = kKey}, std::move(*room), soon());
    REQUIRE(encoded.ok());
    auto key = RemoteKey::decode(encoded->buffer.bytes());
    REQUIRE(key.ok());
    Stream stream(c, *endpoint, writes ? &*key : nullptr);
    auto turn = [&](bool post) {
      if (post) REQUIRE(stream.post());
      (void)c.wait(after(now(), std::chrono::milliseconds(20)));
      stream.collect();
      REQUIRE(stream.other == "");
      REQUIRE(endpoint->state() == EndpointState::kConnected);
    };
    auto until = [&](bool post, auto&& done) {
      for (Instant limit = soon(); !done() && now() < limit;) turn(post);
      return done();
    };

    REQUIRE(until(true, [&] { return stream.done >= 100; }));
    CHECK(stream.ended_late == 0);
    CHECK_FALSE(endpoint->info().peer_silent);

    // In the middle: what was under way, and what is posted to one who is stopped. What it
    // answered just before is taken first, so that there is room to post.
    REQUIRE(stream.post());
    server.stop();
    turn(false);
    REQUIRE(stream.post());
    CHECK(until(false, [&] { return endpoint->info().peer_silent; }));
    CHECK(until(false, [&] { return stream.outstanding() == 0; }));
    CHECK(stream.ended_late > 0);
    CHECK(endpoint->state() == EndpointState::kConnected);

    server.wake();
    int before = stream.done;
    CHECK(until(true, [&] { return stream.done >= before + 100; }));
    CHECK_FALSE(endpoint->info().peer_silent);
    CHECK(until(false, [&] { return stream.outstanding() == 0; }));
    CHECK(endpoint->counters().posted == endpoint->counters().completed);
    CHECK(endpoint->close(soon()).ok());
  }
  CHECK(server.exit_status() == kFine);
}

std::string shm_address() { return fresh_name("shm:silence"); }

TEST_CASE("shm: messages to a stopped peer end by their deadlines and go on when it wakes",
          "[silence]") {
  check_stop_and_wake(shm_address(), false);
}
TEST_CASE("shm: writes to a stopped peer end by their deadlines and go on when it wakes",
          "[silence]") {
  check_stop_and_wake(shm_address(), true);
}
TEST_CASE("tcp: messages to a stopped peer end by their deadlines and go on when it wakes",
          "[silence]") {
  check_stop_and_wake("tcp://127.0.0.1:0", false);
}
TEST_CASE("tcp: writes to a stopped peer end by their deadlines and go on when it wakes",
          "[silence]") {
  check_stop_and_wake("tcp://127.0.0.1:0", true);
}

// Nothing but the peer's progress answers over Ethernet: what is dead looks silent, and is told
// so first. Stopped for good is the same.
void check_told_and_ended(const std::string& at, bool stopped) {
  NothingLeftBehind audit;
  Server server(at);
  REQUIRE_FALSE(server.address.empty());
  auto context = open_context(options());
  REQUIRE(context.ok());
  Context& c = **context;
  auto endpoint = c.connect(server.address);
  REQUIRE(endpoint.ok());
  REQUIRE(endpoint
              ->receive_and_wait({.tag = kKey},
                                 std::move(*c.allocate({RemoteKey::kEncodedBytes}, uint8)), soon())
              .ok());
  Stream stream(c, *endpoint, nullptr);
  auto until = [&](bool post, auto&& done) {
    for (Instant limit = soon(); !done() && now() < limit;) {
      if (post) REQUIRE(stream.post());
      (void)c.wait(after(now(), std::chrono::milliseconds(20)));
      stream.collect();
    }
    return done();
  };
  REQUIRE(until(true, [&] { return stream.done >= 100; }));
  REQUIRE(stream.post());
  stopped ? server.stop() : server.kill();
  Instant since = now();
  CHECK(until(false, [&] { return endpoint->info().peer_silent; }));
  CHECK(endpoint->state() == EndpointState::kConnected);
  CHECK(until(false, [&] { return endpoint->state() == EndpointState::kClosed; }));
  CHECK(now() - since >= std::chrono::seconds(9));  // computing may take a while
  CHECK(until(false, [&] { return stream.outstanding() == 0; }));
  CHECK(endpoint->counters().posted == endpoint->counters().completed);
}

TEST_CASE("l2: messages to a stopped peer end by their deadlines and go on when it wakes",
          "[silence][l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  check_stop_and_wake("l2://lo:0", false);
}
TEST_CASE("l2: writes to a stopped peer end by their deadlines and go on when it wakes",
          "[silence][l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  check_stop_and_wake("l2://lo:0", true);
}
TEST_CASE("l2: a peer that was killed is told silent, and ended in its time", "[silence][l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  check_told_and_ended("l2://lo:0", false);
}
TEST_CASE("l2: a peer that stays stopped is told silent, and ended in its time", "[silence][l2]") {
  if (!own_network()) return skip("netns", kNoNetwork);
  check_told_and_ended("l2://lo:0", true);
}

}  // namespace
}  // namespace sluice::test
