// A context that records: what it writes of its messages and of its time, what a fork and a folder
// that is not there do, and that a context without the setting has nothing of it.
#include <sluice/recording/recorder.h>

#include <catch2/catch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/settings.h>
#include <sluice/recording/format.h>
#include <sluice/runtime/context_core.h>
#include <sluice/select/open.h>

#include "tests/profile/recordings.h"
#include "tests/support/audit.h"
#include "tests/support/fresh_name.h"

namespace sluice {
namespace {

using recording::Event;
using recording::EventKind;
using test::Folder;

Instant soon() { return after(now(), std::chrono::seconds(60)); }

struct Recorded {
  explicit Recorded(const std::string& folder) {
    REQUIRE(set_setting("SLUICE_RECORD", folder).ok());
  }
  ~Recorded() { (void)set_setting("SLUICE_RECORD", std::nullopt); }
};

std::vector<recording::Recording> read_all(const Folder& folder) {
  std::vector<recording::Recording> all;
  for (const auto& each : std::filesystem::directory_iterator(folder.path)) {
    auto read = recording::read_recording(each.path().string());
    REQUIRE(read.ok());
    all.push_back(std::move(*read));
  }
  return all;
}

// A context that is connected with itself.
struct Alone {
  explicit Alone(const char* scheme = "loopback:", Waiting waiting = Waiting::kSpin) {
    auto opened = open_context({.waiting = waiting});
    REQUIRE(opened.ok());
    context = std::move(*opened);
    auto listening = context->listen(scheme + test::fresh_name("recorder"));
    REQUIRE(listening.ok());
    auto connected = context->connect(listening->address());
    REQUIRE(connected.ok());
    out = std::move(*connected);
    auto accepted = listening->accept(soon());
    REQUIRE(accepted.ok());
    in = std::move(*accepted);
  }
  // In order: over shm a loan to a peer that is this process comes home only so.
  ~Alone() {
    if (context == nullptr || context->forked()) return;
    in.start_close();
    CHECK(out.close(soon()).ok());
  }
  void pass(size_t bytes) {
    auto buffer = context->arena().allocate(bytes);
    auto room = context->arena().allocate(bytes);
    REQUIRE((buffer.ok() && room.ok()));
    REQUIRE(out.send(1, std::move(*buffer).freeze()).ok());
    REQUIRE(in.receive_and_wait({.tag = 1}, std::move(*room), soon()).ok());
  }
  std::unique_ptr<Context> context;
  Endpoint out, in;
};

TEST_CASE("each message is recorded where it leaves and where it comes, with its size") {
  const char* scheme = GENERATE("loopback:", "shm:");
  test::NothingLeftBehind audit;
  Folder folder;
  {
    Recorded recorded(folder.path);
    Alone alone(scheme);
    for (size_t bytes : {8, 100, 300'000, 5'000'000}) alone.pass(bytes);
  }
  auto all = read_all(folder);
  REQUIRE(all.size() == 1);
  CHECK(all[0].missing.empty());
  CHECK(all[0].header.pid == static_cast<uint64_t>(::getpid()));
  REQUIRE(all[0].contexts.size() == 1);
  const recording::ContextRecording& context = all[0].contexts.begin()->second;
  CHECK(context.connections.size() == 2);
  for (EventKind kind : {EventKind::kSent, EventKind::kReceived}) {
    std::vector<uint64_t> sizes;
    for (const Event& event : context.events)
      if (event.kind == kind) sizes.push_back(event.bytes);
    CHECK(sizes == std::vector<uint64_t>{8, 100, 300'000, 5'000'000});
  }
}

// Takes processor time, and so much of it that it is no turn of a loop.
void compute() {
  const Duration start = process_cpu_time();
  while (process_cpu_time() - start < std::chrono::milliseconds(5)) {}
}

TEST_CASE("the time before a message is computing, polling or sleep, as it was") {
  const auto waiting = GENERATE(Waiting::kSpin, Waiting::kSleep);
  Folder folder;
  {
    Recorded recorded(folder.path);
    Alone alone("loopback:", waiting);
    alone.pass(8);
    compute();
    alone.pass(8);
    CHECK_FALSE(alone.context
                    ->wait_until([] { return false; },
                                 after(alone.context->refresh_now(), std::chrono::milliseconds(20)))
                    .ok());
    alone.pass(8);
  }
  auto all = read_all(folder);
  REQUIRE(all.size() == 1);
  std::vector<Event> sent;
  for (const Event& event : all[0].contexts.begin()->second.events)
    if (event.kind == EventKind::kSent) sent.push_back(event);
  REQUIRE(sent.size() == 3);
  CHECK(sent[1].computed_ns > sent[1].polled_ns + sent[1].slept_ns);
  const bool sleeps = waiting == Waiting::kSleep;
  CHECK((sent[2].slept_ns > sent[2].computed_ns + sent[2].polled_ns) == sleeps);
  CHECK((sent[2].slept_ns == 0) == !sleeps);
  CHECK(sent[2].paused_ns == 0);
}

TEST_CASE("a forked child writes nothing of its parent's, and its own context has its own file") {
  Folder folder;
  {
    Recorded recorded(folder.path);
    auto alone = std::make_unique<Alone>();
    alone->pass(8);
    auto unconnected = open_context();
    REQUIRE(unconnected.ok());
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alone.reset();
      (*unconnected).reset();
      alone = std::make_unique<Alone>();
      alone->pass(16);
      alone.reset();
      std::_Exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    alone->pass(32);
  }
  auto all = read_all(folder);
  REQUIRE(all.size() == 2);
  for (const recording::Recording& each : all) {
    CHECK(each.missing.empty());
    std::vector<uint64_t> sizes;
    for (const auto& [number, context] : each.contexts)
      for (const Event& event : context.events) sizes.push_back(event.bytes);
    if (each.header.pid == static_cast<uint64_t>(::getpid())) {
      CHECK(sizes == std::vector<uint64_t>{8, 8, 32, 32});
    } else {
      CHECK(sizes == std::vector<uint64_t>{16, 16});
    }
  }
}

TEST_CASE("contexts of one process share its file") {
  Folder folder;
  {
    Recorded recorded(folder.path);
    Alone one, two;
    one.pass(8);
    two.pass(16);
  }
  auto all = read_all(folder);
  REQUIRE(all.size() == 1);
  CHECK(all[0].contexts.size() == 2);
}

TEST_CASE("a program goes on where no recording can be made") {
  Folder folder;
  Recorded recorded(folder.path + "/none");
  Alone alone;
  alone.pass(8);
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("a context without the setting has no recorder") {
  Alone alone;
  CHECK(ContextCore::of(*alone.context).link_decorator() == nullptr);
}

}  // namespace
}  // namespace sluice
