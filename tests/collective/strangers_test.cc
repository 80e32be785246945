// Connections that are no rank of the group: they are sent away, and the ranks meet all the same.
#include <catch2/catch.hpp>

#include <cstring>
#include <thread>

#include <sluice/base/counters.h>
#include <sluice/select/open.h>

#include "tests/collective/ranks.h"

namespace sluice::test {
namespace {

constexpr Tag kHelloTag = Tag{1} << 56;  // of a group's hello

uint64_t refused() { return read_counter("collective.strangers_refused"); }

// A group of two whose rank 0 opens in a thread: `stranger` comes first, then rank 1.
void meet(const std::function<void(Context&, const std::string&)>& stranger) {
  const auto addresses = fresh_addresses(2);
  Status first;
  std::thread thread([&] {
    auto context = open_context().value();
    auto group = Group::open(*context, {.rank = 0, .size = 2, .addresses = addresses}, soon());
    first = group.ok() ? (*group)->close(soon()) : group.status();
  });
  auto context = open_context().value();
  stranger(*context, addresses[0]);
  auto group = Group::open(*context, {.rank = 1, .size = 2, .addresses = addresses}, soon());
  const Status second = group.ok() ? (*group)->close(soon()) : group.status();
  thread.join();
  INFO(first.to_string() << "\n" << second.to_string());
  CHECK(first.ok());
  CHECK(second.ok());
}

// Rank 0 may not listen yet.
Endpoint connect(Context& context, const std::string& address) {
  const Instant deadline = soon();
  for (;;) {
    Result<Endpoint> endpoint = context.connect(address, {});
    if (endpoint.ok()) return std::move(*endpoint);
    INFO(endpoint.status().to_string());
    REQUIRE(now() < deadline);
    context.progress();
  }
}

}  // namespace

TEST_CASE("a stranger whose hello has another size does not end the opening") {
  const uint64_t before = refused();
  meet([](Context& context, const std::string& address) {
    Endpoint endpoint = connect(context, address);
    Buffer word = context.arena().allocate(4).value();
    std::memset(word.data(), 0, 4);
    CHECK(endpoint.send_and_wait(kHelloTag, std::move(word).freeze(), soon()).ok());
    (void)context.wait_until([&] { return endpoint.state() == EndpointState::kClosed; }, soon());
    CHECK(endpoint.state() == EndpointState::kClosed);
  });
  CHECK(refused() == before + 1);
}

TEST_CASE("connections that say nothing do not keep a rank out") {
  std::vector<Endpoint> silent;
  const uint64_t before = refused();
  auto context = open_context().value();
  meet([&](Context&, const std::string& address) {
    // More than rank 0 keeps: 64, and one for each rank.
    for (int i = 0; i < 70; ++i) silent.push_back(connect(*context, address));
  });
  CHECK(refused() >= before + 4);
  silent.clear();
}

}  // namespace sluice::test
