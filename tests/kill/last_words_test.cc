// What a process sent before its end is read by its peer, although the end is known first:
// a socket that is closed over unread bytes says so before it gives what was sent into it.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <optional>
#include <string>

#include <sluice/select/open.h>

#include "tests/support/audit.h"
#include "tests/support/fresh_name.h"

namespace sluice::test {
namespace {

// By offer, from an extent that the peer has not seen; more than is copied in one turn.
constexpr size_t kSize = size_t{6} << 20;

ContextOptions options() {
  return {.arena = {},
          .arena_options = {.limit_bytes = size_t{32} << 20, .first_extent_bytes = size_t{4} << 20},
          .waiting = Waiting::kSleep};
}
Instant soon() { return after(now(), std::chrono::seconds(20)); }

struct Last final : CompletionSink {
  void on_completion(Completion&& completion) noexcept override { value = std::move(completion); }
  std::optional<Completion> value;
};

void step(int pipe, char what) {
  if (::write(pipe, &what, 1) != 1) ::_exit(20);
}

// Armed as for a sleep, so that the peer rings; the bell stays unread. Sends, and ends.
[[noreturn]] void send_and_die(const std::string& address, int to_parent, int from_parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto context = open_context(options());
  if (!context.ok()) ::_exit(10);
  auto peer = (*context)->connect(address);
  if (!peer.ok()) ::_exit(11);
  auto buffer = (*context)->allocate({static_cast<int64_t>(kSize)}, uint8);
  if (!buffer.ok()) ::_exit(12);
  std::memset(buffer->data(), 7, kSize);
  while ((*context)->progress() > 0 || !(*context)->prepare_to_sleep()) {}
  step(to_parent, 's');
  char go;
  if (::read(from_parent, &go, 1) != 1) ::_exit(13);
  if (!peer->send(1, std::move(*buffer).freeze()).ok()) ::_exit(14);
  ::kill(::getpid(), SIGKILL);
  ::_exit(15);
}

TEST_CASE("shm: a message sent by a process that ended with our bell unread is received whole",
          "[kill]") {
  NothingLeftBehind audit;
  int up[2], down[2];
  REQUIRE(::pipe(up) == 0);
  REQUIRE(::pipe(down) == 0);
  std::string address = fresh_name("shm:last-words");
  pid_t child = -1;
  {
    auto context = open_context(options());
    REQUIRE(context.ok());
    Context& c = **context;
    auto listener = c.listen(address);
    REQUIRE(listener.ok());
    child = ::fork();
    if (child == 0) send_and_die(address, up[1], down[0]);
    auto peer = listener->accept(soon());
    REQUIRE(peer.ok());
    Last got;
    auto room = c.allocate({static_cast<int64_t>(kSize)}, uint8);
    REQUIRE(peer->receive({.tag = 1}, std::move(*room), {.sink = &got, .deadline = soon()}).ok());
    char asleep;
    REQUIRE(::read(up[0], &asleep, 1) == 1);
    // Rings.
    REQUIRE(peer->send(2, std::move(*c.allocate({64}, uint8)).freeze()).ok());
    c.progress();
    step(down[1], 'g');
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    REQUIRE(c.wait_until([&] { return got.value.has_value(); }, soon()).ok());
    INFO(got.value->status.to_string());
    REQUIRE(got.value->status.ok());
    for (std::byte byte : got.value->buffers[0].bytes()) {
      if (byte != std::byte{7}) FAIL("not what was sent");
    }
    got.value.reset();
    // And then its end is seen.
    CHECK(c.wait_until([&] { return peer->state() == EndpointState::kClosed; }, soon()).ok());
  }
  for (int end : {up[0], up[1], down[0], down[1]}) ::close(end);
}

}  // namespace
}  // namespace sluice::test
