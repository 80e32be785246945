// Events of descriptors and letters of other threads that come in one batch; whether a context is
// about to sleep.
#include <catch2/catch.hpp>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include <sluice/allocator/arena.h>
#include <sluice/runtime/context_core.h>
#include <sluice/runtime/short_turns.h>
#include <sluice/spi/provider.h>

namespace sluice {
namespace {

struct Handler final : EventHandler {
  bool gone = false, told_when_gone = false;
  void on_event(uint32_t) noexcept override { told_when_gone = told_when_gone || gone; }
};

struct Ending final : Letter {
  ContextCore* context;
  Handler* handler;
  int fd;
};

Result<std::unique_ptr<ContextCore>> open(Waiting waiting, uint64_t spin_ns) {
  SLUICE_TRY(std::unique_ptr<Arena> arena,
             Arena::create({.limit_bytes = 16 << 20, .first_extent_bytes = 1 << 20}));
  Tuning tuning;
  tuning.spin_ns = spin_ns;
  auto context = std::make_unique<ContextCore>(
      ContextOptions{.arena = {}, .arena_options = {}, .waiting = waiting, .tuning = tuning},
      std::move(arena));
  SLUICE_RETURN_IF_ERROR(context->initialise());
  return context;
}

TEST_CASE(
    "whether a context sleeps when it is idle follows from how it waits, and from who drives it",
    "[context]") {
  constexpr uint64_t kSecond = 1'000'000'000;
  auto spinning = open(Waiting::kSpin, kSecond), sleeping = open(Waiting::kSleep, kSecond),
       impatient = open(Waiting::kAdaptive, 0), patient = open(Waiting::kAdaptive, kSecond);
  CHECK_FALSE((*spinning)->sleeps_when_idle());
  CHECK((*sleeping)->sleeps_when_idle());
  CHECK((*impatient)->sleeps_when_idle());
  if (::sysconf(_SC_NPROCESSORS_ONLN) > 1) CHECK_FALSE((*patient)->sleeps_when_idle());
  REQUIRE((*patient)->prepare_to_sleep());
  (*patient)->progress();
  CHECK((*patient)->sleeps_when_idle());
}

struct Working final : ProgressHook {
  size_t progress(Instant) override { return 1; }
  Instant next_timeout() override { return kNever; }
};

TEST_CASE("what is waited for is asked until it is true, and not again", "[context]") {
  // Listener::accept() takes a caller when it asks. Asked again, it would lose that caller.
  auto context = open(Waiting::kSleep, 0);
  REQUIRE(context.ok());
  Working working;
  for (const bool busy : {false, true}) {
    if (busy) (*context)->add_hook(&working);
    for (int true_at = 1; true_at <= 6; ++true_at) {
      INFO((busy ? "busy, " : "idle, ") << true_at);
      int asked = 0;
      auto once = [&] { return ++asked == true_at; };
      // An idle context looks again when it wakes, here at the deadline.
      Status waited;
      for (int tries = 0; tries < 6 && asked < true_at; ++tries)
        waited = (*context)->wait_until(once, from_now(std::chrono::milliseconds(busy ? 0 : 1)));
      CHECK(waited.ok());
      CHECK(asked == true_at);
    }
  }
  (*context)->remove_hook(&working);
}

struct Counting final : EventHandler {
  int heard = 0;
  void on_event(uint32_t) noexcept override { ++heard; }
};

TEST_CASE("a program that calls progress() now and then hears of an event in the next call",
          "[context]") {
  auto context = open(Waiting::kAdaptive, 0);
  REQUIRE(context.ok());
  Counting handler;
  const int fd = ::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
  REQUIRE((*context)->watch(fd, EPOLLIN, &handler).ok());
  for (int calls = 1; calls <= 5; ++calls) {
    const Instant before = last_tick();
    while (last_tick() == before) {}  // it computes
    const int heard = handler.heard;
    (*context)->progress();
    CHECK(handler.heard > heard);
  }
  // Seldom: what one turn would leave to the next is done in the same call.
  // Repeated: a thread that loses its processor for a millisecond gets one turn only.
  bool several = false;
  for (int tries = 0; tries < 50 && !several; ++tries) {
    const int heard = handler.heard;
    for (const Instant end = after(now(), std::chrono::milliseconds(40)); now() < end;) {}
    (*context)->progress();
    several = handler.heard > heard + 1;
  }
  CHECK(several);
  (*context)->unwatch(fd, &handler);
  ::close(fd);
}

// Of a context that one thread uses.
struct OpenGate final : WaitGate {
  void leave(Instant) override {}
  void enter() override {}
};

// Is told at a time, and what time the context takes it for.
struct Clockwork final : EventHandler {
  ContextCore* context;
  Instant set, told{};
  int fd = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  Clockwork(ContextCore& of, Duration in) : context(&of), set(after(now(), in)) {
    const int64_t at = set.time_since_epoch().count();
    itimerspec spec{};
    spec.it_value = {.tv_sec = at / 1'000'000'000, .tv_nsec = at % 1'000'000'000};
    REQUIRE(::timerfd_settime(fd, TFD_TIMER_ABSTIME, &spec, nullptr) == 0);
    REQUIRE(context->watch(fd, EPOLLIN, this).ok());
  }
  ~Clockwork() {
    context->unwatch(fd, this);
    ::close(fd);
  }
  void on_event(uint32_t) noexcept override { told = context->now(); }
};

TEST_CASE("an event that ends a sleep is handled at its time, not at that when the sleep began",
          "[context]") {
  auto context = open(Waiting::kSleep, 0);
  REQUIRE(context.ok());
  for (const bool shared : {false, true}) {
    INFO("with a gate: " << shared);
    Clockwork clockwork(**context, std::chrono::milliseconds(100));
    OpenGate gate;
    while (clockwork.told == Instant{}) {
      const Instant limit = after(now(), std::chrono::seconds(20));
      REQUIRE((shared ? (*context)->wait(limit, gate) : (*context)->wait(limit)).ok());
    }
    CHECK(clockwork.told >= clockwork.set);
  }
}

TEST_CASE("a letter may wait and then end what events of the same batch are for", "[context]") {
  auto arena = Arena::create({.limit_bytes = 16 << 20, .first_extent_bytes = 1 << 20});
  REQUIRE(arena.ok());
  ContextCore context({.arena = {}, .arena_options = {}, .waiting = Waiting::kSleep},
                      std::move(*arena));
  REQUIRE(context.initialise().ok());
  Handler handler;
  int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  REQUIRE(context.watch(fd, EPOLLIN, &handler).ok());
  Ending letter;
  letter.context = &context;
  letter.handler = &handler;
  letter.fd = fd;
  letter.open = [](Letter* opened) noexcept {
    auto* ending = static_cast<Ending*>(opened);
    (void)ending->context->wait(after(now(), std::chrono::milliseconds(1)));
    ending->context->unwatch(ending->fd, ending->handler);
    ending->handler->gone = true;
  };
  letter.discard = [](Letter*) noexcept {};
  // Both are ready before the context looks, the doorbell first.
  REQUIRE(context.prepare_to_sleep());
  context.mailbox()->post(&letter);
  uint64_t one = 1;
  REQUIRE(::write(fd, &one, sizeof(one)) == sizeof(one));
  for (int i = 0; i < 1000 && !handler.gone; ++i) context.progress();
  CHECK(handler.gone);
  CHECK_FALSE(handler.told_when_gone);
  ::close(fd);
}

// Takes longer over an event than a turn has for all of them.
struct Slow final : EventHandler {
  void on_event(uint32_t) noexcept override {
    ++events;
    const Instant until = after(now(), std::chrono::milliseconds(5));
    while (now() < until) {}
  }
  int events = 0;
};

struct Ready {
  explicit Ready(ContextCore& c) : context(c), fd(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)) {
    REQUIRE(context.watch(fd, EPOLLIN, &handler).ok());
  }
  ~Ready() {
    context.unwatch(fd, &handler);
    ::close(fd);
  }
  ContextCore& context;
  Slow handler;
  int fd;
};

TEST_CASE(
    "a turn ends after one slow handler, and the others have their turn before it has another",
    "[context]") {
  auto context = open(Waiting::kSleep, 0);
  REQUIRE(context.ok());
  std::array<std::unique_ptr<Ready>, 4> ready;
  for (auto& one : ready) one = std::make_unique<Ready>(**context);
  auto delivered = [&] {
    return std::accumulate(ready.begin(), ready.end(), 0,
                           [](int sum, const auto& one) { return sum + one->handler.events; });
  };
  for (int turn = 1; turn <= 8; ++turn) {
    REQUIRE((*context)->wait(after(now(), std::chrono::seconds(10))).ok());
    const int least = std::min({ready[0]->handler.events, ready[1]->handler.events,
                                ready[2]->handler.events, ready[3]->handler.events});
    const int most = std::max({ready[0]->handler.events, ready[1]->handler.events,
                               ready[2]->handler.events, ready[3]->handler.events});
    if (turn == 1) CHECK(delivered() < 4);
    CHECK(most - least <= 1);
  }
}

TEST_CASE("a handler that goes while its event waits for the next turn hears nothing",
          "[context]") {
  auto context = open(Waiting::kSleep, 0);
  REQUIRE(context.ok());
  std::array<std::unique_ptr<Ready>, 3> ready;
  for (auto& one : ready) one = std::make_unique<Ready>(**context);
  REQUIRE((*context)->wait(after(now(), std::chrono::seconds(10))).ok());
  CHECK_FALSE((*context)->prepare_to_sleep());  // events wait
  std::array<int, 3> before;
  for (size_t i = 0; i < ready.size(); ++i) before[i] = ready[i]->handler.events;
  for (auto& one : ready) (*context)->unwatch(one->fd, &one->handler);
  for (int i = 0; i < 200; ++i) (*context)->progress();
  for (size_t i = 0; i < ready.size(); ++i) CHECK(ready[i]->handler.events == before[i]);
  CHECK((*context)->prepare_to_sleep());
  (*context)->progress();
}

// A provider in which something has come in every turn, as in that of a peer that floods us.
class Flooded final : public Provider {
 public:
  Flooded() { in_use_ = true; }
  Scheme scheme() const override { return Scheme::kShm; }
  Task<Result<std::shared_ptr<EndpointCore>>> start_connect(const Address&,
                                                            const ConnectOptions&) override {
    co_return Status(Code::kUnsupported, Scope::kOperation, "test", "nobody is there");
  }
  Result<std::unique_ptr<ListenerCore>> listen(const Address&, const ListenOptions&) override {
    return Status(Code::kUnsupported, Scope::kOperation, "test", "nobody is there");
  }
  size_t progress(Instant) override { return came; }
  void shut_down() override {}
  size_t came = 1;
};

TEST_CASE("letters wait while something comes, but not for more turns than are bounded",
          "[context]") {
  auto context = open(Waiting::kSpin, 0);
  REQUIRE(context.ok());
  auto provider = std::make_unique<Flooded>();
  Flooded* flooded = provider.get();
  (*context)->add_provider(std::move(provider));
  struct Counted final : Letter {
    int opened = 0;
  } letter;
  letter.open = [](Letter* l) noexcept { ++static_cast<Counted*>(l)->opened; };
  (*context)->mailbox()->post(&letter);
  for (uint32_t turn = 0; turn < ShortTurns::kMostInARow; ++turn) {
    (*context)->progress();
    CHECK(letter.opened == 0);
  }
  (*context)->progress();
  CHECK(letter.opened == 1);
  flooded->came = 0;
  (*context)->mailbox()->post(&letter);
  (*context)->progress();
  CHECK(letter.opened == 2);
}

}  // namespace
}  // namespace sluice
