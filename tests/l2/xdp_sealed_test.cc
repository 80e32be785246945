// Sealed connections over AF_XDP: everything crosses, nobody else can read it, and a wrong secret
// is refused.
#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <sluice/api/context.h>
#include <sluice/runtime/secret.h>
#include <sluice/select/open.h>

#include "tests/l2/secrets.h"
#include "tests/l2/two.h"
#include "tests/l2/wire.h"
#include "tests/l2/xdp_cable.h"
#include "tests/support/audit.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

TEST_CASE("with a secret everything crosses by AF_XDP", "[l2][xdp][seal]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  SecretFile file(kOneSecret);
  Setting secret(kSecretFileVariable, file.path);
  for (int mtu : {1280, 1500, 3000}) {
    INFO("MTU " << mtu);
    REQUIRE(set_both_mtus(mtu));
    Two two(by_xdp());
    CHECK(two.client.info().path.copies_per_fetch == 6);
    for (size_t size : {size_t{1}, size_t{64}, size_t{4097}, size_t{300'000}, size_t{8} << 20})
      two.exchange_messages(size);  // both ways
    two.exchange_tensors(1'000'000);
    two.say_goodbye();
  }
  REQUIRE(set_both_mtus(1500));
}

// Frames that leave by AF_XDP, as they come at the other end to whoever listens there.
TEST_CASE("with a secret nobody reads what leaves by AF_XDP", "[l2][xdp][seal]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  SecretFile file(kOneSecret);
  const std::string text = "what the third program looks for";
  for (bool sealed : {false, true}) {
    Setting secret(kSecretFileVariable, sealed ? file.path : "");
    std::unique_ptr<RawWire> tap;
    far_node()->inside([&] { tap = std::make_unique<RawWire>("right"); });
    TwoOptions options = by_xdp();
    options.listen_at = "l2://right:0";
    Two two(options);
    for (size_t size : {size_t{64}, size_t{300'000}}) {
      Buffer buffer = std::move(two.near->allocate({static_cast<int64_t>(size)}, uint8)).value();
      for (size_t i = 0; i < size; ++i)
        buffer.bytes()[i] = static_cast<std::byte>(text[i % text.size()]);
      Tensor tensor = std::move(buffer).freeze();
      Box box;
      Buffer into = std::move(two.far->allocate({static_cast<int64_t>(size)}, uint8)).value();
      REQUIRE(
          two.server.receive({.tag = 5}, std::move(into), {.sink = &box, .deadline = soon()}).ok());
      REQUIRE(two.client.send_and_wait(5, Tensor(tensor), soon()).ok());
      REQUIRE(two.until([&] { return box.all.size() == 1; }));
      REQUIRE(box.all[0].status.ok());
      CHECK(std::equal(tensor.bytes().begin(), tensor.bytes().end(),
                       box.all[0].buffers[0].bytes().begin()));
    }
    int frames = 0, readable = 0;
    for (auto frame = tap->receive(); !frame.empty(); frame = tap->receive()) {
      ++frames;
      if (std::search(frame.begin(), frame.end(), text.begin(), text.end()) != frame.end())
        ++readable;
    }
    CHECK(frames > 4);
    CHECK((readable > 0) == !sealed);
  }
}

// Runs the far end while the near one waits.
class Other final : public ProgressHook {
 public:
  size_t progress(Instant) override { return context->progress(); }
  Instant next_timeout() override { return kNever; }
  Context* context = nullptr;
};

TEST_CASE("over AF_XDP, who has another secret, or none, is refused with the cause and what to do",
          "[l2][xdp][seal]") {
  NEEDS_XDP();
  NothingLeftBehind audit;
  SecretFile one(kOneSecret), another(kAnotherSecret);
  for (const Refused& t : who_is_refused(one, another)) {
    std::unique_ptr<Context> near = std::move(open_context({})).value();
    std::unique_ptr<Context> far = std::move(open_context({})).value();
    Listener listener;
    far_node()->inside([&] {
      auto made = far->listen("l2://xdp/right:0", {.require = {}, .secret_file = t.listens});
      REQUIRE(made.ok());
      listener = std::move(*made);
    });
    Other hook;
    hook.context = far.get();
    near->add_hook(&hook);
    auto connected = near->connect(by("xdp/left", listener.address()),
                                   {.require = {}, .secret_file = t.connects});
    near->remove_hook(&hook);
    t.check(connected.status());
    CHECK(listener.try_accept().code() != Code::kOk);
  }
}

}  // namespace
}  // namespace sluice::test
