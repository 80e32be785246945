// Sessions whose devices move the bytes: no memory goes back to its owner while a chunk of its
// operation is under way, however the others of the same operation end.
#include <catch2/catch.hpp>

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <sluice/proto/session.h>
#include <sluice/runtime/mailbox.h>
#include <sluice/wire/messages.h>

#include "tests/proto/direct_link.h"

namespace sluice::proto {
namespace {

using namespace std::chrono_literals;
using test::DirectLink;

constexpr uint64_t kChunks = 4;

Status refused_alone() {
  return Status(Code::kAccessDenied, Scope::kOperation, "test", "the peer's device refused it");
}
Status broken() { return Status(Code::kUnreachable, Scope::kEndpoint, "test", "the cable is out"); }

// One session on a device that a test plays, at a time that it says.
class Scene final : public SessionHost, public CompletionSink {
 public:
  Scene() {
    auto made = std::make_unique<DirectLink>();
    link = made.get();
    SessionParts parts;
    parts.link = std::move(made);
    parts.mailbox = std::make_shared<Mailbox>(-1);
    parts.host = this;
    session = std::make_unique<Session>(std::move(parts));
  }
  ~Scene() {
    session->abort(broken());
    turn();
  }
  void activate(Session&) noexcept override {}
  Instant now() const override { return time; }
  void on_completion(Completion&& completion) noexcept override {
    // The owner has its memory again: nobody else may have it.
    for (const DirectLink::Chunk& chunk : link->out) CHECK(chunk.cookie != completion.id);
    ended.push_back(std::move(completion));
    if (when_ended) std::exchange(when_ended, nullptr)();
  }
  void turn() {
    while (session->progress(time) > 0) {}
  }
  void pass(Duration duration) {
    time += duration;
    session->handle_timeout(time);
    turn();
  }
  // A read or write of kChunks chunks, all of them out. The last may be short.
  OperationId start(bool reads, uint64_t bytes = kChunks * 1000) {
    const OperationId id = post(reads ? OperationKind::kRead : OperationKind::kWrite, bytes);
    turn();
    return id;
  }
  // The same without a turn.
  OperationId post(OperationKind kind, uint64_t bytes) {
    RemoteKey key{
        .grant = 1, .length = bytes, .address = 4096, .device_key = 7, .rights = Right::kAll};
    auto& memory = memories.emplace_back(bytes, std::byte{1});
    Buffer buffer = Buffer::wrap(memory.data(), memory.size(), nullptr, nullptr).value();
    Result<OperationId> posted = kNoOperation;
    PostOptions options{.sink = this, .deadline = time + 10s};
    if (kind == OperationKind::kRead) {
      posted = session->post_read(key, 0, buffer, options);
    } else if (kind == OperationKind::kAtomic) {
      posted = session->post_atomic(key, 0, {.operand = 1}, buffer, options);
    } else {
      Tensor source = std::move(buffer).freeze();
      posted = session->post_write(key, 0, source, options);
    }
    REQUIRE(posted.ok());
    return *posted;
  }
  // The device has finished the chunk at `place`, and says how.
  void finish(size_t place, const Status& status = Status()) {
    REQUIRE(place < link->out.size());
    DirectLink::Chunk chunk = link->out[place];
    link->out.erase(link->out.begin() + static_cast<long>(place));
    link->client->transfer_done(chunk.cookie, chunk.length, status, time);
    turn();
  }

  Instant time{1h};
  DirectLink* link;
  std::unique_ptr<Session> session;
  std::deque<std::vector<std::byte>> memories;
  std::vector<Completion> ended;
  std::function<void()> when_ended;
};

TEST_CASE("an operation of which one chunk is refused ends when the last of the others is over",
          "[proto][direct]") {
  for (bool reads : {true, false}) {
    for (size_t refused = 0; refused < kChunks; ++refused) {
      INFO("reads " << reads << ", refused: chunk " << refused);
      Scene scene;
      scene.start(reads);
      REQUIRE(scene.link->out.size() == kChunks);
      scene.finish(refused, refused_alone());
      while (scene.link->out.size() > 1) {
        CHECK(scene.ended.empty());
        scene.finish(scene.link->out.size() - 1);
      }
      CHECK(scene.ended.empty());
      scene.finish(0);
      REQUIRE(scene.ended.size() == 1);
      CHECK(scene.ended[0].status.code() == Code::kAccessDenied);
      CHECK(scene.ended[0].buffers.size() == (reads ? 1 : 0));
      CHECK(scene.session->state() == EndpointState::kConnected);
    }
  }
}

TEST_CASE("a chunk that is refused after another changes nothing about the wait",
          "[proto][direct]") {
  Scene scene;
  scene.start(true);
  scene.finish(0, refused_alone());
  scene.finish(0, refused_alone());
  CHECK(scene.ended.empty());
  scene.finish(0);
  CHECK(scene.ended.empty());
  scene.finish(0, refused_alone());
  REQUIRE(scene.ended.size() == 1);
  CHECK(scene.ended[0].status.code() == Code::kAccessDenied);
}

TEST_CASE("a chunk that cannot be posted ends its operation when those before it are over",
          "[proto][direct]") {
  for (bool reads : {true, false}) {
    for (uint64_t at = 0; at < kChunks; ++at) {
      INFO("reads " << reads << ", not posted: chunk " << at);
      Scene scene;
      scene.link->refuse_at = at;
      scene.link->refusal = Status(Code::kNoMemory, Scope::kOperation, "test", "not registered");
      scene.start(reads);
      REQUIRE(scene.link->out.size() == at);
      while (!scene.link->out.empty()) {
        CHECK(scene.ended.empty());
        scene.finish(0);
      }
      REQUIRE(scene.ended.size() == 1);
      CHECK(scene.ended[0].status.code() == Code::kNoMemory);
    }
  }
}

constexpr OperationKind kOneSided[] = {OperationKind::kRead, OperationKind::kWrite,
                                       OperationKind::kAtomic};

TEST_CASE("an operation of one chunk leaves in its own call where nothing is under way",
          "[proto][direct]") {
  for (int i = 0; i < 6; ++i) {
    const OperationKind kind = kOneSided[i / 2];
    Scene scene;
    scene.link->at_once = i % 2 != 0;
    INFO("kind " << static_cast<int>(kind) << ", one call of the link " << scene.link->at_once);
    scene.link->says_idle = true;
    scene.post(kind, 8);
    CHECK(scene.link->out.size() == 1);
    scene.post(kind, 8);  // the device has something to do
    CHECK(scene.link->out.size() == 1);
    scene.turn();
    CHECK(scene.link->out.size() == 2);
    while (!scene.link->out.empty()) scene.finish(0);
    scene.post(OperationKind::kWrite, 1001);  // two chunks
    CHECK(scene.link->out.empty());
    scene.turn();
    CHECK(scene.link->out.size() == 2);
    while (!scene.link->out.empty()) scene.finish(0);
    CHECK(scene.ended.size() == 3);
    for (const Completion& each : scene.ended) CHECK(each.status.ok());
  }
}

TEST_CASE("what leaves in its own call overtakes nothing that waits for the turn",
          "[proto][direct]") {
  for (bool at_once : {false, true}) {
    INFO("one call of the link " << at_once);
    Scene scene;
    scene.link->says_idle = true;
    scene.link->at_once = at_once;
    const OperationId first = scene.post(OperationKind::kWrite, 1001);  // two chunks
    scene.post(OperationKind::kWrite, 8);
    CHECK(scene.link->out.empty());
    scene.turn();
    REQUIRE(scene.link->out.size() == 3);
    CHECK(scene.link->out[0].cookie == first);
    while (!scene.link->out.empty()) scene.finish(0);
    CHECK(scene.ended.size() == 2);
  }
}

// Nothing else of it is asked for: an answer of the peer is one that it made up.
TEST_CASE("what left in its own call ends when the device is done, whatever the peer says before",
          "[proto][direct]") {
  for (bool reads : {true, false}) {
    Scene scene;
    scene.link->at_once = true;
    const OperationId id = scene.post(reads ? OperationKind::kRead : OperationKind::kWrite, 8);
    REQUIRE(scene.link->out.size() == 1);
    std::byte header[wire::kMaxHeaderBytes];
    const size_t length = wire::encode(wire::Done{.id = id, .code = Code::kCancelled}, header);
    BytesPayload none{ConstBytes()};
    CHECK(scene.session->handle_message(ConstBytes(header, length), none, scene.time).ok());
    scene.turn();
    CHECK(scene.ended.empty());
    scene.finish(0);
    REQUIRE(scene.ended.size() == 1);
    CHECK(scene.ended[0].status.code() == Code::kCancelled);
  }
}

TEST_CASE("an operation that cannot be posted in its own call ends in the turn",
          "[proto][direct]") {
  for (OperationKind kind : kOneSided) {
    Scene scene;
    scene.link->says_idle = true;
    for (bool again : {false, true}) {
      INFO("kind " << static_cast<int>(kind) << ", refused in the turn too " << again);
      scene.link->posts = 0;
      scene.link->refuse_at = 0;
      scene.link->refusal = Status(Code::kNoMemory, Scope::kOperation, "test", "not registered");
      scene.post(kind, 8);
      CHECK(scene.ended.empty());
      if (again) scene.link->posts = 0;
      scene.turn();
      if (!again) {
        REQUIRE(scene.link->out.size() == 1);
        scene.finish(0);
      }
      REQUIRE(scene.ended.size() == 1);
      CHECK(scene.ended[0].status.code() == (again ? Code::kNoMemory : Code::kOk));
      scene.ended.clear();
    }
  }
}

TEST_CASE("what is told of an end may post the next operation, which leaves at once",
          "[proto][direct]") {
  Scene scene;
  scene.link->says_idle = true;
  scene.post(OperationKind::kRead, 8);
  scene.when_ended = [&] { scene.post(OperationKind::kWrite, 8); };
  DirectLink::Chunk chunk = scene.link->out.at(0);
  scene.link->out.clear();
  scene.link->client->transfer_done(chunk.cookie, chunk.length, Status(), scene.time);
  CHECK(scene.link->out.size() == 1);  // before any turn
  scene.finish(0);
  CHECK(scene.ended.size() == 2);
}

TEST_CASE("an atomic that the device has got may have been done, however it ends",
          "[proto][direct]") {
  for (int how : {0, 1, 2}) {
    INFO(how);
    Scene scene;
    scene.link->says_idle = true;
    const OperationId id = scene.post(OperationKind::kAtomic, 8);
    REQUIRE(scene.link->out.size() == 1);
    if (how == 0) CHECK(scene.session->cancel(id).ok());
    if (how == 1) scene.pass(10s);
    if (how == 2) scene.session->link_down(broken(), scene.time);
    scene.turn();
    if (how < 2) scene.finish(0);
    REQUIRE(scene.ended.size() == 1);
    CHECK(scene.ended[0].status.code() == Code::kOutcomeUnknown);
  }
}

TEST_CASE("an atomic that did not leave had no effect", "[proto][direct]") {
  Scene scene;
  const OperationId id = scene.post(OperationKind::kAtomic, 8);
  CHECK(scene.session->cancel(id).ok());
  scene.turn();
  REQUIRE(scene.ended.size() == 1);
  CHECK(scene.ended[0].status.code() == Code::kCancelled);
}

TEST_CASE("what the device calls back ends at once, and it is asked for nothing that is not out",
          "[proto][direct]") {
  for (bool refused : {true, false}) {
    Scene scene;
    scene.link->can_cancel = true;
    OperationId id = scene.start(true);
    if (refused) scene.finish(1, refused_alone());
    if (!refused) CHECK(scene.session->cancel(id).ok());
    scene.turn();
    REQUIRE(scene.ended.size() == 1);
    CHECK(scene.ended[0].status.code() == (refused ? Code::kAccessDenied : Code::kCancelled));
    CHECK(scene.link->cancels == 1);
    CHECK(scene.link->out.empty());
  }
}

TEST_CASE("a cancelled or expired operation gives its memory back when its last chunk is over",
          "[proto][direct]") {
  // Of several that are under way, or of one with a single byte.
  for (size_t under_way : {kChunks - 1, uint64_t{1}}) {
    for (auto [expires, reads] :
         {std::pair{true, true}, {true, false}, {false, true}, {false, false}}) {
      INFO(under_way << " under way, expires " << expires << ", reads " << reads);
      Scene scene;
      OperationId id = scene.start(reads, (kChunks - 1) * 1000 + 1);
      REQUIRE(scene.link->out.size() == kChunks);
      while (scene.link->out.size() > under_way) scene.finish(0);
      if (expires) scene.pass(10s);
      if (!expires) CHECK(scene.session->cancel(id).ok());
      scene.turn();
      while (!scene.link->out.empty()) {
        CHECK(scene.ended.empty());
        scene.finish(0, scene.link->out.size() == 2 ? refused_alone() : Status());
      }
      REQUIRE(scene.ended.size() == 1);
      Code ended = expires ? Code::kTimedOut : Code::kCancelled;
      CHECK(scene.ended[0].status.code() == (reads ? ended : Code::kOutcomeUnknown));
    }
  }
}

TEST_CASE(
    "a device that does not finish is stopped before the memory goes back, a second after the "
    "deadline",
    "[proto][direct]") {
  for (bool lets_go : {true, false}) {
    Scene scene;
    scene.link->lets_go = lets_go;
    scene.start(true);
    scene.pass(10s);
    CHECK(scene.ended.empty());
    CHECK(scene.link->stops == 0);
    scene.pass(999ms);
    CHECK(scene.ended.empty());
    scene.pass(1ms);
    REQUIRE(scene.ended.size() == 1);
    CHECK(scene.ended[0].status.code() == Code::kTimedOut);
    CHECK(scene.link->stops >= 1);
    CHECK(scene.link->quarantined == (lets_go ? 0 : 1));
    CHECK(scene.session->state() == EndpointState::kClosed);
  }
}

TEST_CASE(
    "when the connection breaks in the middle, the device is stopped before any memory goes back",
    "[proto][direct]") {
  for (bool lets_go : {true, false}) {
    Scene scene;
    scene.link->lets_go = lets_go;
    scene.start(true);
    scene.finish(0, refused_alone());
    CHECK(scene.ended.empty());
    scene.session->link_down(broken(), scene.time);
    scene.turn();
    REQUIRE(scene.ended.size() == 1);
    CHECK(scene.link->stops >= 1);
    CHECK(scene.link->quarantined == (lets_go ? 0 : 1));
  }
}

TEST_CASE("a revoked grant is closed by the link before revoke returns, or the connection ends",
          "[proto][direct]") {
  for (bool revokes : {true, false}) {
    Scene scene;
    std::vector<std::byte> bytes(500);
    Buffer memory = Buffer::wrap(bytes.data(), bytes.size(), nullptr, nullptr).value();
    auto key = scene.session->grant(memory, {.rights = Right::kReadWrite});
    REQUIRE(key.ok());
    REQUIRE(scene.link->open.size() == 1);
    if (!revokes)
      scene.link->revokes =
          Status(Code::kTimedOut, Scope::kEndpoint, "test", "the device does not answer");
    CHECK(scene.session->revoke(*key).ok());
    CHECK(scene.link->revoked.size() == (revokes ? 1 : 0));
    CHECK(scene.link->stops == (revokes ? 0 : 1));
    CHECK(scene.link->closing.empty());
    CHECK((scene.session->state() == EndpointState::kConnected) == revokes);
    CHECK(scene.session->revoke(*key).code() == Code::kInvalidArgument);
  }
}

TEST_CASE("a grant that ends by its deadline is closed by the link at its deadline",
          "[proto][direct]") {
  Scene scene;
  std::vector<std::byte> bytes(500);
  Buffer memory = Buffer::wrap(bytes.data(), bytes.size(), nullptr, nullptr).value();
  auto key = scene.session->grant(memory, {.rights = Right::kRead, .deadline = scene.time + 2s});
  REQUIRE(key.ok());
  CHECK(scene.session->next_timeout() <= scene.time + 2s);
  scene.pass(2s - 1ms);
  CHECK(scene.link->revoked.empty());
  CHECK(scene.session->next_timeout() <= scene.time + 1ms);
  scene.pass(1ms);
  CHECK(scene.link->revoked.size() == 1);
}

}  // namespace
}  // namespace sluice::proto
