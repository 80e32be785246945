// Receives meet messages by tag and in order, whichever comes first.
#include <sluice/proto/matching.h>

#include <string>
#include <string_view>

#include <sluice/allocator/arena.h>
#include <sluice/proto/credits.h>
#include <sluice/proto/incoming.h>
#include <sluice/proto/peer_view.h>
#include <sluice/runtime/mailbox.h>

#include "tests/proto/parts.h"
#include "tests/proto/recording_transfer.h"

namespace sluice::proto {
namespace {

using test::Parts;
using test::RecordingTransfer;

wire::Hello window(uint64_t messages, uint64_t bytes) {
  wire::Hello hello;
  hello.credit_messages = messages;
  hello.credit_bytes = bytes;
  return hello;
}

// The receiving half of a session.
struct Receiver : Parts {
  explicit Receiver(const PeerLimits& limits = {}, uint64_t messages = 256,
                    const LinkTraits& traits = {})
      : Parts({}, limits, Arena::create({}).value(), traits),
        credits(window(messages, 1 << 20), {}) {
    operations.set_keeper(transfer);
  }
  ~Receiver() {
    matching.clear();
    operations.for_each([&](Operation& op) { operations.release(&op); });
    CHECK(charged(PeerResource::kUnexpectedBytes) == 0);
    views->abandon();
  }
  // Returns its id.
  OperationId receive(TagMatch match, size_t bytes) {
    memory.emplace_back(bytes);
    Buffer buffer = Buffer::wrap(memory.back().data(), bytes, nullptr, nullptr).value();
    Result<OperationId> posted =
        matching.post_receive(match, std::span(&buffer, 1), {.sink = this});
    REQUIRE(posted.ok());
    return *posted;
  }
  Status message(uint64_t id, Tag tag, std::string_view text, bool report = false) {
    wire::TaggedInline inlined{
        .id = id, .tag = tag, .payload_bytes = static_cast<uint32_t>(text.size())};
    inlined.report = report;
    BytesPayload payload(std::as_bytes(std::span(text)));
    return matching.on_message(inlined, payload);
  }
  Status offer(uint64_t id, Tag tag, uint64_t total) {
    wire::Offer offered;
    offered.id = id;
    offered.about = wire::TaggedOffer{.tag = tag};
    offered.total = total;
    offered.segment_count = 2;
    BytesPayload none{{}};
    return matching.on_offer(offered, none);
  }
  // What the receive with this id got; it has ended.
  std::string text_of(OperationId id) {
    operations.deliver_ready();
    for (Completion& completion : ended) {
      if (completion.id != id) continue;
      REQUIRE(completion.status.ok());
      const auto* bytes = reinterpret_cast<const char*>(completion.buffers[0].data());
      return std::string(bytes, completion.receipt.bytes);
    }
    FAIL("the receive has not ended");
    return "";
  }

  std::vector<std::vector<std::byte>> memory;
  Credits credits;
  ViewPool* views = ViewPool::create(&control, std::make_shared<Mailbox>(-1));
  RecordingTransfer transfer{{connection, operations, control, incoming, *views}};
  Incoming incoming{connection, operations, control, transfer};
  Matching matching{connection, operations, control, credits, incoming, 7};
};

}  // namespace

TEST_CASE("a message goes to the first posted receive that its tag fits", "[matching]") {
  Receiver receiver;
  OperationId of_two = receiver.receive({.tag = 2}, 10);
  OperationId of_any = receiver.receive({.tag = 0, .mask = 0}, 10);
  OperationId of_one = receiver.receive({.tag = 1}, 10);
  REQUIRE(receiver.message(1, 1, "first").ok());
  REQUIRE(receiver.message(2, 1, "second").ok());
  REQUIRE(receiver.message(3, 2, "third").ok());
  CHECK(receiver.text_of(of_any) == "first");
  CHECK(receiver.text_of(of_one) == "second");
  CHECK(receiver.text_of(of_two) == "third");
  CHECK(receiver.connection.counters.bytes_received == 5 + 6 + 5);
  CHECK_FALSE(receiver.matching.has_unexpected());
}

TEST_CASE("where credit for it ends the connection, an offered message is not fetched any more",
          "[matching][hostile]") {
  PeerLimits limits;
  limits.control_bytes = {.by_peer = 1,
                          .total = 1};  // nothing is kept for a peer that does not read
  for (const bool unexpected : {false, true}) {
    INFO("unexpected " << unexpected);
    Receiver receiver(limits, 1);
    if (unexpected) REQUIRE(receiver.offer(1, 1, 10).ok());
    receiver.link.room = 0;
    receiver.receive({.tag = 1}, 10);
    if (!unexpected) REQUIRE(receiver.offer(1, 1, 10).ok());
    CHECK(receiver.connection.over());
    CHECK(receiver.transfer.fetched.empty());
  }
}

TEST_CASE("unexpected messages are received in the order in which they came", "[matching]") {
  Receiver receiver;
  REQUIRE(receiver.message(1, 5, "a").ok());
  REQUIRE(receiver.message(2, 6, "b").ok());
  REQUIRE(receiver.message(3, 5, "c").ok());
  CHECK(receiver.matching.has_unexpected());
  CHECK(receiver.text_of(receiver.receive({.tag = 5}, 4)) == "a");
  CHECK(receiver.text_of(receiver.receive({.tag = 0, .mask = 0}, 4)) == "b");
  CHECK(receiver.text_of(receiver.receive({.tag = 5}, 4)) == "c");
  CHECK_FALSE(receiver.matching.has_unexpected());
}

TEST_CASE("a receive that is too small ends, and the message is kept for the next", "[matching]") {
  Receiver receiver;
  receiver.receive({.tag = 1}, 3);
  OperationId fits = receiver.receive({.tag = 1}, 4);
  REQUIRE(receiver.message(1, 1, "four").ok());
  CHECK(receiver.text_of(fits) == "four");
  REQUIRE(receiver.message(2, 1, "five!").ok());
  receiver.receive({.tag = 1}, 4);
  receiver.operations.deliver_ready();
  CHECK(receiver.matching.has_unexpected());
  CHECK(receiver.text_of(receiver.receive({.tag = 1}, 5)) == "five!");
  size_t refused = 0;
  for (const Completion& completion : receiver.ended)
    refused += completion.status.code() == Code::kInvalidArgument ? 1 : 0;
  CHECK(refused == 2);
}

TEST_CASE("an offer is fetched once a receive takes it, and the sender is asked only then",
          "[matching]") {
  Receiver receiver;
  REQUIRE(receiver.offer(41, 1, 100).ok());
  CHECK(receiver.transfer.fetched.empty());
  OperationId id = receiver.receive({.tag = 1}, 100);
  REQUIRE(receiver.transfer.fetched.size() == 1);
  CHECK(receiver.transfer.fetched[0].id == id);
  CHECK(receiver.transfer.fetched[0].offer_id == 41);
  CHECK(receiver.transfer.fetched[0].total == 100);
  CHECK(receiver.transfer.fetched[0].segments == 2);
  OperationId second = receiver.receive({.tag = 1}, 100);
  REQUIRE(receiver.offer(42, 1, 50).ok());
  REQUIRE(receiver.transfer.fetched.size() == 2);
  CHECK(receiver.transfer.fetched[1].id == second);
}

TEST_CASE("an offer that is withdrawn before its receive is answered, and gone", "[matching]") {
  Receiver receiver;
  REQUIRE(receiver.offer(41, 1, 100).ok());
  REQUIRE(receiver.message(42, 1, "stays").ok());
  CHECK_FALSE(receiver.matching.withdraw(42));  // it has come whole
  CHECK_FALSE(receiver.matching.withdraw(43));
  CHECK(receiver.matching.withdraw(41));
  CHECK_FALSE(receiver.matching.withdraw(41));
  REQUIRE(receiver.sent<wire::Done>().size() == 1);
  CHECK(receiver.sent<wire::Done>()[0].id == 41);
  CHECK(receiver.sent<wire::Done>()[0].code == Code::kCancelled);
  CHECK(receiver.text_of(receiver.receive({.tag = 1}, 100)) == "stays");
}

TEST_CASE("after the end whole messages can be received, offers cannot", "[matching]") {
  Receiver receiver;
  REQUIRE(receiver.offer(41, 1, 100).ok());
  REQUIRE(receiver.message(42, 2, "whole").ok());
  receiver.connection.state = EndpointState::kClosed;
  receiver.matching.drop_offers();
  CHECK(receiver.text_of(receiver.receive({.tag = 2}, 10)) == "whole");
  Buffer buffer = Buffer::wrap(receiver.memory[0].data(), 5, nullptr, nullptr).value();
  CHECK(receiver.matching.post_receive({.tag = 1}, std::span(&buffer, 1), {}).code() ==
        Code::kWrongState);
}

TEST_CASE("a sender that asked hears that its message was received", "[matching]") {
  Receiver receiver;
  REQUIRE(receiver.message(1, 1, "later", true).ok());
  CHECK(receiver.sent<wire::Done>().empty());
  receiver.receive({.tag = 1}, 10);
  REQUIRE(receiver.sent<wire::Done>().size() == 1);
  receiver.receive({.tag = 1}, 10);
  REQUIRE(receiver.message(2, 1, "at once", true).ok());
  REQUIRE(receiver.sent<wire::Done>().size() == 2);
  CHECK(receiver.sent<wire::Done>()[1].bytes == 7);
}

TEST_CASE("a peer may not send beyond its credit, and gets it back by and by", "[matching]") {
  Receiver receiver({}, 4);
  for (uint64_t i = 1; i <= 4; ++i) REQUIRE(receiver.message(i, 1, "x").ok());
  CHECK(receiver.sent<wire::Credit>().empty());
  for (int i = 0; i < 3; ++i) receiver.receive({.tag = 1}, 1);
  REQUIRE(receiver.sent<wire::Credit>().size() == 1);
  CHECK(receiver.sent<wire::Credit>()[0].messages == 7);
  for (uint64_t i = 5; i <= 7; ++i) REQUIRE(receiver.message(i, 1, "x").ok());
  CHECK(receiver.message(8, 1, "x").code() == Code::kCorrupt);
}

namespace {

LinkTraits far_away() {
  LinkTraits traits;
  traits.credit_grows = true;
  return traits;
}

// So many messages that find a receive, each time the credit is used up 20 ms after the last.
void stream(Receiver& receiver, uint64_t messages) {
  uint64_t allowed = 4;
  for (uint64_t i = 1; i <= messages; ++i) {
    if (i > allowed) {
      receiver.connection.last_heard += std::chrono::milliseconds(20);
      allowed = receiver.sent<wire::Credit>().back().messages;
    }
    receiver.receive({.tag = 1}, 1);
    REQUIRE(receiver.message(i, 1, "x").ok());
  }
}

uint64_t credit_of(const Receiver& receiver, uint64_t messages) {
  return receiver.sent<wire::Credit>().back().messages - messages;
}

}  // namespace

TEST_CASE("a peer far away that waits for credit gets more, which is charged to it", "[matching]") {
  Receiver receiver({}, 4, far_away());
  stream(receiver, 200);
  CHECK(credit_of(receiver, 200) > 16);
  CHECK(receiver.charged(PeerResource::kUnexpectedBytes) > 12 * sizeof(Unexpected));
  CHECK(receiver.charged(PeerResource::kUnexpectedBytes) < 512 * sizeof(Unexpected));
}

TEST_CASE("a peer nearby, and one that has much already, keep the credit of HELLO", "[matching]") {
  Receiver nearby({}, 4);
  stream(nearby, 200);
  CHECK(credit_of(nearby, 200) <= 4);
  CHECK(nearby.charged(PeerResource::kUnexpectedBytes) == 0);

  PeerLimits limits;
  limits.unexpected_bytes.by_peer = 4 * 12 * sizeof(Unexpected);
  Receiver limited(limits, 4, far_away());
  stream(limited, 200);
  CHECK(credit_of(limited, 200) <= 16);
  CHECK(limited.charged(PeerResource::kUnexpectedBytes) == 12 * sizeof(Unexpected));
}

TEST_CASE("what comes by wider credit is paid for already, and given back at the end",
          "[matching]") {
  PeerLimits limits;
  limits.unexpected_bytes.by_peer = 4 * 60 * sizeof(Unexpected);
  Receiver receiver(limits, 4, far_away());
  stream(receiver, 200);
  const uint64_t promised = receiver.charged(PeerResource::kUnexpectedBytes);
  for (uint64_t i = 201; i <= 200 + credit_of(receiver, 200); ++i)
    REQUIRE(receiver.message(i, 1, "").ok());
  CHECK(receiver.charged(PeerResource::kUnexpectedBytes) == promised);
  receiver.matching.drop_offers();
  CHECK(receiver.matching.has_unexpected());
  CHECK(receiver.charged(PeerResource::kUnexpectedBytes) <= promised);
  receiver.matching.clear();
  CHECK(receiver.charged(PeerResource::kUnexpectedBytes) == 0);
}

TEST_CASE("unexpected bytes are charged to the peer beyond what each connection has",
          "[matching]") {
  PeerLimits limits;
  limits.unexpected_bytes.by_peer = 64u << 10;
  Receiver receiver(limits);
  const std::string text(4000, 'x');
  CHECK(receiver.charged(PeerResource::kUnexpectedBytes) == 0);
  uint64_t id = 0;
  Status refused;
  while (refused.ok()) {
    refused = receiver.message(++id, 1, text);
    REQUIRE(id < 100);
  }
  CHECK(refused.code() == Code::kNoMemory);
  CHECK(id > 16);
  CHECK(receiver.charged(PeerResource::kUnexpectedBytes) <= limits.unexpected_bytes.by_peer);
  // Received in part, given back in part; the rest when the receiver ends (its destructor).
  const uint64_t before = receiver.charged(PeerResource::kUnexpectedBytes);
  CHECK(receiver.text_of(receiver.receive({.tag = 1}, 4000)) == text);
  CHECK(receiver.charged(PeerResource::kUnexpectedBytes) < before);
}

}  // namespace sluice::proto
