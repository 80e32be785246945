// A listener for greetings in a test, and what a peer says to it.
#ifndef SLUICE_TESTS_TCP_TESTING_GREETING_H_
#define SLUICE_TESTS_TCP_TESTING_GREETING_H_

#include <memory>
#include <optional>
#include <string>

#include <sluice/runtime/identity.h>
#include <sluice/tcp/greeting_listener.h>
#include "tests/tcp/testing.h"

namespace sluice::tcp::testing {

inline Address loopback_address(const std::string& host = "127.0.0.1", uint16_t port = 0) {
  Address address;
  address.scheme = Scheme::kTcp;
  address.host = host;
  address.port = port;
  return address;
}

// A listener for greetings, and peers that connect to it.
struct GreetingServer {
  explicit GreetingServer(LoneContext& lone, GreetingOptions options = {},
                          PrepareHello prepare = {}, const std::string& host = "127.0.0.1")
      : lone(lone) {
    auto opened = GreetingListener::open(lone.context, loopback_address(host), local_hello(1000),
                                         options, prepare);
    REQUIRE(opened.ok());
    listener = std::move(opened).value();
  }
  // `from`: the last number of its address in 127.0.0.0/24.
  Descriptor stranger(uint8_t from = 1) {
    Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + from);
    REQUIRE(::bind(fd.value(), reinterpret_cast<sockaddr*>(&here), sizeof(here)) == 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(listener->address().port);
    REQUIRE(::connect(fd.value(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
    send_without_delay(fd.value());
    return fd;
  }
  void pump() {
    for (int i = 0; i < 200; ++i) {
      lone.context.progress();
      listener->progress(lone.context.now());
    }
  }
  template <typename Condition>
  bool pump_until(Condition&& done) {
    Instant deadline = soon();
    while (!done()) {
      if (now() > deadline) return false;
      pump();
    }
    return true;
  }
  std::optional<Greeting> take() {
    std::optional<Greeting> greeting;
    pump_until([&] { return (greeting = listener->take()).has_value(); });
    return greeting;
  }
  // What the listener sends until it closes.
  Bytes read_until_closed(int fd) {
    Bytes all;
    Instant deadline = soon();
    while (now() < deadline) {
      std::byte buffer[2048];
      ssize_t got = ::recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got > 0) all.insert(all.end(), buffer, buffer + got);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return all;
      pump();
    }
    FAIL("the listener did not close the connection");
    return all;
  }
  LoneContext& lone;
  std::unique_ptr<GreetingListener> listener;
};

inline Bytes hello_bytes() { return frame(local_hello(2000)); }
inline Bytes choice_bytes(Path path) {
  return frame(wire::Done{.id = static_cast<uint64_t>(path), .code = Code::kOk, .bytes = 0});
}

inline Code bye_code(const Bytes& bytes) {
  wire::Bye bye;
  auto common = wire::decode_header(bytes);
  REQUIRE(common.ok());
  REQUIRE(common->type == wire::MessageType::kBye);
  REQUIRE(wire::decode(bytes, bye).ok());
  return bye.code;
}

}  // namespace sluice::tcp::testing

#endif  // SLUICE_TESTS_TCP_TESTING_GREETING_H_
