// Zero copies over shared memory, proven without our own counters: while the tensor travels,
// the sender's mapping of its pages cannot be touched by anybody in the sender's process.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>

#include <sluice/exchange/exchange.h>
#include <sluice/select/open.h>

#include "tests/support/audit.h"
#include "tests/support/fresh_name.h"

namespace sluice::test {
namespace {

constexpr size_t kWords = size_t{4} << 20;  // 16 MiB of float32
constexpr int64_t kTiny = 64;
constexpr int64_t kHuge = int64_t{256} << 20;
// What a heap, a stack and a huge page of 2 MiB at the edge may add to either measure: a
// hundredth of the tensor.
constexpr uint64_t kNoiseKib = 2560;

Instant soon() { return after(now(), std::chrono::seconds(30)); }

// The sender says with its exit status which step failed.
void must(bool ok, int step) {
  if (!ok) ::_exit(step);
}

struct Pages {
  explicit Pages(const Tensor& tensor) {
    auto address = reinterpret_cast<uintptr_t>(tensor.data());
    begin = (address + 4095) & ~uintptr_t{4095};
    length = ((address + tensor.size_bytes()) & ~uintptr_t{4095}) - begin;
  }
  bool protect(int how) const {
    return ::mprotect(reinterpret_cast<void*>(begin), length, how) == 0;
  }
  uintptr_t begin;
  size_t length;
};

// Publishes a tensor, forbids all access to its pages until the receiver says that it has it,
// then writes a word through its own mapping and says so.
[[noreturn]] void send_forbidden(int address_pipe) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto context = open_context({.arena = {},
                               .arena_options = {.limit_bytes = size_t{256} << 20},
                               .waiting = Waiting::kSleep});
  must(context.ok(), 10);
  Context& c = **context;
  auto listener = c.listen(fresh_name("shm:proof"));
  must(listener.ok(), 11);
  std::string address = listener->address();
  must(
      ::write(address_pipe, address.data(), address.size()) == static_cast<ssize_t>(address.size()),
      12);
  ::close(address_pipe);
  auto endpoint = listener->accept(soon());
  must(endpoint.ok(), 13);
  auto room = c.allocate({8}, uint8), answer = c.allocate({8}, uint8);
  auto buffer = c.allocate({static_cast<int64_t>(kWords)}, float32);
  must(room.ok() && answer.ok() && buffer.ok(), 14);
  for (size_t i = 0; i < kWords; ++i) buffer->as<float>()[i] = static_cast<float>(i);
  auto* words = buffer->as<float>().data();
  Tensor tensor = std::move(*buffer).freeze();
  Pages pages(tensor);
  Exchange exchange(c);
  must(pages.protect(PROT_NONE), 15);
  REQUIRE(exchange.add(*endpoint).ok());
  auto publication = exchange.publish({"w", 1}, tensor, {.readers = until_retired});
  must(publication.ok(), 16);
  must(endpoint->receive_and_wait({.tag = 1}, std::move(*room), soon()).ok(), 17);
  must(pages.protect(PROT_READ | PROT_WRITE), 18);
  words[kWords / 2] = -5;
  must(endpoint->send_and_wait(2, std::move(*answer).freeze(), soon()).ok(), 19);
  while (endpoint->state() != EndpointState::kClosed) (void)c.wait(soon());
  ::_exit(0);
}

// Forks the sender; its address.
struct Sender {
  template <typename Send>
  explicit Sender(Send send) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      send(ends[1]);
    }
    ::close(ends[1]);
    char text[200];
    ssize_t length = ::read(ends[0], text, sizeof(text));
    ::close(ends[0]);
    if (length > 0) address.assign(text, static_cast<size_t>(length));
  }
  int status() {
    int result = 0;
    ::waitpid(pid, &result, 0);
    return result;
  }
  pid_t pid = -1;
  std::string address;
};

TEST_CASE(
    "a tensor is handed over while its owner cannot touch its pages, and later writes are seen",
    "[proof]") {
  NothingLeftBehind audit;
  Sender sender(&send_forbidden);
  REQUIRE_FALSE(sender.address.empty());
  {
    auto context = open_context({.arena = {},
                                 .arena_options = {.limit_bytes = size_t{64} << 20},
                                 .waiting = Waiting::kSleep});
    REQUIRE(context.ok());
    Context& c = **context;
    auto endpoint = c.connect(sender.address, {.require = zero_copy});
    REQUIRE(endpoint.ok());
    {
      Exchange exchange(c);
      REQUIRE(exchange.add(*endpoint).ok());
      auto got = c.run_until(exchange.fetch({"w", 1}, soon()));
      INFO(got.status().to_string());
      REQUIRE(got.ok());
      std::span<const float> view = got->value.as<float>();
      CHECK(view[0] == 0);
      CHECK(view[kWords - 1] == static_cast<float>(kWords - 1));
      CHECK(view[kWords / 2] == static_cast<float>(kWords / 2));
      CHECK(got->receipt.copied_bytes + got->receipt.kernel_copied_bytes == 0);
      REQUIRE(endpoint->send_and_wait(1, std::move(*c.allocate({8}, uint8)).freeze(), soon()).ok());
      REQUIRE(
          endpoint->receive_and_wait({.tag = 2}, std::move(*c.allocate({8}, uint8)), soon()).ok());
      CHECK(const_cast<const volatile float*>(view.data())[kWords / 2] == -5);
    }
    CHECK(endpoint->close(soon()).ok());
  }
  CHECK(sender.status() == 0);
}

// Publishes a tensor of 64 bytes and one of 256 MiB.
[[noreturn]] void send_two_sizes(int address_pipe) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto context = open_context(
      {.arena = {},
       .arena_options = {.limit_bytes = size_t{512} << 20, .first_extent_bytes = size_t{256} << 20},
       .waiting = Waiting::kSleep});
  must(context.ok(), 10);
  Context& c = **context;
  auto listener = c.listen(fresh_name("shm:proof"));
  must(listener.ok(), 11);
  auto tiny = c.allocate({kTiny}, uint8), huge = c.allocate({kHuge}, uint8);
  must(tiny.ok() && huge.ok(), 12);
  std::memset(tiny->data(), 7, kTiny);
  std::memset(huge->data(), 7, kHuge);
  std::string address = listener->address();
  must(
      ::write(address_pipe, address.data(), address.size()) == static_cast<ssize_t>(address.size()),
      13);
  ::close(address_pipe);
  auto endpoint = listener->accept(soon());
  must(endpoint.ok(), 14);
  Exchange exchange(c);
  REQUIRE(exchange.add(*endpoint).ok());
  must(exchange.publish({"tiny", 1}, std::move(*tiny).freeze(), {.readers = until_retired}).ok(),
       15);
  must(exchange.publish({"huge", 1}, std::move(*huge).freeze(), {.readers = until_retired}).ok(),
       16);
  while (endpoint->state() != EndpointState::kClosed) (void)c.wait(soon());
  ::_exit(0);
}

// One word of each page of the first `length` bytes.
void touch(const Tensor& tensor, size_t length) {
  size_t wrong = 0;
  for (size_t i = 0; i < length; i += 4096) wrong += tensor.data()[i] != std::byte{7} ? 1 : 0;
  REQUIRE(wrong == 0);
}

TEST_CASE("a view of 256 MiB costs the receiver no more memory of its own than one of 64 bytes",
          "[proof]") {
  NothingLeftBehind audit;
  Sender sender(&send_two_sizes);
  REQUIRE_FALSE(sender.address.empty());
  {
    auto context = open_context({.arena = {},
                                 .arena_options = {.limit_bytes = size_t{64} << 20},
                                 .waiting = Waiting::kSleep});
    REQUIRE(context.ok());
    Context& c = **context;
    auto endpoint = c.connect(sender.address);
    REQUIRE(endpoint.ok());
    {
      Exchange exchange(c);
      REQUIRE(exchange.add(*endpoint).ok());
      auto tiny = c.run_until(exchange.fetch({"tiny", 1}, soon()));
      REQUIRE(tiny.ok());
      touch(tiny->value, kTiny);
      uint64_t anon = rss_anon_kib(), pss = pss_kib();
      REQUIRE(anon > 0);
      REQUIRE(pss > 0);

      auto huge = c.run_until(exchange.fetch({"huge", 1}, soon()));
      REQUIRE(huge.ok());
      // Handed over, not touched: nothing of it is resident here.
      CHECK(pss_kib() <= pss + kNoiseKib);

      // The owner has these pages as well, so half of each is ours: more would be a copy,
      // less would mean that we look at something else.
      constexpr uint64_t touched_kib = kHuge / 4 / 1024;
      touch(huge->value, kHuge / 4);
      CHECK(pss_kib() <= pss + touched_kib / 2 + kNoiseKib);
      CHECK(pss_kib() + kNoiseKib >= pss + touched_kib / 2);

      touch(huge->value, kHuge);
      CHECK(rss_anon_kib() <= anon + kNoiseKib);
    }
    CHECK(endpoint->close(soon()).ok());
  }
  CHECK(sender.status() == 0);
}

}  // namespace
}  // namespace sluice::test
