// Peers that were met and have not been paired: how long they are kept.
#include <sluice/select/unpaired.h>

#include <catch2/catch.hpp>

#include <memory>

namespace sluice::select {
namespace {

using namespace std::chrono_literals;

struct Peer final : MetPeer {
  wire::Uuid mark{};
  explicit Peer(uint8_t number) { mark.bytes[0] = std::byte{number}; }
  const wire::Uuid& token() const override { return mark; }
  Result<std::shared_ptr<EndpointCore>> make_endpoint(const Requirements&,
                                                      const proto::SessionOptions&,
                                                      std::string) override {
    return Status(Code::kUnsupported, Scope::kOperation, "test", "no endpoint");
  }
};

wire::Uuid token(uint8_t number) { return Peer(number).mark; }

TEST_CASE("a peer that was met is kept until the pairing limit, and not longer") {
  const Instant start{1min};
  Unpaired unpaired;
  unpaired.add(std::make_unique<Peer>(1), start);
  unpaired.add(std::make_unique<Peer>(2), start + 1s);
  unpaired.expire(start + kPairingLimit - 1ns);
  CHECK(unpaired.take(token(1)) != nullptr);
  CHECK(unpaired.take(token(1)) == nullptr);
  unpaired.expire(start + kPairingLimit + 1s);
  CHECK(unpaired.take(token(2)) == nullptr);
}

TEST_CASE("the meetings of all greetings that may wait for accept() are kept, in whatever order") {
  constexpr uint8_t kGreetings = 128;  // ListenOptions::backlog
  Unpaired unpaired;
  for (uint8_t i = 0; i < kGreetings; ++i) unpaired.add(std::make_unique<Peer>(i), Instant{1min});
  for (uint8_t i = kGreetings; i-- > 0;) CHECK(unpaired.take(token(i)) != nullptr);
}

TEST_CASE("a limit that ended while nobody looked is so much later") {
  const Instant start{1min}, back = start + 1h;
  Unpaired unpaired;
  unpaired.add(std::make_unique<Peer>(1), start);
  unpaired.add(std::make_unique<Peer>(2), start);
  unpaired.expire(back);
  CHECK(unpaired.take(token(1)) != nullptr);
  unpaired.expire(back + kLateLook);
  CHECK(unpaired.take(token(2)) == nullptr);
}

}  // namespace
}  // namespace sluice::select
