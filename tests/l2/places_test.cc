// Whose a HELLO is: by place and nonce, at a cost that does not grow with the connections.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <vector>

#include <sluice/l2/carrier/places.h>

namespace sluice::test {
namespace {

using namespace l2;

PeerPlace place(uint32_t n) {
  PeerPlace at{.address = {.size = 6}, .port = static_cast<uint16_t>(n >> 8)};
  at.address.bytes[0] = 2;
  at.address.bytes[5] = static_cast<uint8_t>(n);
  return at;
}

uint64_t cost(const std::function<void()>& look) {
  uint64_t before = Places::compared();
  look();
  return Places::compared() - before;
}

std::vector<uint32_t> all(const Places& places, const PeerPlace& at) {
  auto numbers = places.at(at);
  return {numbers.begin(), numbers.end()};
}

TEST_CASE("connections of one place are told apart by nonce, and the last one is known", "[l2]") {
  Places places;
  places.add(place(1), 0, 7);  // a caller's: nonce not known
  CHECK(places.latest(place(1)) == 7);
  CHECK(places.find(place(1), 0) == 0);
  places.add(place(1), 100, 8);
  places.add(place(1), 200, 9);
  places.add(place(2), 100, 10);
  CHECK(places.latest(place(1)) == 9);
  CHECK(places.find(place(1), 100) == 8);
  CHECK(places.find(place(2), 100) == 10);
  CHECK(places.find(place(2), 200) == 0);
  CHECK(all(places, place(1)) == std::vector<uint32_t>{7, 8, 9});
  places.remove(place(1), 200, 9);
  CHECK(places.latest(place(1)) == 8);
  CHECK(places.find(place(1), 200) == 0);
  // The same nonce once more, before the first has gone.
  places.add(place(1), 100, 11);
  places.remove(place(1), 100, 8);
  CHECK(places.find(place(1), 100) == 11);
  places.remove(place(1), 100, 11);
  places.remove(place(1), 0, 7);
  CHECK(places.latest(place(1)) == 0);
  CHECK(places.at(place(1)).empty());
}

TEST_CASE("addresses that differ in length or port alone are other places", "[l2]") {
  Places places;
  PeerPlace longer = place(1), elsewhere = place(1);
  longer.address.size = 7;
  elsewhere.port ^= 1;
  places.add(place(1), 5, 1);
  places.add(longer, 5, 2);
  places.add(elsewhere, 5, 3);
  CHECK(places.find(place(1), 5) == 1);
  CHECK(places.find(longer, 5) == 2);
  CHECK(places.find(elsewhere, 5) == 3);
}

TEST_CASE("with 16,384 connections a look-up compares no more keys than with one", "[l2]") {
  constexpr uint32_t kMany = 16'384;
  Places places;
  for (uint32_t n = 1; n <= kMany; ++n) places.add(place(n), n, n);
  uint64_t most = 0;
  for (uint32_t n = 1; n <= kMany; ++n) {
    most = std::max(most, cost([&] { CHECK(places.find(place(n), n) == n); }));
    most = std::max(most, cost([&] { CHECK(places.latest(place(n)) == n); }));
    most = std::max(most, cost([&] { CHECK(places.find(place(n), kMany + n) == 0); }));
  }
  // A second one would be a collision of 64 bits.
  CHECK(most == 1);
  for (uint32_t n = 1; n <= kMany; ++n)
    most = std::max(most, cost([&] { places.remove(place(n), n, n); }));
  CHECK(most <= 4);
  CHECK(places.latest(place(1)) == 0);
}

}  // namespace
}  // namespace sluice::test
