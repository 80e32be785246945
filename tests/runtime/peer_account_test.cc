#include <sluice/runtime/peer_account.h>

#include <catch2/catch.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <string>
#include <vector>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>

namespace sluice {
namespace {

constexpr PeerResource kKeys = PeerResource::kKeys;

PeerLimits with_keys(uint64_t by_peer, uint64_t total) {
  PeerLimits limits;
  limits.keys = {by_peer, total};
  return resolve(limits, uint64_t{1} << 30);
}

PeerIdentity ipv4(const char* text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  REQUIRE(::inet_pton(AF_INET, text, &address.sin_addr) == 1);
  sockaddr generic;
  std::memcpy(&generic, &address, sizeof(generic));
  return PeerIdentity::of_address(generic);
}

PeerIdentity ipv6(const char* text) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  REQUIRE(::inet_pton(AF_INET6, text, &address.sin6_addr) == 1);
  return PeerIdentity::of_address(reinterpret_cast<const sockaddr&>(address));
}

struct Lines {
  Lines() {
    set_log_sink([](LogLevel, std::string_view line,
                    void* user) { static_cast<Lines*>(user)->lines.emplace_back(line); },
                 this);
  }
  ~Lines() { set_log_sink(nullptr, nullptr); }
  std::vector<std::string> lines;
};

TEST_CASE("a peer is refused at its own limit and its neighbour is not") {
  PeerAccounts accounts(with_keys(3, 1000));
  auto one = accounts.open(ipv4("192.0.2.1"));
  auto other = accounts.open(ipv4("192.0.2.2"));
  CHECK(one->charge(kKeys, 3).ok());
  CHECK(one->charge(kKeys) == Code::kTryAgain);
  CHECK(other->charge(kKeys, 3).ok());
  one->refund(kKeys, 1);
  CHECK(one->charge(kKeys).ok());
  CHECK(accounts.used(kKeys) == 6);
}

TEST_CASE("what a peer can do without is a quarter of what it may have, and nobody is told") {
  Lines lines;
  PeerAccounts accounts(with_keys(100, 1000));
  auto one = accounts.open(ipv4("192.0.2.1"));
  CHECK_FALSE(one->charge_spare(kKeys, 26));
  CHECK(one->charge_spare(kKeys, 20));
  CHECK_FALSE(one->charge_spare(kKeys, 6));
  CHECK(one->charge(kKeys, 80).ok());
  CHECK_FALSE(one->charge_spare(kKeys, 1));
  CHECK(lines.lines.empty());
  one->refund(kKeys, 100);
  CHECK(accounts.used(kKeys) == 0);

  PeerAccounts crowded(with_keys(100, 200));
  auto first = crowded.open(ipv4("192.0.2.1"));
  auto second = crowded.open(ipv4("192.0.2.2"));
  CHECK(first->charge(kKeys, 45).ok());
  CHECK(second->charge_spare(kKeys, 5));
  CHECK_FALSE(second->charge_spare(kKeys, 1));
}

TEST_CASE("the connections of one address share an account, and it ends with the last of them") {
  PeerAccounts accounts(with_keys(3, 1000));
  auto first = accounts.open(ipv4("192.0.2.1"));
  auto second = accounts.open(ipv4("192.0.2.1"));
  CHECK(first == second);
  CHECK(first->charge(kKeys, 2).ok());
  first.reset();
  CHECK(accounts.used(kKeys) == 2);
  second.reset();
  CHECK(accounts.used(kKeys) == 0);
  CHECK(accounts.size() == 0);
}

TEST_CASE("the last quarter of a total is for peers that have little") {
  PeerAccounts accounts(with_keys(640, 640));  // little: 10 at most
  auto greedy = accounts.open(ipv4("192.0.2.1"));
  CHECK(greedy->charge(kKeys, 480).ok());
  CHECK(greedy->charge(kKeys) == Code::kTryAgain);
  auto modest = accounts.open(ipv4("192.0.2.2"));
  CHECK(modest->charge(kKeys, 10).ok());
  CHECK(modest->charge(kKeys) == Code::kTryAgain);
  auto later = accounts.open(ipv4("192.0.2.3"));
  CHECK(later->charge(kKeys, 10).ok());
}

TEST_CASE("the total holds whatever the number of peers") {
  PeerAccounts accounts(with_keys(640, 640));
  std::vector<std::shared_ptr<PeerAccount>> held;
  for (int i = 0; i < 200; ++i) {
    held.push_back(accounts.open(ipv4(("198.51.100." + std::to_string(i)).c_str())));
    (void)held.back()->charge(kKeys, 10);
  }
  CHECK(accounts.used(kKeys) == 640);
}

TEST_CASE("an amount beyond every limit does not wrap around") {
  PeerAccounts accounts(with_keys(10, 20));
  auto peer = accounts.open(ipv4("192.0.2.1"));
  CHECK(peer->charge(kKeys, 5).ok());
  CHECK_FALSE(peer->charge(kKeys, UINT64_MAX).ok());
  CHECK_FALSE(peer->charge(kKeys, UINT64_MAX - 4).ok());
  CHECK(accounts.used(kKeys) == 5);
}

TEST_CASE("addresses of one IPv6 /64 are one peer, and IPv4 in IPv6 is IPv4") {
  CHECK(ipv6("2001:db8::1") == ipv6("2001:db8::ffff:2"));
  CHECK_FALSE(ipv6("2001:db8::1") == ipv6("2001:db8:0:1::1"));
  CHECK(ipv6("::ffff:192.0.2.1") == ipv4("192.0.2.1"));
  CHECK(ipv6("2001:db8::1").to_string() == "2001:db8::/64");
  CHECK(ipv4("192.0.2.1").to_string() == "192.0.2.1");
  CHECK(PeerIdentity::of_ethernet({2, 0, 0, 0, 0, 0xb}).to_string() == "02:00:00:00:00:0b");
  CHECK(PeerIdentity::of_user(1000).to_string() == "user 1000");
}

TEST_CASE(
    "a refusal names the peer, the limit and the option, is counted each time and logged once") {
  Lines log;
  PeerAccounts accounts(with_keys(1, 1000));
  auto peer = accounts.open(ipv4("192.0.2.9"));
  CHECK(peer->charge(kKeys).ok());
  const uint64_t before = read_counter("peer.refused_keys");
  for (int i = 0; i < 1000; ++i) {
    Status refused = peer->charge(kKeys);
    REQUIRE(refused == Code::kTryAgain);
    CHECK(refused.detail().find("192.0.2.9") != std::string_view::npos);
    CHECK(refused.detail().find("at most 1") != std::string_view::npos);
    CHECK(refused.detail().find("peer_limits.keys") != std::string_view::npos);
  }
  CHECK(read_counter("peer.refused_keys") == before + 1000);
  CHECK(log.lines.size() == 1);
}

TEST_CASE("a charge ends with its holder, also when it was moved") {
  PeerAccounts accounts(with_keys(10, 1000));
  auto peer = accounts.open(ipv4("192.0.2.1"));
  REQUIRE(peer->charge(kKeys, 4).ok());
  {
    PeerCharge charge(peer, kKeys, 4);
    PeerCharge moved = std::move(charge);
    CHECK(accounts.used(kKeys) == 4);
  }
  CHECK(accounts.used(kKeys) == 0);
}

TEST_CASE("every limit has a default above zero, whatever the arena") {
  for (uint64_t arena : {uint64_t{0}, uint64_t{1} << 20, uint64_t{1} << 40}) {
    const PeerLimits limits = resolve({}, arena);
    for (const PeerLimit& limit :
         {limits.connections, limits.half_open, limits.keys, limits.wants, limits.unexpected_bytes,
          limits.incoming_bytes, limits.control_bytes, limits.grants, limits.extents,
          limits.address_bytes}) {
      CHECK(limit.by_peer > 0);
      CHECK(limit.by_peer <= limit.total);
    }
  }
}

TEST_CASE(
    "messages that no operation needs have a fifth of the thread, whatever connection they use") {
  PeerAccounts accounts(with_keys(3, 1000));
  auto one = accounts.open(ipv4("192.0.2.1"));
  auto other = accounts.open(ipv4("192.0.2.2"));
  const Instant start{std::chrono::seconds(1)};
  CHECK_FALSE(one->overdrawn(start));
  one->note_idle_talk(std::chrono::microseconds(100), start);
  CHECK(one->overdrawn(start + std::chrono::microseconds(399)));
  CHECK(accounts.open(ipv4("192.0.2.1"))->overdrawn(start + std::chrono::microseconds(399)));
  CHECK_FALSE(one->overdrawn(start + std::chrono::microseconds(400)));
  CHECK_FALSE(other->overdrawn(start));
  // Two connections of a peer at once rest for both.
  one->note_idle_talk(std::chrono::microseconds(100), start);
  one->note_idle_talk(std::chrono::microseconds(50), start);
  CHECK(one->overdrawn(start + std::chrono::microseconds(999)));
  CHECK_FALSE(one->overdrawn(start + std::chrono::milliseconds(1)));
  // Whoever leaves and comes back is not without debts, nor is anybody else then.
  one.reset();
  for (int i = 0; i < 60; ++i) accounts.open(ipv4("192.0.2.3"));
  CHECK(accounts.open(ipv4("192.0.2.1"))->overdrawn(start + std::chrono::microseconds(999)));
  CHECK_FALSE(accounts.open(ipv4("192.0.2.3"))->overdrawn(start));
}

}  // namespace
}  // namespace sluice
