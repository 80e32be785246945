// Callers by RDMA that nobody has taken yet: each is found by the token of its greeting, their
// number is bounded, and so is the time that sluice:// lets them wait.
#include "tests/verbs/backend/scene.h"

#include <memory>
#include <utility>
#include <vector>

#include <sluice/proto/hello.h>
#include <sluice/runtime/context_core.h>
#include <sluice/verbs/provider.h>

namespace sluice::verbs {
namespace {

VerbsProvider& provider_of(Context& context) {
  return static_cast<VerbsProvider&>(*ContextCore::of(context).provider(Scheme::kRdma));
}

// A listener of sluice:// beside TCP, and callers of one machine.
struct Meeting {
  explicit Meeting(Duration patience) {
    far = test::open();
    near = test::open();
    VerbsProvider& provider = provider_of(*far);
    auto opened = provider.open_listener("127.0.0.1", 0, 4096, hello(*far, 0), patience);
    REQUIRE(opened.ok());
    listener = std::move(opened).value();
    hook.other = far.get();
    near->add_hook(&hook);
  }
  ~Meeting() {
    near->remove_hook(&hook);
    met.clear();
    listener.reset();
  }
  static wire::Hello hello(Context& context, uint16_t number) {
    wire::Hello hello = proto::hello_for_strangers(ContextCore::of(context), {});
    hello.token = token(number);
    hello.has_rendezvous = true;
    return hello;
  }
  static wire::Uuid token(uint16_t number) {
    wire::Uuid token{};
    token.bytes[0] = std::byte{1};
    token.bytes[1] = static_cast<std::byte>(number >> 8);
    token.bytes[2] = static_cast<std::byte>(number);
    return token;
  }
  Status meet(uint16_t number) {
    auto caller = near->run_until(
        provider_of(*near).meet("127.0.0.1", listener->port(), hello(*near, number), in(5s)));
    if (!caller.ok()) return caller.status();
    met.push_back(std::move(*caller));
    return Status();
  }
  void run_for(Duration time) {
    for (const Instant end = in(time); now() < end;) (void)(near->progress() + far->progress());
  }

  test::ProgressOther hook;
  std::unique_ptr<Context> far, near;
  std::unique_ptr<VerbsListener> listener;
  std::vector<std::unique_ptr<Connection>> met;
};

TEST_CASE("a caller is found by its token, in whatever order greetings come", "[verbs][waiting]") {
  Fabric fabric;
  Meeting scene(5s);
  for (uint16_t number = 0; number < 20; ++number) REQUIRE(scene.meet(number).ok());
  CHECK(scene.listener->take_by(Meeting::token(20)) == nullptr);
  for (uint16_t number = 20; number-- > 0;) {
    auto found = scene.listener->take_by(Meeting::token(number));
    REQUIRE(found != nullptr);
    CHECK(found->peer().token == Meeting::token(number));
    CHECK(scene.listener->take_by(Meeting::token(number)) == nullptr);
  }
}

TEST_CASE("a caller whose greeting does not follow is kept so long, and not longer",
          "[verbs][waiting]") {
  Fabric fabric;
  Gain dropped("verbs.half_open_dropped");
  Meeting scene(2s);
  REQUIRE(scene.meet(1).ok());
  scene.run_for(1500ms);
  REQUIRE(scene.meet(2).ok());
  for (const Instant end = soon(); dropped() == 0 && now() < end;) scene.run_for(10ms);
  CHECK(dropped() == 1);
  CHECK(scene.listener->take_by(Meeting::token(1)) == nullptr);
  // A program that computes for long has not looked: who waited meanwhile is still there.
  for (const Instant back = in(2600ms); now() < back;) {}
  (void)scene.far->progress();
  CHECK(scene.listener->take_by(Meeting::token(2)) != nullptr);
}

TEST_CASE("where all places are taken by a machine, its next caller is told, and those wait on",
          "[verbs][waiting]") {
  Fabric fabric;
  Meeting scene(60s);
  constexpr uint16_t kMost = VerbsListener::kMostWaiting;
  for (uint16_t number = 0; number < kMost; ++number) REQUIRE(scene.meet(number).ok());
  const Status refused = scene.meet(kMost);
  INFO(refused.to_string());
  CHECK(refused == Code::kUnreachable);
  CHECK(refused.detail().find("as many waiting as it takes") != std::string::npos);
  CHECK(scene.listener->take_by(Meeting::token(0)) != nullptr);
  CHECK(scene.meet(kMost).ok());
  for (uint16_t number = 1; number <= kMost; ++number)
    CHECK(scene.listener->take_by(Meeting::token(number)) != nullptr);
}

TEST_CASE("who does not take a caller sleeps, whatever that caller has sent", "[verbs][waiting]") {
  Fabric fabric;
  Duo duo;
  auto listening = duo.far->listen("rdma://127.0.0.1:0");
  REQUIRE(listening.ok());
  duo.listener = std::move(listening).value();
  auto caller = duo.near->connect(duo.listener.address());
  REQUIRE(caller.ok());
  duo.client = std::move(caller).value();
  Tally &sent = duo.tally(), &received = duo.tally();
  sent.expect(duo.client.send(1, test::tensor(*duo.near, 100, 7), sent.options()),
              OperationKind::kSend);
  duo.settle();
  bool sleeps = false;
  for (int turn = 0; turn < 100 && !sleeps; ++turn) {
    sleeps = duo.far->prepare_to_sleep();
    (void)duo.far->progress();
  }
  CHECK(sleeps);
  auto taken = duo.listener.accept(soon());
  REQUIRE(taken.ok());
  duo.server = std::move(taken).value();
  received.expect(duo.server.receive({.tag = 1}, test::room(*duo.far, 100), received.options()),
                  OperationKind::kReceive, 1, 7);
  CHECK(duo.until([&] { return sent.ended() && received.ended(); }));
  sent.check();
  received.check();
}

}  // namespace
}  // namespace sluice::verbs
