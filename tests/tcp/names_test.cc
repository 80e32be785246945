// Names resolved while the context goes on, against a name server of the test; and connections in
// the making, several at once.
#include <sluice/runtime/awaits.h>
#include <sluice/runtime/identity.h>
#include <sluice/runtime/names.h>
#include "tests/support/name_server.h"
#include "tests/tcp/testing_greeting.h"

namespace sluice::tcp {
namespace {

using namespace testing;
using Server = GreetingServer;
using test::NameServer;

TEST_CASE("a name is resolved by a server while the context goes on", "[tcp][names]") {
  DescriptorAudit audit;
  LoneContext lone;
  NameServer names(lone.context);
  Server server(lone);
  Address address = loopback_address("far.sluice-test.example", server.listener->address().port);
  auto client = greet(lone.context, address, local_hello(0), soon());
  INFO(client.status().to_string());
  CHECK(client.ok());
  CHECK(names.questions > 0);
}

TEST_CASE("an address in digits asks no name server", "[tcp][names]") {
  LoneContext lone;
  NameServer names(lone.context);
  Server server(lone);
  for (const char* host : {"127.0.0.1", "::ffff:127.0.0.1"}) {
    CHECK(address_in_digits(loopback_address(host, 7000)).size() == 1);
  }
  CHECK(greet(lone.context, server.listener->address(), local_hello(0), soon()).ok());
  CHECK(names.questions == 0);
}

TEST_CASE("a name server that does not answer ends connecting at its deadline, and no other",
          "[tcp][names]") {
  DescriptorAudit audit;
  LoneContext lone;
  NameServer names(lone.context, NameServer::Answers::kNothing);
  Server server(lone);
  Awaits awaits(lone.context);
  Address unknown = loopback_address("far.sluice-test.example", 7000);
  auto slow =
      start_greet(awaits, unknown, local_hello(0), after(now(), std::chrono::milliseconds(300)));
  auto never = start_greet(awaits, unknown, local_hello(0), kNever);
  CHECK_FALSE(slow.ready());
  // Another is called, greeted and done meanwhile.
  Address known = server.listener->address();
  auto quick = start_greet(awaits, known, local_hello(0), soon());
  CHECK(lone.context.run_until(quick, soon()).ok());
  auto result = lone.context.run_until(slow, soon());
  REQUIRE_FALSE(result.ok());
  CHECK(result.code() == Code::kTimedOut);
  CHECK(result.status().detail().find("far.sluice-test.example") != std::string::npos);
  CHECK(names.questions > 0);
  CHECK_FALSE(never.ready());
}

TEST_CASE("who waits when the awaits end is told, and who comes later", "[tcp][names]") {
  DescriptorAudit audit;
  LoneContext lone;
  NameServer names(lone.context, NameServer::Answers::kNothing);
  Awaits awaits(lone.context);
  Address unknown = loopback_address("far.sluice-test.example", 7000);
  auto waits = start_greet(awaits, unknown, local_hello(0), kNever);
  CHECK_FALSE(waits.ready());
  awaits.end_all();
  REQUIRE(waits.ready());
  CHECK(waits.take().code() == Code::kCancelled);
  auto late = start_greet(awaits, unknown, local_hello(0), kNever);
  REQUIRE(late.ready());
  CHECK(late.take().code() == Code::kCancelled);
  CHECK(awaits.empty());
}

TEST_CASE("connecting that is dropped leaves nothing behind", "[tcp][names]") {
  DescriptorAudit audit;
  LoneContext lone;
  Descriptor mute(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(mute.value(), reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
  REQUIRE(::listen(mute.value(), 1) == 0);
  Address address = loopback_address("127.0.0.1", local_address(mute.value()).port());
  Awaits awaits(lone.context);
  {
    auto dropped = start_greet(awaits, address, local_hello(0), kNever);
    for (int i = 0; i < 1000; ++i) lone.context.progress();
    CHECK_FALSE(dropped.ready());
    CHECK_FALSE(awaits.empty());
  }
  CHECK(awaits.empty());
}

}  // namespace
}  // namespace sluice::tcp
