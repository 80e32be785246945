// A name server on a loopback port, in place of those of /etc/resolv.conf, while it lives.
#ifndef SLUICE_TESTS_SUPPORT_NAME_SERVER_H_
#define SLUICE_TESTS_SUPPORT_NAME_SERVER_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include <sluice/base/descriptor.h>
#include <sluice/runtime/context_core.h>
#include <sluice/runtime/event_handler.h>
#include <sluice/runtime/names.h>

namespace sluice::test {

class NameServer final : public EventHandler {
 public:
  enum class Answers : uint8_t {
    kHere,     // every name is 127.0.0.1 and has no IPv6 address
    kUnknown,  // no name exists
    kNothing,
  };
  explicit NameServer(ContextCore& context, Answers answers = Answers::kHere)
      : context_(context),
        socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
        answers_(answers) {
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(socket_.value(), any, length) == 0);
    REQUIRE(::getsockname(socket_.value(), any, &length) == 0);
    REQUIRE(context_.watch(socket_.value(), EPOLLIN, this).ok());
    use_name_servers("127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  }
  ~NameServer() {
    use_name_servers("");
    context_.unwatch(socket_.value(), this);
  }
  NameServer(const NameServer&) = delete;
  NameServer& operator=(const NameServer&) = delete;

  void on_event(uint32_t) noexcept override {
    std::array<uint8_t, 512> text;
    sockaddr_in from{};
    socklen_t length = sizeof(from);
    auto* sender = reinterpret_cast<sockaddr*>(&from);
    const ssize_t got = ::recvfrom(socket_.value(), text.data(), 400, 0, sender, &length);
    if (got < 17) return;
    ++questions;
    if (answers_ == Answers::kNothing) return;
    // The question's name, type and class; what follows (EDNS) is left out (RFC 1035, section 4).
    size_t end = 12;
    while (end + 5 < static_cast<size_t>(got) && text[end] != 0) end += text[end] + size_t{1};
    const bool address = answers_ == Answers::kHere && text[end + 2] == 1;
    end += 5;
    text[2] = 0x81, text[3] = answers_ == Answers::kUnknown ? 0x83 : 0x80;
    text[6] = 0, text[7] = address ? 1 : 0;
    text[8] = text[9] = text[10] = text[11] = 0;
    const uint8_t answer[] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1};
    if (address) std::copy(std::begin(answer), std::end(answer), text.begin() + end);
    if (address) end += sizeof(answer);
    (void)::sendto(socket_.value(), text.data(), end, 0, sender, length);
  }
  int questions = 0;

 private:
  ContextCore& context_;
  Descriptor socket_;
  Answers answers_;
};

}  // namespace sluice::test

#endif  // SLUICE_TESTS_SUPPORT_NAME_SERVER_H_
