// What a peer can make a session keep is bounded, however it goes about it.
#include <catch2/catch.hpp>

#include <array>
#include <cstdlib>
#include <new>

#include "tests/fuzz/session_world.h"

#include <sluice/runtime/mailbox.h>
#include <sluice/spi/endpoint_core.h>

namespace {
size_t largest_allocation = 0;
}  // namespace

void* operator new(size_t size, const std::nothrow_t&) noexcept {
  largest_allocation = size > largest_allocation ? size : largest_allocation;
  return std::malloc(size);
}
void* operator new(size_t size) {
  void* memory = operator new(size, std::nothrow);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace sluice::fuzz {
namespace {

class Handler final : public WantHandler {
 public:
  void on_want(EndpointCore&, const WantRequest&) noexcept override { ++wants; }
  bool on_want_cancelled(EndpointCore&, uint64_t) noexcept override { return false; }
  void on_endpoint_closed(EndpointCore&, const Status&) noexcept override {}
  int wants = 0;
};

struct Bench {
  explicit Bench(proto::SessionOptions options = {}) {
    LinkTraits traits;
    traits.inline_bytes = 64;
    traits.data_bytes = 1000;
    session = std::make_unique<proto::Session>(
        proto::SessionParts{.link = std::make_unique<FakeStreamLink>(traits, record),
                            .arena = arena,
                            .mailbox = std::make_shared<Mailbox>(-1),
                            .host = &host,
                            .options = options,
                            .reason = "test"});
  }
  ~Bench() {
    session->abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "the end"));
    (void)session->progress(host.time);
    CHECK(record.problem == "");
  }
  template <typename Message>
  void deliver(const Message& message) {
    std::array<std::byte, wire::kMaxHeaderBytes> header;
    size_t length = wire::encode(message, header);
    BytesPayload none{{}};
    REQUIRE(session->handle_message(ConstBytes(header).first(length), none, host.time).ok());
  }

  std::shared_ptr<Arena> arena = shared_arena();
  LinkRecord record;
  FakeHost host;
  std::unique_ptr<proto::Session> session;
};

TEST_CASE("answers to a peer that reads as slowly as it asks do not pile up", "[session]") {
  Bench bench;
  bench.record.room = 0;
  for (uint64_t i = 0; i < 10; ++i) bench.deliver(wire::Ping{i, false});
  largest_allocation = 0;
  for (uint64_t i = 0; i < 200000; ++i) {
    bench.deliver(wire::Ping{i, false});
    bench.record.room = 1;
    bench.session->writable(bench.host.time);
    (void)bench.session->progress(bench.host.time);
  }
  CHECK(bench.record.sent == 200000);
  // Ten answers wait at any time. The stated bound is 1 MiB, a vector may double it.
  CHECK(largest_allocation <= size_t{2} << 20);
}

TEST_CASE("messages that an operation needs are told from those that none does", "[session]") {
  Bench bench;
  constexpr Duration kTook = std::chrono::microseconds(10);
  const Instant now = bench.host.time;
  CHECK(bench.session->note_messages(64, kTook, now));
  CHECK(bench.session->overdrawn(now + 3 * kTook));
  CHECK_FALSE(bench.session->overdrawn(now + 4 * kTook));
  // One that begins, and its end, account for 32 messages.
  Buffer room = std::move(bench.arena->allocate(64)).value();
  const OperationId id = bench.session->post_receive({.tag = 1}, std::span(&room, 1), {}).value();
  REQUIRE(bench.session->cancel(id).ok());
  (void)bench.session->progress(now);
  CHECK_FALSE(bench.session->note_messages(32, kTook, now));
  CHECK(bench.session->note_messages(32, kTook, now + 4 * kTook));
}

TEST_CASE("a peer that reads nothing is let go at the stated bound", "[session]") {
  Bench bench;
  bench.record.room = 0;
  largest_allocation = 0;
  for (uint64_t i = 0; i < 70000; ++i) bench.deliver(wire::Ping{i, false});
  (void)bench.session->progress(bench.host.time);
  CHECK(bench.session->state() == EndpointState::kClosed);
  CHECK(largest_allocation <= size_t{2} << 20);
}

TEST_CASE("requests cancelled before anybody listens leave room for others", "[session]") {
  Bench bench({.want_limit = 4});
  for (uint64_t i = 1; i <= 20; ++i) {
    bench.deliver(wire::Want{.id = i, .key = "k"});
    bench.deliver(wire::Cancel{i, false});
  }
  CHECK(bench.record.sent == 0);  // none was refused
  Handler handler;
  bench.session->set_want_handler(&handler);
  CHECK(handler.wants == 0);
  bench.deliver(wire::Want{.id = 21, .key = "k"});
  CHECK(handler.wants == 1);
}

}  // namespace
}  // namespace sluice::fuzz
