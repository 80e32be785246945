// A context that listens over shared memory, for raw peers on the same thread.
#ifndef SLUICE_TESTS_SHM_SERVER_H_
#define SLUICE_TESTS_SHM_SERVER_H_

#include <catch2/catch.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <sluice/api/context.h>
#include <sluice/select/open.h>

#include "tests/shm/raw_peer.h"
#include "tests/support/fresh_name.h"

namespace sluice::test {

inline Instant soon() { return after(now(), std::chrono::seconds(60)); }

inline std::unique_ptr<Context> open_small(const PeerLimits& limits = {}) {
  ContextOptions options;
  options.arena_options.limit_bytes = 256 * kMiB;
  options.arena_options.first_extent_bytes = 4 * kMiB;
  options.waiting = Waiting::kSleep;
  options.peer_limits = limits;
  auto context = open_context(options);
  INFO(context.status().to_string());
  REQUIRE(context.ok());
  return std::move(*context);
}

struct Server {
  explicit Server(const PeerLimits& limits = {}, const ListenOptions& options = {})
      : context(open_small(limits)) {
    auto made = context->listen("shm:" + name, options);
    INFO(made.status().to_string());
    REQUIRE(made.ok());
    listener = std::move(*made);
  }
  // Runs until done(), of which a raw peer's socket, which nobody watches, may be a part; false:
  // not within a minute.
  bool until(const std::function<bool()>& done) {
    for (const Instant limit = soon(); !done();) {
      if (now() >= limit) return false;
      (void)context->wait(after(now(), std::chrono::milliseconds(1)));
    }
    return true;
  }
  // Of a peer that greeted.
  Endpoint accept() {
    auto endpoint = listener.accept(soon());
    INFO(endpoint.status().to_string());
    REQUIRE(endpoint.ok());
    return std::move(*endpoint);
  }
  // A peer whose handshake is over, and our end of it.
  std::pair<std::unique_ptr<RawPeer>, Endpoint> meet(uint64_t arena_bytes = 64 * kMiB) {
    auto peer = std::make_unique<RawPeer>(name);
    REQUIRE(peer->connected());
    REQUIRE(peer->greet(arena_bytes));
    Endpoint endpoint = accept();
    REQUIRE(peer->met());
    return {std::move(peer), std::move(endpoint)};
  }

  std::string name = fresh_name("raw");
  std::unique_ptr<Context> context;
  Listener listener;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SHM_SERVER_H_
