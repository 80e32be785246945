// The exchange and its session among peers that ask for too much.
#include <catch2/catch.hpp>

#include <array>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <sluice/exchange/exchange.h>
#include <sluice/proto/session.h>
#include <sluice/runtime/peer_account.h>

#include "tests/exchange/strangers.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

TEST_CASE("names that strangers asked for go with them, and never keep the program from publishing",
          "[exchange]") {
  World world;
  REQUIRE(world.publish("before").ok());
  {
    std::vector<std::unique_ptr<Peer>> strangers;
    for (uint32_t user = 1; user <= 16; ++user) {
      strangers.push_back(std::make_unique<Peer>(world, user));
      Peer& stranger = *strangers.back();
      for (uint32_t i = 0; i < 1000; ++i) {
        stranger.want(i + 1, i, "u" + std::to_string(user) + "/" + std::to_string(i));
        stranger.cancel(i + 1);
      }
    }
    // Three quarters, and a little for each of those that came later.
    CHECK(used(world, PeerResource::kKeys) >= 300);
    CHECK(used(world, PeerResource::kKeys) <= 400);
    CHECK(world.exchange->key_count() == 1 + 16 * kOwn + used(world, PeerResource::kKeys));
    CHECK(world.publish("while it is full").ok());
  }
  CHECK(used(world, PeerResource::kKeys) == 0);
  CHECK(world.exchange->key_count() == 2);
  CHECK(world.publish("after").ok());
}

TEST_CASE(
    "a peer at its limit of names is refused, its neighbour is not, and ids that are used again "
    "cost nothing",
    "[exchange]") {
  World world;
  Peer greedy(world, 1), modest(world, 2);
  for (uint32_t i = 0; i < 200; ++i) {
    greedy.want(i + 1, i, "k" + std::to_string(i));
    greedy.cancel(i + 1);
  }
  CHECK(used(world, PeerResource::kKeys) == 100);
  greedy.want(1000, 300, "one more");
  CHECK(greedy.answers.done.at(1000) == Code::kTryAgain);
  greedy.want(1001, 3, "another name for an old id");
  CHECK(greedy.waits(1001));
  modest.want(1, 0, "one more");
  CHECK(modest.waits(1));
  Peer same_address(world, 1);  // its own first names are not charged
  same_address.want(1, 0, "one more");
  CHECK(same_address.waits(1));
  CHECK(used(world, PeerResource::kKeys) == 100);
  // The first that is charged comes back like the others.
  for (uint32_t i = 1; i <= kOwn; ++i) same_address.want(i + 1, i, "m" + std::to_string(i));
  CHECK(used(world, PeerResource::kKeys) == 100);  // it has its address's limit
  greedy.leave();
  CHECK(used(world, PeerResource::kKeys) == 0);
  same_address.want(100, 100, "the first that is charged");
  CHECK(used(world, PeerResource::kKeys) == 1);
  Peer third(world, 1);
  same_address.leave();
  CHECK(used(world, PeerResource::kKeys) == 0);
  REQUIRE(world.publish("one more").ok());
  CHECK(modest.answers.offers.contains(1));
}

TEST_CASE(
    "a peer's waiting requests are its own limit's, also before there is an exchange, and a "
    "cancelled one makes room",
    "[exchange]") {
  for (bool joins : {true, false}) {
    INFO((joins ? "in the exchange" : "before it"));
    World world;
    Peer greedy(world, 1, {}, joins), modest(world, 2, {}, joins);
    for (uint64_t i = 1; i <= kOwn + 60; ++i) greedy.want(i, 0, "k", i);
    CHECK(used(world, PeerResource::kWants) == 50);
    CHECK(greedy.waits(kOwn + 50));
    CHECK(greedy.answers.done.at(kOwn + 51) == Code::kTryAgain);
    modest.want(1, 0, "k");
    CHECK(modest.waits(1));
    greedy.cancel(7);
    greedy.want(1000, 0, "k", 1000);
    CHECK(greedy.waits(1000));
    greedy.leave();
    CHECK(used(world, PeerResource::kWants) == 0);
  }
}

TEST_CASE(
    "a peer that says it has what it was not sent yet ends its connection, and counts as none",
    "[exchange]") {
  World world;
  Peer liar(world, 1);
  auto publication = world.publish("k");
  REQUIRE(publication.ok());
  liar.want(1, 0, "k");
  REQUIRE(liar.answers.offers.contains(1));
  Status lied = liar.deliver(wire::Done{.id = liar.answers.offers.at(1), .code = Code::kOk});
  CHECK(lied.code() == Code::kCorrupt);
  CHECK(publication->readers_done() == 0);
}

TEST_CASE("early requests reach the exchange in the order in which they came", "[exchange]") {
  World world;
  Peer peer(world, 1, {}, false);
  for (uint64_t token : {9, 2, 7, 30, 1}) peer.want(token, 0, "k");
  peer.cancel(7);
  REQUIRE(world.exchange->add(peer.endpoint).ok());
  auto publication = world.publish("k", 1, {.readers = 2});
  REQUIRE(publication.ok());
  CHECK(peer.answers.offers.contains(9));
  CHECK(peer.answers.offers.contains(2));
  CHECK(peer.waits(30));
  CHECK(peer.waits(1));
}

TEST_CASE("a request with the token of one that waits is refused and disturbs it not",
          "[exchange]") {
  World world;
  Peer peer(world, 1);
  peer.want(5, 0, "k");
  peer.want(5, 0, "k", 2);
  CHECK(peer.answers.done.at(5) == Code::kInvalidArgument);
  REQUIRE(world.publish("k").ok());
  CHECK(peer.answers.offers.contains(5));
}

TEST_CASE("a peer gets the keys that it may want and no others", "[exchange]") {
  World world({.allow = [](const EndpointInfo&, const Key& key, KeyAccess access) {
    return access == KeyAccess::kWant && key.step != 13;
  }});
  Peer reader(world, 1, {.may_want = {"weights/*", "bias"}});
  Peer nobody(world, 2, {.may_want = {}});
  for (const char* name : {"weights/1", "bias", "bias2", "gradients/1"})
    REQUIRE(world.publish(name, 1, {.readers = until_retired}).ok());
  reader.want(1, 0, "weights/1");
  reader.want(2, 1, "bias");
  reader.want(3, 2, "bias2");
  reader.want(4, 3, "gradients/1");
  reader.want(5, 0, "", 13);
  nobody.want(1, 0, "bias");
  CHECK(reader.answers.offers.contains(1));
  CHECK(reader.answers.offers.contains(2));
  CHECK(reader.answers.done.at(3) == Code::kAccessDenied);
  CHECK(reader.answers.done.at(4) == Code::kAccessDenied);
  CHECK(reader.answers.done.at(5) == Code::kAccessDenied);
  CHECK(nobody.answers.done.at(1) == Code::kAccessDenied);
}

TEST_CASE("a fetch asks only those who may supply the key", "[exchange]") {
  World world;
  Peer worker(world, 1, {.may_want = {"*"}, .may_supply = {"gradients/*"}});
  Peer server(world, 2);
  const size_t worker_heard = worker.answers.bytes, server_heard = server.answers.bytes;
  Fetch fetch = world.exchange->fetch({"weights", 1}, after(world.context.now(), 10s));
  CHECK(worker.answers.bytes == worker_heard);
  CHECK(server.answers.bytes > server_heard);
  Fetch denied = world.exchange->fetch({"weights", 1}, after(world.context.now(), 10s),
                                       {.from = &worker.endpoint});
  REQUIRE(denied.ready());
  CHECK(denied.take().code() == Code::kAccessDenied);
  Fetch allowed = world.exchange->fetch({"gradients/1", 1}, after(world.context.now(), 10s),
                                        {.from = &worker.endpoint});
  CHECK(worker.answers.bytes > worker_heard);
}

TEST_CASE(
    "a reader that stalls loses its place when the supply's time is over, and one who waits gets "
    "it",
    "[exchange]") {
  World world({.supply_timeout = 5s});
  Peer stalls(world, 1), waits(world, 2);
  stalls.want(1, 0, "k");
  auto publication = world.publish("k");
  REQUIRE(publication.ok());
  CHECK(stalls.answers.offers.contains(1));
  waits.want(1, 0, "k");
  CHECK(waits.waits(1));
  world.clock.time = after(sluice::now(), 4s);
  stalls.session->handle_timeout(world.clock.time);
  (void)stalls.session->progress(world.clock.time);
  CHECK(waits.waits(1));
  world.clock.time = after(sluice::now(), 6s);
  stalls.session->handle_timeout(world.clock.time);
  (void)stalls.session->progress(world.clock.time);
  CHECK(waits.answers.offers.contains(1));
}

TEST_CASE("the place of a reader that fails goes to a fetch of the program itself", "[exchange]") {
  World world;
  Peer reader(world, 1);
  auto publication = world.publish("k");
  REQUIRE(publication.ok());
  reader.want(1, 0, "k");
  CHECK(reader.answers.offers.contains(1));
  Fetch own = world.exchange->fetch({"k", 1}, after(world.context.now(), 10s));
  CHECK_FALSE(own.ready());
  reader.leave();
  REQUIRE(own.ready());
  CHECK(own.take().ok());
  CHECK(publication->ready());
}

TEST_CASE("an endpoint that leaves the exchange is told that its requests are not answered",
          "[exchange]") {
  World world;
  Peer peer(world, 1);
  peer.want(1, 0, "k");
  peer.want(2, 0, "k", 2);
  world.exchange->remove(peer.endpoint);
  CHECK(peer.answers.done.at(1) == Code::kTryAgain);
  CHECK(peer.answers.done.at(2) == Code::kTryAgain);
  CHECK(used(world, PeerResource::kWants) == 0);
  CHECK(used(world, PeerResource::kKeys) == 0);
}

TEST_CASE("2^20 guesses made of all that HELLO and a peer's own grants tell open no grant",
          "[exchange]") {
  World world;
  Peer one(world, 1), other(world, 2);
  Buffer secret = world.context.allocate({4096}, uint8).value();
  RemoteKey hidden = one.session->grant(secret, {.rights = Right::kRead}).value();
  std::vector<RemoteKey> own;
  for (int i = 0; i < 64; ++i)
    own.push_back(one.session->grant(secret, {.rights = Right::kWrite}).value());
  for (const RemoteKey& key : own) REQUIRE(key.grant != hidden.grant);
  const wire::Hello hello = local_hello(0);
  const std::array<uint64_t, 6> told = {
      hello.incarnation,    hello.pid,        hello.uid, hello.network_namespace,
      hello.user_namespace, hello.arena_bytes};
  uint64_t token = 1, refused = 0;
  for (uint64_t i = 0; i < uint64_t{1} << 20; ++i) {
    const uint64_t base = i % 2 == 0 ? told[i / 2 % told.size()] : own[i / 2 % own.size()].grant;
    const uint64_t near = i >> 7;
    const std::array<uint64_t, 4> numbers = {base + near, base - near, base ^ near, near};
    const uint64_t number = numbers[i / 128 % 4];
    // What the first version of these keys did with number and incarnation.
    const auto epoch =
        static_cast<uint32_t>((number + hello.incarnation) * 0x9E3779B97F4A7C15u >> 32);
    REQUIRE(one
                .deliver(wire::Want{
                    .id = token,
                    .about = wire::ReadWant{.grant = number,
                                            .epoch = i % 3 == 0 ? epoch : own[i % own.size()].epoch,
                                            .length = 64}})
                .ok());
    refused += one.answers.done.contains(token) && one.answers.done[token] == Code::kAccessDenied;
    one.answers.done.clear();
    ++token;
  }
  CHECK(refused == uint64_t{1} << 20);
  CHECK(one.answers.offers.empty());
  // The key itself works, on its own connection alone.
  REQUIRE(one.deliver(wire::Want{.id = token,
                                 .about = wire::ReadWant{.grant = hidden.grant,
                                                         .epoch = hidden.epoch,
                                                         .length = 64}})
              .ok());
  CHECK(one.answers.offers.contains(token));
  REQUIRE(
      other
          .deliver(wire::Want{
              .id = 1,
              .about = wire::ReadWant{.grant = hidden.grant, .epoch = hidden.epoch, .length = 64}})
          .ok());
  CHECK(other.answers.done.at(1) == Code::kAccessDenied);
}

TEST_CASE(
    "messages that nobody receives are charged to their peer, whose connection ends at its limit",
    "[exchange]") {
  PeerLimits limits = small_limits();
  limits.unexpected_bytes = {10'000, 1'000'000};
  World world({}, limits);
  Peer greedy(world, 1), modest(world, 2);
  Status last;
  int taken = 0;
  while (last.ok() && taken < 200) {
    last = greedy.deliver(wire::Offer{
        .id = static_cast<uint64_t>(++taken), .about = wire::TaggedOffer{.tag = 1}, .total = 1000});
  }
  CHECK(last == Code::kNoMemory);
  CHECK(last.detail().find("user 1") != std::string_view::npos);
  CHECK(last.detail().find("unexpected_bytes") != std::string_view::npos);
  CHECK(taken < 100);
  CHECK(modest.deliver(wire::Offer{.id = 1, .about = wire::TaggedOffer{.tag = 1}, .total = 1000})
            .ok());
  greedy.leave();
  CHECK(used(world, PeerResource::kUnexpectedBytes) < 1000);
}

TEST_CASE(
    "control messages that a peer does not read are charged to it, and its connections end before "
    "those of others",
    "[exchange]") {
  PeerLimits limits = small_limits();
  limits.control_bytes = {100'000, 10'000'000};
  World world({}, limits);
  Peer first(world, 1), second(world, 1), modest(world, 2);
  for (Peer* peer : {&first, &second, &modest}) peer->answers.room = 0;
  for (uint64_t i = 0; i < 10'000; ++i) {
    (void)first.deliver(wire::Ping{.nonce = i});
    (void)second.deliver(wire::Ping{.nonce = i});
    if (i < 100) (void)modest.deliver(wire::Ping{.nonce = i});
  }
  CHECK(first.session->state() != EndpointState::kConnected);
  CHECK(modest.session->state() == EndpointState::kConnected);
  CHECK(used(world, PeerResource::kControlBytes) <= 200'000);
  first.leave();
  second.leave();
  modest.answers.room = ~uint64_t{0};
  modest.session->writable(world.clock.time);
  (void)modest.session->progress(world.clock.time);
  CHECK(used(world, PeerResource::kControlBytes) == 0);
}

TEST_CASE("a connection that nobody uses is closed after its idle limit, and a used one is not",
          "[exchange]") {
  World world;
  Answers answers;
  proto::SessionOptions options;
  options.idle_limit = 10s;
  auto session = std::make_shared<proto::Session>(
      proto::SessionParts{.link = std::make_unique<EagerStream>(answers),
                          .arena = world.arena,
                          .mailbox = world.context.mailbox(),
                          .host = &world.clock,
                          .ours = {},
                          .peer = {.credit_messages = 8, .credit_bytes = 1000},
                          .options = options,
                          .reason = "test"});
  const Tensor note = world.context.allocate({8}, uint8).value().freeze();
  auto pass = [&](Duration time) {
    world.clock.time = after(world.clock.time, time);
    session->handle_timeout(world.clock.time);
    (void)session->progress(world.clock.time);
  };
  pass(5s);
  REQUIRE(session->post_send(1, std::span(&note, 1), {}).ok());
  pass(10s);
  CHECK(session->state() == EndpointState::kConnected);
  std::array<std::byte, wire::kMaxHeaderBytes> header;
  BytesPayload none{{}};
  size_t length = wire::encode(wire::Ping{.nonce = 1}, header);
  REQUIRE(session->handle_message(ConstBytes(header).first(length), none, world.clock.time)
              .ok());  // a keepalive is no use
  pass(10s);
  CHECK(session->state() == EndpointState::kClosed);
}

TEST_CASE("a peer of an older version is not asked for its latest step, and the fetch says why",
          "[exchange]") {
  World world;
  Peer older(world, 1);
  for (bool from : {true, false}) {
    Fetch fetch =
        world.exchange->fetch({"w", kLatest}, kNever, {.from = from ? &older.endpoint : nullptr});
    REQUIRE(fetch.ready());
    Status refused = fetch.take().status();
    CHECK(refused.code() == Code::kUnsupported);
    CHECK(refused.detail().find("of an older version") != std::string_view::npos);
    CHECK(refused.detail().find("upgrade it, or fetch a step by its number") !=
          std::string_view::npos);
  }
  CHECK(older.answers.bytes == 0);
  // What is here can still be had.
  REQUIRE(world.publish("w", 3).ok());
  Fetch own = world.exchange->fetch({"w", kLatest}, kNever);
  REQUIRE(own.ready());
  CHECK(own.take()->step == 3);
}

TEST_CASE("a peer that does not answer with a step ends the fetch, and asks in vain itself",
          "[exchange]") {
  World world;
  Peer liar(world, 1, {}, true, wire::kFeatureLatest);
  auto answer = [&](const TensorDescriptor& layout, uint64_t step) {
    Fetch fetch = world.exchange->fetch({"w", kLatest}, kNever);
    REQUIRE_FALSE(fetch.ready());
    REQUIRE(liar.answers.wants.size() == 1);
    wire::Offer offer{.id = 900,
                      .flags = wire::Offer::kInline,
                      .about = wire::SupplyOffer{.want = liar.answers.wants.back()},
                      .total = layout.span_bytes(),
                      .payload_bytes = static_cast<uint32_t>(layout.span_bytes()),
                      .has_layout = true,
                      .layout = layout};
    liar.answers.wants.clear();
    REQUIRE(liar.deliver(offer, std::as_bytes(std::span(&step, 1)).first(offer.total)).ok());
    if (!fetch.ready()) return Code::kOk;
    return fetch.take().code();
  };
  const std::array<int64_t, 1> one = {1};
  auto word = TensorDescriptor::compact(one, uint64).value();
  CHECK(answer(word, kLatest) == Code::kCorrupt);
  CHECK(answer(word, kLatest - 1) == Code::kCorrupt);
  CHECK(answer(TensorDescriptor::compact(one, int64).value(), 1) == Code::kCorrupt);
  CHECK(answer(TensorDescriptor::compact(one, uint32).value(), 1) == Code::kCorrupt);
  CHECK(answer(word, 7) == Code::kOk);  // the step that it tells is asked for
  // Its own questions: with a destination, twice at once, and answered once.
  liar.answers.wants.clear();
  wire::Want into{.id = 1,
                  .about = wire::KeyWant{.step = wire::kNextStep},
                  .into = true,
                  .has_layout = true,
                  .layout = word,
                  .key = "v"};
  REQUIRE(liar.deliver(into).ok());
  CHECK(liar.answers.done.at(1) == Code::kInvalidArgument);
  liar.want(2, 0, "v", wire::kNextStep);
  liar.want(2, 0, "v", wire::kNextStep);
  CHECK(liar.answers.done.at(2) == Code::kInvalidArgument);
  REQUIRE(world.publish("v", 4).ok());
  CHECK(liar.answers.offers.contains(2));
  liar.want(3, 0, "none", wire::kNewestStep);
  CHECK(liar.answers.offers.contains(3));
}

}  // namespace
}  // namespace sluice::test
