// How connections over the module end: what was said before is heard.
#include <catch2/catch.hpp>
#include <poll.h>

#include <chrono>
#include <cstddef>
#include <future>
#include <string>
#include <utility>

#include <sluice/select/open.h>

#include "tests/module/carrier.h"
#include "tests/module/wire.h"

namespace sluice::module_test {
namespace {

using namespace std::chrono_literals;

TEST_CASE("what a peer said before it went is heard by one who was about to send to it") {
  Module module;
  Wire wire;
  std::promise<std::string> listening;
  std::promise<void> alone;
  std::future<Status> other = std::async(std::launch::async, [&] {
    Status outcome;
    wire.b.space.run([&] {
      auto context = small_context();
      Listener listener = context->listen("kmod://end0:7000").value();
      listening.set_value(listener.address());
      auto peer = listener.accept(soon());
      outcome = peer.status();
      if (!outcome.ok()) return;
      auto word = [&] { return context->allocate({64}, uint8).value().freeze(); };
      // Until both ends have had their turns.
      outcome = peer->send_and_wait(9, word(), soon()).status();
      alone.get_future().wait_for(20s);
      // Its bytes are the kernel's when this returns, and then the socket is closed.
      if (outcome.ok()) outcome = peer->send(1, word()).status();
      context->progress();
    });
    return outcome;
  });
  wire.a.space.run([&, address = listening.get_future().get()] {
    CompletionQueue ended;
    auto context = small_context();
    auto peer = context->connect(address, {.timeout = 20s});
    INFO(peer.status().to_string());
    REQUIRE(peer.ok());
    auto room = [&] { return context->allocate({64}, uint8).value(); };
    REQUIRE(peer->receive_and_wait({.tag = 9}, room(), soon()).ok());
    REQUIRE(peer->receive({.tag = 1}, room(), {.sink = &ended}).ok());
    alone.set_value();
    Status outcome = other.get();
    INFO(outcome.to_string());
    CHECK(outcome.ok());
    // That with the listener, and this one. Nobody has looked at the connection meanwhile.
    for (int tries = 0; tries < 20000 && counter(wire.a.space, "sessions_ended") < 2; ++tries)
      ::poll(nullptr, 0, 1);
    REQUIRE(counter(wire.a.space, "sessions_ended") == 2);
    (void)peer->send(2, room().freeze());
    Completion heard;
    const Instant deadline = soon();
    while (!ended.poll(heard) && now() < deadline) context->progress();
    INFO(heard.status.to_string());
    CHECK(heard.id != kNoOperation);
    CHECK(heard.status.ok());
  });
}

}  // namespace
}  // namespace sluice::module_test
