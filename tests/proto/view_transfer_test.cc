// How long revoke() waits for a peer that says it is copying.
#include <sluice/proto/view_transfer.h>

#include <memory>

#include <sluice/allocator/arena.h>
#include <sluice/proto/incoming.h>
#include <sluice/proto/peer_view.h>
#include <sluice/runtime/mailbox.h>

#include "tests/proto/parts.h"

namespace sluice::proto {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// The peer copies for so long from each revoke() on. A look takes 100 us.
class CopyingLink final : public ViewLink {
 public:
  explicit CopyingLink(test::Parts& parts) : parts_(parts) {}
  void set_client(LinkClient*, ViewClient*) override {}
  const LinkTraits& traits() const override { return parts_.link.traits(); }
  bool send(ConstBytes, std::span<const ConstBytes>) override { return true; }
  void flush() override {}
  void quarantine(StorageRef) override {}
  void close() override {}
  std::string local_name() const override { return "here"; }
  std::string peer_name() const override { return "there"; }
  Result<bool> export_run(const std::byte*, size_t, wire::Segment&) override { return false; }
  Result<ImportedRun> import_run(const wire::Segment&) override { return ImportedRun{}; }
  bool peer_is_copying() override {
    if (parts_.time >= copies_until) return false;
    parts_.time += microseconds(100);
    return true;
  }

  Instant copies_until{};

 private:
  test::Parts& parts_;
};

struct Revoker {
  ~Revoker() { views->abandon(); }
  // How long the thread waits if the peer copies for `copying`.
  Duration wait(Duration copying) {
    const Instant begin = parts.time;
    link.copies_until = begin + copying;
    result = transfer.await_copies();
    return parts.time - begin;
  }
  bool ended() const { return parts.connection.link_dead; }

  Status result;
  test::Parts parts{{}, {}, Arena::create({}).value()};
  CopyingLink link{parts};
  test::NoMessages messages;
  ViewPool* views = ViewPool::create(&parts.control, std::make_shared<Mailbox>(-1));
  ViewTransfer transfer{
      link, messages, {parts.connection, parts.operations, parts.control, incoming, *views}};
  Incoming incoming{parts.connection, parts.operations, parts.control, transfer};
};

}  // namespace

TEST_CASE("revoke waits for a piece that is being copied, and the connection goes on", "[revoke]") {
  Revoker revoker;
  CHECK(revoker.wait(Duration(0)) == Duration(0));
  for (int i = 0; i < 10; ++i) CHECK(revoker.wait(microseconds(600)) < milliseconds(1));
  CHECK(revoker.wait(milliseconds(90)) < milliseconds(91));
  CHECK(revoker.result.ok());
  CHECK(!revoker.ended());
}

TEST_CASE("a peer whose copying does not end has a fifth of the thread", "[revoke][hostile]") {
  Revoker revoker;
  const Duration first = revoker.wait(std::chrono::hours(1));
  CHECK(first >= milliseconds(100));
  CHECK(first < milliseconds(101));
  CHECK(revoker.ended());
  CHECK(revoker.parts.failure.code() == Code::kTimedOut);
  // Who revokes is told: what was promised does not hold.
  CHECK(revoker.result == Code::kTimedOut);
  CHECK(revoker.result.detail().find("the copy may still run") != std::string_view::npos);
  // What it does next, also on a connection that is new.
  CHECK(revoker.wait(std::chrono::hours(1)) < milliseconds(3));
  revoker.parts.time += milliseconds(450);
  CHECK(revoker.wait(std::chrono::hours(1)) >= milliseconds(100));
}

TEST_CASE("a peer that copies for as long as it may has a fifth of the thread",
          "[revoke][hostile]") {
  Revoker revoker;
  CHECK(revoker.wait(milliseconds(90)) >= milliseconds(90));
  CHECK(!revoker.ended());
  CHECK(revoker.wait(milliseconds(90)) < milliseconds(3));
  CHECK(revoker.ended());
}

}  // namespace sluice::proto
