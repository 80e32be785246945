// The decorator itself: harmless faults change when something happens and nothing else.
#include <catch2/catch.hpp>

#include <cstring>
#include <deque>
#include <string>

#include <sluice/fault/injector.h>
#include <sluice/fault/link.h>

namespace sluice::fault {
namespace {

std::vector<std::byte> ping(uint64_t nonce) {
  std::vector<std::byte> header(wire::kMaxHeaderBytes);
  header.resize(wire::encode(wire::Ping{.nonce = nonce}, header));
  return header;
}

class NoPayload final : public PayloadReader {
 public:
  void read(MutableBytes) override {}
};

// A path without an other end.
struct Inner final : StreamLink {
  void set_client(LinkClient* session, StreamClient* transfer) override {
    client = session;
    data = transfer;
  }
  const LinkTraits& traits() const override { return traits_; }
  bool send(ConstBytes header, std::span<const ConstBytes>) override {
    if (room == 0) return false;
    --room;
    sent.emplace_back(header.begin(), header.end());
    return true;
  }
  bool push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override {
    wire::Data data;
    REQUIRE(wire::decode(header, data).ok());
    if (room == 0) return false;
    --room;
    std::string bytes;
    for (ConstBytes part : payload)
      bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
    CHECK(bytes.size() == data.payload_bytes);
    CHECK(data.offset == pushed.size());
    CHECK(cookie == 77);
    pushed += bytes;
    ++pieces;
    return true;
  }
  void settle(uint64_t cookie) override { settled.push_back(cookie); }
  void flush() override {}
  void quarantine(StorageRef) override {}
  void close() override { closed = true; }
  std::string local_name() const override { return "here"; }
  std::string peer_name() const override { return "there"; }

  LinkTraits traits_;
  size_t room = 1000;
  std::vector<std::vector<std::byte>> sent;
  std::string pushed;
  std::vector<uint64_t> settled;
  LinkClient* client = nullptr;
  StreamClient* data = nullptr;
  int pieces = 0;
  bool closed = false;
};

struct Session final : LinkClient, StreamClient {
  Status handle_message(ConstBytes header, PayloadReader&, Instant) override {
    wire::Ping message;
    Status status = wire::decode(header, message);
    if (status.ok()) heard.push_back(message.nonce);
    return status;
  }
  Status handle_tagged_inline(const wire::TaggedInline&, PayloadReader&, Instant) override {
    return Status();
  }
  Placement place(uint64_t, uint64_t, uint64_t) override { return {}; }
  Status placed(uint64_t, uint64_t, uint64_t, Instant) override { return Status(); }
  void pushed(uint64_t, uint64_t length, Instant) override { reported += length; }
  void writable(Instant) override { ++writables; }
  void link_down(const Status& why, Instant) override {
    CHECK(end.ok());
    end = why;
  }
  std::vector<uint64_t> heard;
  uint64_t reported = 0;
  int writables = 0;
  Status end;
};

struct Setup {
  explicit Setup(const Plan& plan) : injector(std::make_shared<Injector>(plan)) { connect(); }
  void connect() {
    auto path = std::make_unique<Inner>();
    inner = path.get();
    link = injector->decorate(std::unique_ptr<StreamLink>(std::move(path)));
    link->set_client(&session, &session);
  }
  Status arrive(uint64_t nonce) {
    NoPayload nothing;
    return inner->client->handle_message(ping(nonce), nothing, Instant{});
  }
  // Until nothing is held back.
  void turn_all() {
    for (int i = 0; injector->next_timeout() != kNever; ++i) {
      REQUIRE(i < 10'000);
      injector->progress(Instant{});
    }
  }
  std::shared_ptr<Injector> injector;
  Session session;
  Inner* inner = nullptr;
  std::unique_ptr<StreamLink> link;
};

std::vector<uint64_t> numbers(uint64_t count) {
  std::vector<uint64_t> all;
  for (uint64_t i = 0; i < count; ++i) all.push_back(i);
  return all;
}

TEST_CASE("late messages come later, in order, and all of them", "[fault]") {
  Setup setup({.seed = 3, .late_percent = 50});
  for (uint64_t i = 0; i < 100; ++i) CHECK(setup.arrive(i).ok());
  CHECK(setup.session.heard.size() < 100);
  setup.turn_all();
  CHECK(setup.session.heard == numbers(100));
  CHECK(setup.injector->held_back() > 0);
}

TEST_CASE("the same seed does the same", "[fault]") {
  auto refusals = [](uint64_t seed) {
    Setup setup({.seed = seed, .busy_percent = 30});
    std::string pattern;
    for (uint64_t i = 0; i < 64; ++i) {
      pattern += setup.link->send(ping(i), {}) ? '.' : 'x';
      setup.turn_all();
    }
    return pattern;
  };
  CHECK(refusals(5) == refusals(5));
  CHECK(refusals(5) != refusals(6));
}

TEST_CASE("whoever is told that there is no room is told when there is", "[fault]") {
  Setup setup({.seed = 4, .busy_percent = 40});
  for (uint64_t i = 0; i < 50;) {
    int before = setup.session.writables;
    if (setup.link->send(ping(i), {})) {
      ++i;
      continue;
    }
    CHECK_FALSE(setup.link->send(ping(i), {}));  // also at once
    setup.turn_all();
    CHECK(setup.session.writables == before + 1);
  }
  CHECK(setup.inner->sent.size() == 50);
}

TEST_CASE("a push in two pieces brings the same bytes, and nothing overtakes the second",
          "[fault]") {
  Setup setup({.seed = 5, .split_percent = 100});
  std::string text = "the quick brown fox";
  ConstBytes bytes = std::as_bytes(std::span(text.data(), text.size()));
  std::array<ConstBytes, 2> payload = {bytes.first(7), bytes.subspan(7)};
  std::vector<std::byte> header(wire::kMaxHeaderBytes);
  header.resize(wire::encode(
      wire::Data{.id = 9, .offset = 0, .payload_bytes = static_cast<uint32_t>(text.size())},
      header));
  setup.inner->room = 1;
  REQUIRE(setup.link->push(header, payload, 77));
  CHECK(setup.inner->pieces == 1);
  CHECK_FALSE(setup.link->send(ping(1), {}));
  setup.inner->room = 10;
  setup.inner->client->writable(Instant{});
  CHECK(setup.inner->pieces == 2);
  CHECK(setup.inner->pushed == text);
  CHECK(setup.session.writables == 1);
  CHECK(setup.link->send(ping(1), {}));
}

TEST_CASE("the second piece of a settled push is what it was", "[fault]") {
  Setup setup({.seed = 5, .split_percent = 100});
  const std::string text = "the quick brown fox";
  std::string memory = text;
  std::array<ConstBytes, 1> payload = {std::as_bytes(std::span(memory.data(), memory.size()))};
  std::vector<std::byte> header(wire::kMaxHeaderBytes);
  header.resize(wire::encode(
      wire::Data{.id = 9, .offset = 0, .payload_bytes = static_cast<uint32_t>(text.size())},
      header));
  setup.inner->room = 1;
  REQUIRE(setup.link->push(header, payload, 77));
  setup.link->settle(77);
  CHECK(setup.inner->settled == std::vector<uint64_t>{77});
  memory.assign(memory.size(), 'x');
  setup.inner->room = 10;
  setup.inner->client->writable(Instant{});
  CHECK(setup.inner->pushed == text);
}

TEST_CASE("what came before the end is heard before the end", "[fault]") {
  Setup setup({.seed = 6, .late_percent = 100});
  for (uint64_t i = 0; i < 10; ++i) CHECK(setup.arrive(i).ok());
  setup.inner->data->pushed(77, 5, Instant{});
  setup.inner->client->link_down(Status(Code::kUnreachable, Scope::kEndpoint, "test"), Instant{});
  CHECK(setup.session.heard == numbers(10));
  CHECK(setup.session.reported == 5);
  CHECK(setup.session.end == Code::kUnreachable);
  setup.inner->client->link_down(Status(Code::kUnreachable, Scope::kEndpoint, "test"),
                                 Instant{});  // told once
}

TEST_CASE("a strike hits one call of one connection", "[fault]") {
  Setup setup({});
  setup.injector->strike_next({.call = Call::kMessage, .nth = 3, .action = Action::kDrop});
  for (uint64_t i = 0; i < 5; ++i) CHECK(setup.arrive(i).ok());
  CHECK_FALSE(setup.injector->struck());  // the connection was there before
  CHECK(setup.session.heard == numbers(5));
  setup.session.heard.clear();
  setup.connect();
  for (uint64_t i = 0; i < 5; ++i) CHECK(setup.arrive(i).ok());
  CHECK(setup.injector->struck());
  CHECK(setup.session.heard == std::vector<uint64_t>{0, 1, 3, 4});
}

TEST_CASE("a truncated message is refused as if the peer had sent it", "[fault]") {
  Setup setup({});
  setup.injector->strike_next(
      {.call = Call::kMessage, .nth = 1, .action = Action::kTruncateHeader});
  setup.connect();
  std::vector<std::byte> offer(wire::kMaxHeaderBytes);
  offer.resize(wire::encode(wire::Offer{.total = 5}, offer));
  NoPayload nothing;
  CHECK(setup.inner->client->handle_message(offer, nothing, Instant{}) == Code::kCorrupt);
}

TEST_CASE("a broken path swallows what is sent and tells it at the next turn", "[fault]") {
  Setup setup({});
  setup.injector->strike_next({.call = Call::kSend, .nth = 2, .action = Action::kFail});
  setup.connect();
  for (uint64_t i = 0; i < 4; ++i) CHECK(setup.link->send(ping(i), {}));
  CHECK(setup.inner->sent.size() == 1);
  CHECK(setup.session.end.ok());
  setup.turn_all();
  CHECK(setup.session.end == Code::kUnreachable);
  setup.link->close();
  CHECK(setup.inner->closed);
}

}  // namespace
}  // namespace sluice::fault
