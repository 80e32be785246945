// Names resolved while the context goes on, against a name server of the test; and connections in
// the making, several at once.
#include <sys/epoll.h>

#include <sluice/runtime/awaits.h>
#include <sluice/runtime/event_handler.h>
#include <sluice/runtime/identity.h>
#include <sluice/tcp/names.h>
#include "tests/tcp/testing_greeting.h"

namespace sluice::tcp {
namespace {

using namespace testing;
using Server = GreetingServer;

// Says that every name is 127.0.0.1 and has no IPv6 address, or says nothing.
class NameServer final : public EventHandler {
 public:
  explicit NameServer(LoneContext& lone, bool answers = true)
      : context_(lone.context),
        socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
        answers_(answers) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(socket_.value(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(context_.watch(socket_.value(), EPOLLIN, this).ok());
    use_name_servers(local_address(socket_.value()).to_string());
  }
  ~NameServer() {
    use_name_servers("");
    context_.unwatch(socket_.value(), this);
  }
  void on_event(uint32_t) noexcept override {
    std::array<uint8_t, 512> text;
    sockaddr_in from{};
    socklen_t length = sizeof(from);
    auto* sender = reinterpret_cast<sockaddr*>(&from);
    const ssize_t got = ::recvfrom(socket_.value(), text.data(), 400, 0, sender, &length);
    if (got < 17) return;
    ++questions;
    if (!answers_) return;
    // The question's name, type and class; what follows (EDNS) is left out (RFC 1035, section 4).
    size_t end = 12;
    while (end + 5 < static_cast<size_t>(got) && text[end] != 0) end += text[end] + size_t{1};
    const bool ipv4 = text[end + 2] == 1;
    end += 5;
    text[2] = 0x81, text[3] = 0x80;
    text[6] = 0, text[7] = ipv4 ? 1 : 0;
    text[8] = text[9] = text[10] = text[11] = 0;
    const uint8_t answer[] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1};
    if (ipv4) std::copy(std::begin(answer), std::end(answer), text.begin() + end);
    if (ipv4) end += sizeof(answer);
    (void)::sendto(socket_.value(), text.data(), end, 0, sender, length);
  }
  int questions = 0;

 private:
  ContextCore& context_;
  Descriptor socket_;
  bool answers_;
};

TEST_CASE("a name is resolved by a server while the context goes on", "[tcp][names]") {
  DescriptorAudit audit;
  LoneContext lone;
  NameServer names(lone);
  Server server(lone);
  Address address = loopback_address("far.sluice-test.example", server.listener->address().port);
  auto client = greet(lone.context, address, local_hello(0), soon());
  INFO(client.status().to_string());
  CHECK(client.ok());
  CHECK(names.questions > 0);
}

TEST_CASE("an address in digits asks no name server", "[tcp][names]") {
  LoneContext lone;
  NameServer names(lone);
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
  NameServer names(lone, false);
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
  NameServer names(lone, false);
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
