// Every byte of the asks of a borrower of AF_XDP, and of a broker's answers, changed, deleted,
// doubled and cut: refused, or taken for what it says; never anything else.
#include <catch2/catch.hpp>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include <sluice/base/status.h>
#include <sluice/l2/carrier/broker_wire.h>

#include "tests/fuzz/broker_judge.h"

namespace sluice::fuzz {
namespace {

using l2::Ask;
using l2::BrokerAnswer;
using l2::BrokerRequest;

template <typename Packet>
Bytes bytes_of(const Packet& packet) {
  Bytes bytes(sizeof(packet));
  std::memcpy(bytes.data(), &packet, sizeof(packet));
  return bytes;
}

Bytes request(Ask what, uint16_t port = 0, uint32_t number = 0) {
  BrokerRequest asked{.what = what, .port = port};
  asked.number = number;
  return bytes_of(asked);
}

// What a borrower with two ports says, until it closes one.
std::vector<Bytes> conversation() {
  return {request(Ask::kXdpSockets),       request(Ask::kXdpOpen, 0),
          request(Ask::kXdpSockets, 0, 1), request(Ask::kXdpOpen, 7000, 1),
          request(Ask::kXdpClose, 7000),   request(Ask::kXdpOpen, 0, 1)};
}

// Of an answer's text, one in so many bytes.
constexpr size_t kTextFrom = offsetof(BrokerAnswer, detail) + 4, kTextTo = sizeof(BrokerAnswer) - 8,
                 kTextStep = 16;

// Calls it with every change of each byte; `step` 13: twenty values, and every single bit.
template <typename Check>
void mutate_everywhere(const Bytes& bytes, int step, const Check& check) {
  for (size_t i = 0; i < bytes.size(); i += i >= kTextFrom && i < kTextTo ? kTextStep : 1) {
    const auto at = static_cast<ptrdiff_t>(i);
    Bytes changed = bytes;
    for (int mask = 1; mask < 256; ++mask) {
      if (mask % step != 0 && (mask & (mask - 1)) != 0) continue;
      changed[i] = static_cast<uint8_t>(bytes[i] ^ mask);
      check(changed);
    }
    Bytes shorter = bytes, longer = bytes;
    shorter.erase(shorter.begin() + at);
    check(shorter);
    longer.insert(longer.begin() + at, bytes[i]);
    check(longer);
    check(Bytes(bytes.begin(), bytes.begin() + at));
  }
}

TEST_CASE("asks that are in order are served", "[fuzz][broker]") {
  const std::vector<Bytes> all = conversation();
  size_t served = 0;
  CHECK(judge_requests(all, &served).empty());
  CHECK(served == all.size());
  CHECK(judge_requests({}, &served).empty());
  CHECK(served == 0);
}

TEST_CASE("who asks for more than there is has what there is", "[fuzz][broker]") {
  size_t served = 0;
  std::vector<Bytes> greedy;
  for (uint32_t i = 0; i < 40; ++i) {
    greedy.push_back(request(Ask::kXdpSockets, 0, i));
    greedy.push_back(request(Ask::kXdpOpen, 0, i));
  }
  CHECK(judge_requests(greedy, &served).empty());
  CHECK(served == 36 + 20);  // pairs of an interface, ports of a user
  CHECK(judge_requests(std::vector<Bytes>(200, request(Ask::kXdpSockets)), &served).empty());
  CHECK(served == 1 + 36);
}

TEST_CASE("every byte of every ask changed, deleted, doubled and cut", "[fuzz][broker]") {
  const std::vector<Bytes> all = conversation();
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<Bytes> changed = all;
    mutate_everywhere(all[i], 13, [&](const Bytes& packet) {
      changed[i] = packet;
      const std::string problem = judge_requests(changed);
      if (!problem.empty()) FAIL("ask " << i << ": " << problem);
    });
  }
}

TEST_CASE("asks twice, in other orders and left out", "[fuzz][broker]") {
  const std::vector<Bytes> all = conversation();
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j) {
      std::vector<Bytes> changed = all;
      changed[i] = all[j];
      CHECK(judge_requests(changed).empty());
      changed.insert(changed.begin() + static_cast<ptrdiff_t>(j), all[i]);
      CHECK(judge_requests(changed).empty());
    }
  }
}

TEST_CASE("every byte of an answer changed, deleted, doubled and cut, with 0 to 3 descriptors",
          "[fuzz][broker]") {
  BrokerAnswer lent{.port = 7000, .number = 3};
  BrokerAnswer refused{.code = static_cast<uint32_t>(Code::kTryAgain)};
  std::memset(refused.detail, 'x', sizeof(refused.detail));
  for (const BrokerAnswer& answer : {lent, refused}) {
    for (size_t descriptors = 0; descriptors <= 3; ++descriptors) {
      for (size_t expected = 0; expected <= 2; ++expected) {
        auto check = [&](const Bytes& packet) {
          const std::string problem = judge_answer(packet, descriptors, expected);
          if (!problem.empty())
            FAIL(descriptors << " descriptors of " << expected << ": " << problem);
        };
        check(bytes_of(answer));
        mutate_everywhere(bytes_of(answer), 67, check);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::fuzz
