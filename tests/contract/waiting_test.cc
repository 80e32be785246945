// Ways to wait: modes, foreign event loops, the progress thread. Coroutines: awaiting_test.cc.
#include "tests/contract/pair.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <semaphore>
#include <thread>
#include <utility>

#include <sluice/select/open.h>
#include <sluice/select/progress_thread.h>

#include "tests/support/skip.h"

namespace sluice::test {
namespace {

// For another thread than Catch's, the main one: says what went wrong, and ends the program.
template <typename Value>
void must(const char* what, const Result<Value>& result) {
  if (result.ok()) return;
  std::fprintf(stderr, "far side: %s: %s\n", what, result.status().to_string().c_str());
  std::abort();
}

// The far side on a thread of its own.
class FarThread {
 public:
  template <typename Serve>
  FarThread(Waiting waiting, Serve serve) : context_(open(waiting)) {
    auto listener = context_->listen(fresh_address());
    REQUIRE(listener.ok());
    address = listener->address();
    thread_ = std::thread([this, serve, listener = std::move(*listener)]() mutable {
      auto endpoint = listener.accept(soon());
      must("accept", endpoint);
      serve(*context_, *endpoint);
      (void)endpoint->close(soon());
      listener = Listener();
    });
  }
  ~FarThread() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  std::string address;

 private:
  std::unique_ptr<Context> context_;
  std::thread thread_;
};

void echo(Context& context, Endpoint& endpoint, int rounds, size_t size) {
  for (int i = 0; i < rounds; ++i) {
    auto buffer = context.allocate({static_cast<int64_t>(size)}, uint8);
    must("allocate", buffer);
    auto got = endpoint.receive_and_wait({.tag = 1}, std::move(*buffer), soon());
    must("receive", got);
    must("send", endpoint.send_and_wait(2, std::move(got->buffer).freeze(), soon()));
  }
}

TEST_CASE("every pairing of waiting modes carries messages both ways",
          "[contract][waiting][threads]") {
  NothingLeftBehind audit;
  for (Waiting here : {Waiting::kAdaptive, Waiting::kSpin, Waiting::kSleep}) {
    for (Waiting there : {Waiting::kAdaptive, Waiting::kSpin, Waiting::kSleep}) {
      INFO(static_cast<int>(here) << " and " << static_cast<int>(there));
      bool both_spin = here == Waiting::kSpin && there == Waiting::kSpin;
      int rounds = both_spin ? 3 : 50;  // two spinners may share a processor
      FarThread far(there, [rounds](Context& context, Endpoint& endpoint) {
        echo(context, endpoint, rounds, 6000);
      });
      auto near = open(here);
      auto endpoint = near->connect(far.address);
      REQUIRE(endpoint.ok());
      for (int i = 0; i < rounds; ++i) {
        REQUIRE(
            endpoint->send_and_wait(1, tensor(*near, 6000, static_cast<uint64_t>(i)), soon()).ok());
        auto got = endpoint->receive_and_wait({.tag = 2}, room(*near, 6000), soon());
        REQUIRE(got.ok());
        REQUIRE(holds(got->buffer.bytes(), static_cast<uint64_t>(i)));
      }
      CHECK(endpoint->close(soon()).ok());
    }
  }
}

TEST_CASE("wait returns at its deadline when nothing happens, in every mode",
          "[contract][waiting]") {
  NothingLeftBehind audit;
  for (Waiting mode : {Waiting::kAdaptive, Waiting::kSpin, Waiting::kSleep}) {
    auto context = open(mode);
    auto listener = context->listen(fresh_address());
    REQUIRE(listener.ok());
    (void)context->wait(in(1ms));
    Instant deadline = in(15ms);
    CHECK(context->wait(deadline) == Code::kTimedOut);
    CHECK(now() >= deadline);
  }
}

// This thread, and those that it begins, stay on the processor where it is.
class OneProcessor {
 public:
  OneProcessor() {
    REQUIRE(::sched_getaffinity(0, sizeof(before_), &before_) == 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    REQUIRE(::sched_setaffinity(0, sizeof(one), &one) == 0);
  }
  ~OneProcessor() { CHECK(::sched_setaffinity(0, sizeof(before_), &before_) == 0); }

 private:
  cpu_set_t before_;
};

// Counts how often the context asks; has something for who asks `patience` times in one wait. Who
// sleeps does not ask.
class Asked final : public ProgressHook {
 public:
  Asked(Context& context, uint64_t patience) : context_(context), patience_(patience) {
    context_.add_hook(this);
  }
  ~Asked() { context_.remove_hook(this); }
  size_t progress(Instant) override { return ++count == patience_ ? 1 : 0; }
  Instant next_timeout() override { return kNever; }
  uint64_t count = 0;

 private:
  Context& context_;
  const uint64_t patience_;
};
constexpr uint64_t kPolls = 100;  // more than wait() makes before it decides how to wait

std::unique_ptr<Context> open_patient(std::chrono::nanoseconds spin) {
  Tuning tuning;
  tuning.spin_ns = static_cast<uint64_t>(spin.count());
  auto context = open_context({.arena = {},
                               .arena_options = small_arena(),
                               .waiting = Waiting::kAdaptive,
                               .tuning = tuning});
  REQUIRE(context.ok());
  return std::move(*context);
}

TEST_CASE("a thread that is kept on one processor polls before it sleeps, as others do",
          "[contract][waiting]") {
  if (::sysconf(_SC_NPROCESSORS_ONLN) < 2)
    return skip("processors", "this machine has one processor");
  NothingLeftBehind audit;
  OneProcessor here;
  auto context = open_patient(1s);
  bool met_awake = false;
  // Who was interrupted while polling does not poll for a while.
  for (int i = 0; i < 50 && !met_awake; ++i) {
    Asked asked(*context, kPolls);
    met_awake = context->wait(in(50ms)).ok();
  }
  CHECK(met_awake);
}

TEST_CASE("who polls on the processor that its peer needs learns to sleep",
          "[contract][waiting][threads]") {
  if (::sysconf(_SC_NPROCESSORS_ONLN) < 2)
    return skip("processors", "this machine has one processor: nobody polls");
  if (path_under_test() != "shm")
    return;  // the same for every path; elsewhere an answer may take longer than the budget, in
             // slow builds
  NothingLeftBehind audit;
  OneProcessor here;
  constexpr int kRounds = 400;
  FarThread far(Waiting::kAdaptive, [](Context& context, Endpoint& endpoint) {
    echo(context, endpoint, kRounds, 100);
  });
  auto near = open_patient(200us);
  auto endpoint = near->connect(far.address);
  REQUIRE(endpoint.ok());
  Asked asked(*near, UINT64_MAX);
  int polled = 0;
  for (int i = 0; i < kRounds; ++i) {
    asked.count = 0;
    REQUIRE(endpoint->send_and_wait(1, tensor(*near, 100, 1), soon()).ok());
    REQUIRE(endpoint->receive_and_wait({.tag = 2}, room(*near, 100), soon()).ok());
    polled += asked.count > kPolls ? 1 : 0;
  }
  CHECK(polled < kRounds / 5);
  CHECK(endpoint->close(soon()).ok());
}

// Shared memory: how many bytes of a message its sender copies, all of it or none.
class OneMessage {
 public:
  explicit OneMessage(Pair& pair) : pair_(pair), box_(pair.box()) {}
  uint64_t copied(size_t size, bool reader_sleeps, Level level = Level::kSourceReusable) {
    REQUIRE(pair_.server.receive({.tag = 1}, room(*pair_.server_context, size), box_.options(size))
                .ok());
    pair_.settle();
    if (reader_sleeps) REQUIRE(pair_.server_context->prepare_to_sleep());
    uint64_t before = pair_.client.counters().copied_bytes;
    REQUIRE(pair_.client
                .send(1, tensor(*pair_.client_context, size, size), box_.options(0, soon(), level))
                .ok());
    uint64_t after_it = pair_.client.counters().copied_bytes;
    size_t ended = box_.all.size();
    REQUIRE(pair_.until([&] { return box_.all.size() == ended + 2; }));
    for (size_t i = ended; i < ended + 2; ++i) {
      REQUIRE(box_.all[i].status.ok());
      if (box_.all[i].kind == OperationKind::kReceive)
        CHECK(holds(box_.all[i].buffers[0].bytes(), size));
    }
    return after_it - before;
  }

 private:
  Pair& pair_;
  Box& box_;
};

const size_t kPolled = Tuning().shm_eager_bytes, kAsleep = Tuning().shm_eager_sleeping_bytes;
// The defaults are meant, and a link that refuses at random changes what is sent when.
bool plain_shm() { return path_under_test() == "shm" && !faults_under_test(); }

TEST_CASE(
    "a message between the two thresholds rides while its reader sleeps, and is pulled while it "
    "polls",
    "[contract][waiting]") {
  if (!plain_shm()) return;
  NothingLeftBehind audit;
  Pair pair;
  OneMessage message(pair);
  for (int turn = 0; turn < 2; ++turn) {
    CHECK(message.copied(kPolled, false) == kPolled);
    CHECK(message.copied(kPolled + 1, false) == 0);
    CHECK(message.copied(kPolled + 1, true) == kPolled + 1);
    CHECK(message.copied(kAsleep, true) == kAsleep);
    CHECK(message.copied(kAsleep + 1, true) == 0);
    // The sender waits for an answer whichever way it goes.
    CHECK(message.copied(kAsleep, true, Level::kPlaced) == 0);
  }
}

TEST_CASE("a message between the two thresholds rides while its sender is one that sleeps",
          "[contract][waiting]") {
  if (!plain_shm()) return;
  NothingLeftBehind audit;
  Pair pair({.waiting = Waiting::kSleep});
  OneMessage message(pair);
  CHECK(message.copied(kAsleep, false) == kAsleep);
  CHECK(message.copied(kAsleep + 1, false) == 0);
}

TEST_CASE(
    "of many messages to a reader that sleeps a small one and the next ride, and the others do not "
    "fill its ring",
    "[contract][waiting]") {
  if (!plain_shm()) return;
  NothingLeftBehind audit;
  Pair pair;
  Box& box = pair.box();
  constexpr uint64_t kMessages = 100;
  for (uint64_t i = 0; i < kMessages; ++i) {
    REQUIRE(
        pair.server.receive({.tag = i}, room(*pair.server_context, kAsleep), box.options(i)).ok());
  }
  auto size = [](uint64_t i) {
    return i == 0 ? size_t{200} : kAsleep;
  };  // a header, and what it is about
  pair.settle();
  REQUIRE(pair.server_context->prepare_to_sleep());
  EndpointCounters before = pair.client.counters();
  for (uint64_t i = 0; i < kMessages; ++i)
    REQUIRE(pair.client.send(i, tensor(*pair.client_context, size(i), i)).ok());
  EndpointCounters sent = pair.client.counters();
  CHECK(sent.messages_sent - before.messages_sent == kMessages);  // none waits for room
  CHECK(sent.copied_bytes - before.copied_bytes == size(0) + size(1));
  REQUIRE(pair.until([&] { return box.all.size() == kMessages; }));
  for (Completion& completion : box.all) {
    REQUIRE(completion.status.ok());
    CHECK(holds(completion.buffers[0].bytes().first(size(completion.user_data)),
                completion.user_data));
  }
}

TEST_CASE("a sleeper costs no processor time while nothing happens",
          "[contract][waiting][threads]") {
  NothingLeftBehind audit;
  FarThread far(Waiting::kSleep,
                [](Context& context, Endpoint& endpoint) { echo(context, endpoint, 1, 100); });
  auto near = open(Waiting::kSleep);
  auto endpoint = near->connect(far.address);
  REQUIRE(endpoint.ok());
  (void)near->wait(in(20ms));
  Duration before = process_cpu_time();
  // Falling asleep and waking up take their time in an emulated kernel that looks for its own
  // defects: 170 ms of 200 were seen.
  Instant end = in(1s);
  while (now() < end) (void)near->wait(end);
  CHECK(process_cpu_time() - before < 500ms);
  REQUIRE(endpoint->send_and_wait(1, tensor(*near, 100, 1), soon()).ok());
  REQUIRE(endpoint->receive_and_wait({.tag = 2}, room(*near, 100), soon()).ok());
  (void)endpoint->close(soon());
}

TEST_CASE("a sleeping context is woken by messages, by tensors dropped elsewhere and by its timers",
          "[contract][waiting][threads]") {
  NothingLeftBehind audit;
  auto near = open(Waiting::kSleep);
  FarThread far(Waiting::kSleep,
                [](Context& context, Endpoint& endpoint) { echo(context, endpoint, 5, 100'000); });
  auto endpoint = near->connect(far.address);
  REQUIRE(endpoint.ok());
  for (uint64_t i = 0; i < 5; ++i) {
    REQUIRE(endpoint->send_and_wait(1, tensor(*near, 100'000, i), soon()).ok());
    auto got = endpoint->receive_and_wait({.tag = 2}, room(*near, 100'000), soon());
    REQUIRE(got.ok());
    CHECK(holds(got->buffer.bytes(), i));
  }
  auto late = endpoint->receive_and_wait({.tag = 3}, room(*near, 10), in(20ms));
  CHECK_FALSE(late.ok());
  (void)endpoint->close(soon());
}

TEST_CASE("a foreign epoll drives a context by its fd", "[contract][waiting][threads]") {
  NothingLeftBehind audit;
  // The far side answers when we are about to sleep: otherwise its answer may be there
  // before, every time.
  std::counting_semaphore<20> about_to_sleep(0);
  FarThread far(Waiting::kSleep, [&](Context& context, Endpoint& endpoint) {
    for (int i = 0; i < 20; ++i) {
      auto buffer = context.allocate({9000}, uint8);
      must("allocate", buffer);
      auto got = endpoint.receive_and_wait({.tag = 1}, std::move(*buffer), soon());
      must("receive", got);
      if (!about_to_sleep.try_acquire_for(20s)) std::abort();
      must("send", endpoint.send_and_wait(2, std::move(got->buffer).freeze(), soon()));
    }
  });
  auto near = open(Waiting::kSleep);
  auto endpoint = near->connect(far.address);
  REQUIRE(endpoint.ok());
  int loop = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event interest{};
  interest.events = EPOLLIN;
  REQUIRE(::epoll_ctl(loop, EPOLL_CTL_ADD, near->fd(), &interest) == 0);
  Box box;
  int slept = 0;
  for (uint64_t i = 0; i < 20; ++i) {
    REQUIRE(endpoint->receive({.tag = 2}, room(*near, 9000), box.options(i)).ok());
    REQUIRE(endpoint->send(1, tensor(*near, 9000, i)).ok());
    Instant limit = soon();
    bool told = false;
    while (box.all.size() == i && now() < limit) {
      if (near->progress() > 0) continue;
      if (!near->prepare_to_sleep()) continue;
      if (!std::exchange(told, true)) about_to_sleep.release();
      // Nobody calls progress until the loop says so: level-triggered, no timeout needed
      // but for a timer of the context's own.
      epoll_event event{};
      int timeout_ms = near->next_timeout() == kNever ? 20'000 : 1000;
      if (::epoll_wait(loop, &event, 1, timeout_ms) > 0) ++slept;
      for (int polls = 0; polls < 64; ++polls) near->progress();
    }
    REQUIRE(box.all.size() == i + 1);
    CHECK(holds(box.all[i].buffers[0].bytes(), i));
  }
  CHECK(slept >= 20);
  ::close(loop);
  box.all.clear();
  (void)endpoint->close(soon());
}

TEST_CASE("a progress thread runs a context for other threads", "[contract][waiting][threads]") {
  NothingLeftBehind audit;
  FarThread far(Waiting::kSleep,
                [](Context& context, Endpoint& endpoint) { echo(context, endpoint, 30, 9000); });
  auto near = open(Waiting::kSleep);
  Endpoint endpoint;
  {
    ProgressThread thread(*near);
    Status connected = thread.run([&](Context& context) {
      auto made = context.connect(far.address);
      if (made.ok()) endpoint = std::move(*made);
      return made.status();
    });
    REQUIRE(connected.ok());
    int whole = thread.run([&](Context& context) {
      int good = 0;
      for (uint64_t i = 0; i < 30; ++i) {
        auto out = context.allocate({9000}, uint8), back = context.allocate({9000}, uint8);
        fill(out->bytes(), i);
        if (!endpoint.send_and_wait(1, std::move(*out).freeze(), soon()).ok()) break;
        auto got = endpoint.receive_and_wait({.tag = 2}, std::move(*back), soon());
        good += got.ok() && holds(got->buffer.bytes(), i) ? 1 : 0;
      }
      return good;
    });
    CHECK(whole == 30);
    thread.run([&](Context&) { (void)endpoint.close(soon()); });
  }
  // The context is ours again. The other side's end may come only now, and is an event.
  Status ours = near->wait(in(1ms));
  CHECK((ours.ok() || ours == Code::kTimedOut));
}

}  // namespace
}  // namespace sluice::test
