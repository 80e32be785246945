// How many connections a listener of l2 lets in, and whom: ListenOptions and PeerLimits, over UDP
// on the loopback device, where all callers are one peer.
#include <catch2/catch.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/select/open.h>

#include "tests/l2/two.h"
#include "tests/support/audit.h"

namespace sluice::test {
namespace {

class Limited {
 public:
  explicit Limited(const ListenOptions& options, const PeerLimits& limits = {}) {
    ContextOptions far_options;
    far_options.peer_limits = limits;
    far_ = std::move(open_context(far_options)).value();
    near_ = std::move(open_context({})).value();
    listener_ = std::move(far_->listen("l2://udp/127.0.0.1:0", options)).value();
    near_->add_hook(&hook_);
    hook_.other = far_.get();
  }
  ~Limited() {
    near_->remove_hook(&hook_);
    callers.clear();
    accepted.clear();
  }
  // Another caller, if he got as far as being accepted or refused.
  Status call() {
    auto caller = near_->connect(listener_.address(), {.timeout = std::chrono::seconds(2)});
    if (!caller.ok()) return caller.status();
    callers.push_back(std::move(*caller));
    return Status();
  }
  size_t accept_all() {
    for (;;) {
      auto next = listener_.try_accept();
      if (!next.ok()) return accepted.size();
      accepted.push_back(std::move(*next));
    }
  }
  bool until(const std::function<bool()>& done) {
    return near_->wait_until([&] { return done(); }, soon()).ok();
  }
  std::vector<Endpoint> callers, accepted;

 private:
  struct Hook final : ProgressHook {
    size_t progress(Instant) override { return other->progress(); }
    Instant next_timeout() override { return kNever; }
    Context* other = nullptr;
  } hook_;
  std::unique_ptr<Context> far_, near_;
  Listener listener_;
};

TEST_CASE(
    "a listener of l2 has as many connections of one address as it says, and the next is told",
    "[l2][limits]") {
  NothingLeftBehind audit;
  Limited scene({.max_connections_by_address = 2});
  for (int i = 0; i < 3; ++i) REQUIRE(scene.call().ok());
  REQUIRE(scene.until([&] {
    return scene.accept_all() == 2 && scene.callers[2].state() == EndpointState::kClosed;
  }));
  CHECK(scene.callers[0].state() == EndpointState::kConnected);
  CHECK(scene.callers[1].state() == EndpointState::kConnected);
  // One goes, another comes.
  CHECK(scene.callers[0].close(soon()).ok());
  REQUIRE(scene.until([&] { return scene.accepted[0].state() == EndpointState::kClosed; }));
  scene.accepted.erase(scene.accepted.begin());
  REQUIRE(scene.call().ok());
  CHECK(scene.until([&] { return scene.accept_all() == 2; }));
  CHECK(scene.callers[3].state() == EndpointState::kConnected);
}

TEST_CASE("a listener of l2 asks the program whom it lets in", "[l2][limits]") {
  NothingLeftBehind audit;
  std::string asked;
  Limited scene({.accept = [&](const PeerIntroduction& who) {
    asked = who.address;
    return false;
  }});
  REQUIRE(scene.call().ok());
  REQUIRE(scene.until([&] {
    return scene.accept_all() == 0 && scene.callers[0].state() == EndpointState::kClosed;
  }));
  CHECK(asked.find("127.0.0.1") != std::string::npos);
}

TEST_CASE("connections of l2 are charged to their peer's account, accepted or not",
          "[l2][limits]") {
  NothingLeftBehind audit;
  PeerLimits limits;
  limits.connections = {.by_peer = 2, .total = 100};
  Limited scene({}, limits);
  // Nobody accepts: those that have greeted are there all the same.
  REQUIRE(scene.call().ok());
  REQUIRE(scene.call().ok());
  const Status third = scene.call();
  INFO(third.to_string());
  CHECK(third == Code::kTryAgain);
  CHECK(third.detail().find("it has as many connections as it takes") != std::string::npos);
  CHECK(read_counter("peer.refused_connections") > 0);
  CHECK(scene.accept_all() == 2);
  CHECK(scene.callers[0].state() == EndpointState::kConnected);
  CHECK(scene.callers[1].state() == EndpointState::kConnected);
}

}  // namespace
}  // namespace sluice::test
