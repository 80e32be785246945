// What the parts of a session stand on in their own tests: a link that records, a time that the
// test says, an account with limits.
#ifndef SLUICE_TESTS_PROTO_PARTS_H_
#define SLUICE_TESTS_PROTO_PARTS_H_

#include <catch2/catch.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sluice/proto/connection.h>
#include <sluice/proto/control_queue.h>
#include <sluice/proto/operations.h>
#include <sluice/runtime/peer_account.h>

namespace sluice::proto {

// Parts know a session by its name only: they pass it to its host.
class Session {};

namespace test {

// Takes messages while it has room.
class RecordingLink final : public Link {
 public:
  const LinkTraits& traits() const override { return traits_; }
  bool send(ConstBytes header, std::span<const ConstBytes>) override {
    if (room == 0) return false;
    --room;
    sent.emplace_back(header.begin(), header.end());
    return true;
  }
  void flush() override { ++flushes; }
  void quarantine(StorageRef) override {}
  void close() override {}
  std::string local_name() const override { return "here"; }
  std::string peer_name() const override { return "there"; }

  uint64_t room = ~uint64_t{0};
  uint64_t flushes = 0;
  std::vector<std::vector<std::byte>> sent;

 private:
  LinkTraits traits_;
};

// A session that nobody tells anything.
class NoMessages final : public LinkClient {
 public:
  Status handle_message(ConstBytes, PayloadReader&, Instant) override { return Status(); }
  Status handle_tagged_inline(const wire::TaggedInline&, PayloadReader&, Instant) override {
    return Status();
  }
  void writable(Instant) override {}
  void link_down(const Status&, Instant) override {}
};

class Parts : public SessionHost, public ConnectionEnd, public CompletionSink {
 public:
  explicit Parts(SessionOptions options = {}, const PeerLimits& limits = {},
                 std::shared_ptr<Arena> arena = nullptr, const LinkTraits& traits = {})
      : accounts(resolve(limits, uint64_t{1} << 30)),
        connection{.link = link,
                   .host = *this,
                   .session = session,
                   .end = *this,
                   .traits = traits,
                   .arena = std::move(arena),
                   .account = accounts.open(PeerIdentity::of_process()),
                   .options = std::move(options)},
        control(connection),
        operations(connection, 1) {}

  void activate(Session&) noexcept override { ++activations; }
  Instant now() const override { return time; }
  void fail_connection(const Status& why) override {
    connection.link_dead = true;
    failure = why;
  }
  void on_completion(Completion&& completion) noexcept override {
    ended.push_back(std::move(completion));
  }
  // The messages of this type that have left, in order.
  template <typename Message>
  std::vector<Message> sent() const {
    std::vector<Message> found;
    for (const std::vector<std::byte>& bytes : link.sent) {
      Message message;
      if (static_cast<wire::MessageType>(bytes[0]) != type_of(message)) continue;
      REQUIRE(wire::decode(ConstBytes(bytes), message).ok());
      found.push_back(message);
    }
    return found;
  }
  uint64_t charged(PeerResource resource) const { return connection.account->used(resource); }

  Instant time{std::chrono::hours(1)};
  RecordingLink link;
  Session session;
  PeerAccounts accounts;
  Connection connection;
  ControlQueue control;
  Operations operations;
  uint64_t activations = 0;
  Status failure;
  std::vector<Completion> ended;

 private:
  static wire::MessageType type_of(const wire::Ping&) { return wire::MessageType::kPing; }
  static wire::MessageType type_of(const wire::Done&) { return wire::MessageType::kDone; }
  static wire::MessageType type_of(const wire::Release&) { return wire::MessageType::kRelease; }
  static wire::MessageType type_of(const wire::Credit&) { return wire::MessageType::kCredit; }
};

}  // namespace test
}  // namespace sluice::proto

#endif  // SLUICE_TESTS_PROTO_PARTS_H_
