// WANTs for several steps: what a subscription sends, and what a peer may send.
#include <catch2/catch.hpp>

#include <array>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <sluice/exchange/exchange.h>

#include "tests/exchange/strangers.h"

namespace sluice::test {
namespace {

TEST_CASE("a subscription asks for several steps with one message, an older peer with one for each",
          "[exchange][subscription]") {
  World world;
  for (bool older : {false, true}) {
    INFO("older " << older);
    Peer publisher(world, 1, {}, true, older ? 0 : wire::kFeatureSteps);
    Subscription subscription = world.exchange->subscribe(older ? "v" : "w", {.ahead = 8});
    CHECK(publisher.answers.wants.size() == 8);
    CHECK(publisher.answers.want_messages == (older ? 8 : 1));
    const std::set<uint64_t> ids(publisher.answers.wants.begin(), publisher.answers.wants.end());
    CHECK(ids.size() == 8);
    auto supply = [&](uint64_t want) {
      const TensorDescriptor layout = TensorDescriptor::bytes(8);
      wire::Offer offer{.id = 900,
                        .flags = wire::Offer::kInline,
                        .about = wire::SupplyOffer{.want = want},
                        .total = 8,
                        .payload_bytes = 8,
                        .has_layout = true,
                        .layout = layout};
      const uint64_t word = want;
      REQUIRE(publisher.deliver(offer, std::as_bytes(std::span(&word, 1))).ok());
    };
    // Half of them are taken before the next ones are asked for.
    for (size_t step = 0; step < 3; ++step) {
      supply(publisher.answers.wants[step]);
      REQUIRE(subscription.ready());
      CHECK(subscription.take()->step == step);
    }
    CHECK(publisher.answers.wants.size() == 8);
    supply(publisher.answers.wants[3]);
    CHECK(subscription.take()->step == 3);
    CHECK(publisher.answers.wants.size() == 12);
    CHECK(publisher.answers.want_messages == (older ? 12 : 2));
    CHECK(publisher.answers.names_said == 1);
    for (size_t i = 0; i < 12; ++i) CHECK(publisher.answers.want_steps[i] == i);
    // An answer that overtakes others waits for its turn.
    supply(publisher.answers.wants[5]);
    CHECK_FALSE(subscription.ready());
    supply(publisher.answers.wants[4]);
    CHECK(subscription.take()->step == 4);
    CHECK(subscription.take()->step == 5);
  }
}

TEST_CASE("rights that name keys or steps hold for each step of a subscription",
          "[exchange][subscription]") {
  ExchangeOptions options;
  options.allow = [](const EndpointInfo&, const Key& key, KeyAccess) { return key.step < 5; };
  World world(options);
  Peer publisher(world, 1, {}, true, wire::kFeatureSteps);
  Subscription subscription =
      world.exchange->subscribe("w", {.ahead = 8, .from = &publisher.endpoint});
  CHECK(publisher.answers.wants.size() == 5);
  Peer asker(world, 2, {}, true, wire::kFeatureSteps);
  for (uint64_t step = 0; step < 8; ++step) REQUIRE(world.publish("v", step).ok());
  const std::array<uint64_t, 8> tokens = {10, 11, 12, 13, 14, 15, 16, 17};
  asker.want_steps(tokens, "v", 0);
  for (uint64_t step = 0; step < 8; ++step) {
    INFO(step);
    CHECK(asker.answers.offers.contains(tokens[step]) == (step < 5));
    CHECK(asker.answers.done.contains(tokens[step]) == (step >= 5));
  }
  CHECK(asker.answers.done.at(15) == Code::kAccessDenied);
}

TEST_CASE("each step of a WANT is answered, refused, withdrawn and charged by itself",
          "[exchange][subscription]") {
  World world;
  Peer asker(world, 1);
  REQUIRE(world.publish("w", 1).ok());
  {
    auto retired = world.publish("w", 2);
    REQUIRE(retired.ok());
    retired->retire();
  }
  const std::array<uint64_t, 4> tokens = {10, 11, 12, 13};
  asker.want_steps(tokens, "w", 1);
  CHECK(asker.answers.offers.contains(10));
  CHECK(asker.answers.done.at(11) == Code::kWrongState);
  CHECK(asker.waits(12));
  CHECK(asker.waits(13));
  asker.cancel(12);
  REQUIRE(world.publish("w", 3, {.readers = until_retired}).ok());
  REQUIRE(world.publish("w", 4).ok());
  CHECK_FALSE(asker.answers.offers.contains(12));
  CHECK(asker.answers.offers.contains(13));
  // One id twice, in one message and across two.
  asker.want_steps(std::array<uint64_t, 3>{20, 20, 21}, "w", 10);
  CHECK(asker.answers.done.at(20) == Code::kInvalidArgument);
  asker.want_steps(std::array<uint64_t, 2>{22, 21}, "w", 20);
  CHECK(asker.answers.done.at(21) == Code::kInvalidArgument);
  // What its connection and its account may have waiting, and no more.
  Peer flood(world, 2);
  std::vector<uint64_t> many(32);
  for (uint64_t first = 0; first < 640; first += 32) {
    std::iota(many.begin(), many.end(), 1000 + first);
    flood.want_steps(many, "f", 1000 + first);
  }
  const auto refused = static_cast<uint64_t>(flood.answers.done.size());
  CHECK(refused == 640 - kOwn - 50);
  for (const auto& [id, code] : flood.answers.done) CHECK(code == Code::kTryAgain);
  CHECK(used(world, PeerResource::kWants) == 50);
  flood.leave();
  CHECK(used(world, PeerResource::kWants) == 0);
  // Before anyone answers: one id twice is a lie.
  Peer early(world, 3, {}, false);
  CHECK(early
            .deliver(wire::Want{.id = 1,
                                .about = wire::KeyWant{.step = 1},
                                .key = "e",
                                .following = wire::IdList(std::array<uint64_t, 1>{1})})
            .code() == Code::kCorrupt);
  Peer patient(world, 4, {}, false);
  patient.want_steps(std::array<uint64_t, 3>{5, 6, 7}, "w", 4);
  CHECK(patient.answers.offers.empty());
  REQUIRE(world.exchange->add(patient.endpoint).ok());
  CHECK(patient.answers.offers.empty());
  REQUIRE(world.publish("w", 6).ok());
  CHECK(patient.answers.offers.contains(7));
}

TEST_CASE("an endpoint that is removed is not asked any more, and is asked anew when it is back",
          "[exchange][subscription]") {
  World world;
  Peer publisher(world, 1, {}, true, wire::kFeatureSteps);
  Subscription subscription = world.exchange->subscribe("w", {.ahead = 6});
  CHECK(publisher.answers.wants.size() == 6);
  world.exchange->remove(publisher.endpoint);
  (void)publisher.session->progress(world.clock.time);
  REQUIRE(subscription.ready());
  CHECK(subscription.take().code() == Code::kCancelled);
  CHECK_FALSE(subscription.ready());
  (void)world.context.progress();
  CHECK(publisher.answers.wants.size() == 6);
  REQUIRE(world.exchange->add(publisher.endpoint).ok());
  CHECK(publisher.answers.wants.size() == 12);
  CHECK(subscription.next_step() == 0);
}

TEST_CASE("a name is forgotten when its subscription has ended", "[exchange][subscription]") {
  World world;
  for (size_t i = 0; i < Exchange::kIdleKeys + 100; ++i)
    (void)world.exchange->subscribe("name " + std::to_string(i), {.ahead = 2});
  CHECK(world.exchange->key_count() <= Exchange::kIdleKeys);
}

}  // namespace
}  // namespace sluice::test
