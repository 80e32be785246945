// Which of several operations sends next over a stream of bytes.
#include <sluice/proto/stream_transfer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/proto/incoming.h>
#include <sluice/proto/peer_view.h>
#include <sluice/runtime/mailbox.h>

#include "tests/proto/parts.h"

namespace sluice::proto {
namespace {

constexpr size_t kChunk = 64;

// Takes DATA, and records whose it was.
class RecordingStream final : public StreamLink {
 public:
  RecordingStream() { traits_.data_bytes = kChunk; }
  void set_client(LinkClient*, StreamClient*) override {}
  const LinkTraits& traits() const override { return traits_; }
  bool send(ConstBytes, std::span<const ConstBytes>) override { return true; }
  bool push(ConstBytes header, std::span<const ConstBytes>, uint64_t) override {
    wire::Data data;
    REQUIRE(wire::decode(header, data).ok());
    pushed += static_cast<char>(data.id);
    if (pushed.size() == 3 && after_three) after_three();
    return true;
  }
  void settle(uint64_t) override {}
  void flush() override {}
  void quarantine(StorageRef) override {}
  void close() override {}
  std::string local_name() const override { return "here"; }
  std::string peer_name() const override { return "there"; }

  std::string pushed;  // the letters of their wants
  std::function<void()> after_three;

 private:
  LinkTraits traits_;
};

// The sending half of a session.
struct Sender {
  Sender() { operations.set_keeper(transfer); }
  ~Sender() {
    operations.for_each([&](Operation& op) {
      unlink(&op);
      operations.release(&op);
    });
    views->abandon();
  }
  // The peer pulls a message of so many chunks.
  void pull(char letter, size_t chunks) {
    Operation* op = operations.take(OperationKind::kSend, {}).value();
    Buffer bytes = arena->allocate(chunks * kChunk).value();
    op->total = chunks * kChunk;
    op->tensors.emplace_back(std::move(bytes).freeze());
    op->state = OperationState::kOffered;
    const wire::Want want{.id = static_cast<uint64_t>(letter),
                          .about = wire::PullWant{.offer = op->id, .length = op->total}};
    REQUIRE(transfer.on_pull(want).ok());
  }

  std::shared_ptr<Arena> arena = Arena::create({}).value();
  test::Parts parts{{}, {}, arena};
  RecordingStream link;
  test::NoMessages messages;
  Connection connection{.link = link,
                        .host = parts,
                        .session = parts.session,
                        .end = parts,
                        .traits = link.traits(),
                        .arena = arena,
                        .account = parts.connection.account,
                        .options = {}};
  ControlQueue control{connection};
  Operations operations{connection, 1};
  ViewPool* views = ViewPool::create(&control, std::make_shared<Mailbox>(-1));
  StreamTransfer transfer{link, messages, {connection, operations, control, incoming, *views}};
  Incoming incoming{connection, operations, control, transfer};
};

}  // namespace

TEST_CASE("messages of one length that are pulled at once leave one after the other", "[proto]") {
  Sender sender;
  sender.pull('a', 6);
  sender.pull('b', 6);
  sender.pull('c', 6);
  sender.transfer.progress();
  CHECK(sender.link.pushed == "aaaaaabbbbbbcccccc");
}

TEST_CASE("short messages pass a long one, which keeps a quarter of the line", "[proto]") {
  Sender sender;
  sender.pull('L', 100);
  sender.link.after_three = [&] {
    sender.pull('a', 2);
    sender.pull('b', 1);
    sender.pull('c', 9);
  };
  sender.transfer.progress();
  CHECK(sender.link.pushed.substr(0, 20) == "LLLbLaacLcccLcccLccL");
}

TEST_CASE("of very many messages the oldest are not held up by the search", "[proto]") {
  Sender sender;
  for (int i = 0; i < 40; ++i) sender.pull('a', 2);
  sender.pull('z', 1);
  sender.transfer.progress();
  REQUIRE(sender.link.pushed.size() == 81);
  CHECK(sender.link.pushed.find('z') > 40);
}

}  // namespace sluice::proto
