// Peers of an exchange that are lists of messages: each is delivered to a session over a link that
// keeps what the session answers.
#ifndef SLUICE_TESTS_EXCHANGE_STRANGERS_H_
#define SLUICE_TESTS_EXCHANGE_STRANGERS_H_

#include <catch2/catch.hpp>

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sluice/exchange/exchange.h>
#include <sluice/proto/session.h>
#include <sluice/runtime/context_core.h>
#include <sluice/runtime/peer_account.h>

namespace sluice::test {

// What a session sent to its peer.
struct Answers {
  std::map<uint64_t, Code> done;        // by the peer's id
  std::map<uint64_t, uint64_t> offers;  // our offer's id by the peer's token
  std::vector<uint64_t> wants;          // ids of our requests
  std::vector<uint64_t> want_steps;     // the step of each
  size_t want_messages = 0;             // that they came in
  size_t names_said = 0;                // in those
  size_t bytes = 0;
  uint64_t room = ~uint64_t{0};  // messages that still fit
  bool closed = false;
};

// A stream that takes everything.
class EagerStream final : public StreamLink {
 public:
  explicit EagerStream(Answers& answers) : answers_(answers) {
    traits_.inline_bytes = 64;
    traits_.data_bytes = 1000;
  }
  const LinkTraits& traits() const override { return traits_; }
  void set_client(LinkClient*, StreamClient*) override {}
  bool send(ConstBytes header, std::span<const ConstBytes>) override {
    if (answers_.room == 0) return false;
    --answers_.room;
    answers_.bytes += header.size();
    wire::Done done;
    wire::Offer offer;
    if (static_cast<wire::MessageType>(header[0]) == wire::MessageType::kDone &&
        wire::decode(header, done).ok())
      answers_.done[done.id] = done.code;
    if (static_cast<wire::MessageType>(header[0]) == wire::MessageType::kOffer &&
        wire::decode(header, offer).ok())
      answers_.offers[offer.about.supply().want] = offer.id;
    wire::Want want;
    if (static_cast<wire::MessageType>(header[0]) == wire::MessageType::kWant &&
        wire::decode(header, want).ok()) {
      ++answers_.want_messages;
      if (!want.key.empty()) ++answers_.names_said;
      for (size_t i = 0; i <= want.following.size(); ++i) {
        answers_.wants.push_back(i == 0 ? want.id : want.following[i - 1]);
        answers_.want_steps.push_back(want.about.key().step + i);
      }
    }
    return true;
  }
  bool push(ConstBytes, std::span<const ConstBytes>, uint64_t) override {
    return false;
  }  // the peer does not read
  void flush() override {}
  void settle(uint64_t) override {}
  void quarantine(StorageRef) override {}
  void close() override { answers_.closed = true; }
  std::string local_name() const override { return "here"; }
  std::string peer_name() const override { return "there"; }

 private:
  LinkTraits traits_;
  Answers& answers_;
};

class Clock final : public proto::SessionHost {
 public:
  void activate(proto::Session&) noexcept override {}
  Instant now() const override { return time; }
  Instant time = sluice::now();
};

// What each connection has before its peer's account is charged.
inline constexpr uint64_t kOwn = 64;

inline PeerLimits small_limits() {
  PeerLimits limits;
  limits.keys = {100, 400};
  limits.wants = {50, 200};
  return limits;
}

struct World {
  World(ExchangeOptions options = {}, PeerLimits limits = small_limits())
      : arena(Arena::create({.limit_bytes = 16u << 20,
                             .first_extent_bytes = 2u << 20,
                             .receive_reserve_bytes = 1u << 20})
                  .value()),
        context({.peer_limits = limits}, arena) {
    REQUIRE(context.initialise().ok());
    exchange = std::make_unique<Exchange>(context, std::move(options));
  }
  Result<Publication> publish(const std::string& name, uint64_t step = 1,
                              const PublishOptions& options = {}) {
    return exchange->publish({name, step}, context.allocate({1000}, uint8).value().freeze(),
                             options);
  }

  std::shared_ptr<Arena> arena;
  ContextCore context;
  Clock clock;
  std::unique_ptr<Exchange> exchange;
};

struct Peer {
  Peer(World& w, uint32_t user, KeyRights rights = {}, bool joins = true, uint64_t features = 0)
      : world(w) {
    session = std::make_shared<proto::Session>(proto::SessionParts{
        .link = std::make_unique<EagerStream>(answers),
        .arena = w.arena,
        .mailbox = w.context.mailbox(),
        .host = &w.clock,
        .ours = {.credit_messages = 256, .credit_bytes = 1 << 20},
        .peer = {.features = features},
        .options = {},
        .reason = "test",
        .account = w.context.peer_accounts().open(PeerIdentity::of_user(user)),
    });
    endpoint = Endpoint(session, &w.context);
    if (joins) REQUIRE(w.exchange->add(endpoint, std::move(rights)).ok());
  }
  ~Peer() { leave(); }
  void leave() {
    session->abort(Status(Code::kCancelled, Scope::kEndpoint, "test", "the end"));
    for (int i = 0; i < 3; ++i) (void)session->progress(world.clock.time);
  }
  template <typename Message>
  Status deliver(const Message& message, ConstBytes bytes = {}) {
    std::array<std::byte, wire::kMaxHeaderBytes> header;
    size_t length = wire::encode(message, header);
    BytesPayload payload{bytes};
    return session->handle_message(ConstBytes(header).first(length), payload, world.clock.time);
  }
  void want(uint64_t token, uint32_t key_id, std::string_view name, uint64_t step = 1) {
    REQUIRE(deliver(wire::Want{.id = token,
                               .about = wire::KeyWant{.key_id = key_id, .step = step},
                               .key = name})
                .ok());
  }
  void want_steps(std::span<const uint64_t> tokens, std::string_view name, uint64_t first) {
    REQUIRE(deliver(wire::Want{.id = tokens[0],
                               .about = wire::KeyWant{.step = first},
                               .key = name,
                               .following = wire::IdList(tokens.subspan(1))})
                .ok());
  }
  void cancel(uint64_t token) { REQUIRE(deliver(wire::Cancel{.id = token, .offer = false}).ok()); }
  bool waits(uint64_t token) const {
    return !answers.done.contains(token) && !answers.offers.contains(token);
  }

  World& world;
  Answers answers;
  std::shared_ptr<proto::Session> session;
  Endpoint endpoint;
};

inline uint64_t used(World& world, PeerResource resource) {
  return world.context.peer_accounts().used(resource);
}

}  // namespace sluice::test

#endif  // SLUICE_TESTS_EXCHANGE_STRANGERS_H_
