// Events of descriptors and letters of other threads that come in one batch; whether a context is about to sleep.
#include <catch2/catch.hpp>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <sluice/allocator/arena.h>
#include <sluice/api/context.h>

namespace sluice {
namespace {

struct Handler final : EventHandler {
  bool gone = false, told_when_gone = false;
  void on_event(uint32_t) noexcept override { told_when_gone = told_when_gone || gone; }
};

struct Ending final : Letter {
  Context* context;
  Handler* handler;
  int fd;
};

Result<std::unique_ptr<Context>> open(Waiting waiting, uint64_t spin_ns) {
  SLUICE_TRY(std::unique_ptr<Arena> arena, Arena::create({.limit_bytes = 16 << 20, .first_extent_bytes = 1 << 20}));
  Tuning tuning;
  tuning.spin_ns = spin_ns;
  auto context = std::make_unique<Context>(ContextOptions{.arena = {}, .arena_options = {}, .waiting = waiting, .tuning = tuning}, std::move(arena));
  SLUICE_RETURN_IF_ERROR(context->initialise());
  return context;
}

TEST_CASE("whether a context sleeps when it is idle follows from how it waits, and from who drives it", "[context]") {
  constexpr uint64_t kSecond = 1'000'000'000;
  auto spinning = open(Waiting::kSpin, kSecond), sleeping = open(Waiting::kSleep, kSecond), impatient = open(Waiting::kAdaptive, 0), patient = open(Waiting::kAdaptive, kSecond);
  CHECK_FALSE((*spinning)->sleeps_when_idle());
  CHECK((*sleeping)->sleeps_when_idle());
  CHECK((*impatient)->sleeps_when_idle());
  if (::sysconf(_SC_NPROCESSORS_ONLN) > 1) CHECK_FALSE((*patient)->sleeps_when_idle());
  REQUIRE((*patient)->prepare_to_sleep());
  (*patient)->progress();
  CHECK((*patient)->sleeps_when_idle());
}

TEST_CASE("a letter may wait and then end what events of the same batch are for", "[context]") {
  auto arena = Arena::create({.limit_bytes = 16 << 20, .first_extent_bytes = 1 << 20});
  REQUIRE(arena.ok());
  Context context({.arena = {}, .arena_options = {}, .waiting = Waiting::kSleep}, std::move(*arena));
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

}  // namespace
}  // namespace sluice
