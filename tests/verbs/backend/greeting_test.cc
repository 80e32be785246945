// A message that follows its sender's HELLO at once is the session's, however the HELLO
// was found.
#include <catch2/catch.hpp>

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include <sluice/api/context.h>
#include <sluice/base/clock.h>
#include <sluice/select/open.h>

#include "tests/verbs/fake_provider.h"

namespace sluice::verbs {
namespace {

// The server's queue shows the HELLO only to the look that follows arming it. Once the server has
// answered it, its next look waits for the client's first message. Thread: the server's calls come
// from the thread that made this.
class LateFabric final : public FakeVerbs {
 public:
  int req_notify_cq(ibv_cq* cq) override {
    if (of_server()) look_ = true;
    return FakeVerbs::req_notify_cq(cq);
  }
  int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) override {
    if (of_server()) answered_ = true;
    return FakeVerbs::post_send(qp, list, bad);
  }
  int poll_cq(ibv_cq* cq, int entries, ibv_wc* completions) override {
    if (!of_server()) return FakeVerbs::poll_cq(cq, entries, completions);
    if (answered_) {
      client_done_.wait(false);
    } else if (!std::exchange(look_, false)) {
      return 0;
    }
    return FakeVerbs::poll_cq(cq, entries, completions);
  }
  // Its message is out, or it gave up.
  void client_is_done() {
    client_done_ = true;
    client_done_.notify_all();
  }

 private:
  bool of_server() const { return std::this_thread::get_id() == server_; }

  const std::thread::id server_ = std::this_thread::get_id();
  bool look_ = false, answered_ = false;
  std::atomic<bool> client_done_{false};
};

// Until the server closes.
Status say(const std::string& address, LateFabric& fabric) {
  SLUICE_TRY(std::unique_ptr<Context> context, open_context());
  Result<Endpoint> server = context->connect(address);
  if (!server.ok()) return server.status();
  SLUICE_TRY(Buffer word, context->arena().allocate(8));
  std::memset(word.data(), 7, 8);
  Result<OperationId> sent = server->send(1, std::move(word).freeze());
  if (!sent.ok()) return sent.status();
  fabric.client_is_done();
  (void)context->wait_until([&] { return server->state() != EndpointState::kConnected; },
                            after(now(), std::chrono::seconds(20)));
  return server->close(after(now(), std::chrono::seconds(5)));
}

TEST_CASE(
    "a message right behind a HELLO that the look before sleeping found is not taken for a "
    "greeting") {
  LateFabric fabric;
  use_verbs_api(&fabric);
  {
    auto context = open_context();
    REQUIRE(context.ok());
    auto listener = (*context)->listen("rdma://127.0.0.1:0");
    REQUIRE(listener.ok());
    std::string address = listener->address();
    Status said;
    std::thread client([&] {
      said = say(address, fabric);
      fabric.client_is_done();
    });
    Instant deadline = after(now(), std::chrono::seconds(10));
    Result<Endpoint> peer = listener->accept(deadline);
    CHECK(peer.ok());
    if (peer.ok()) {
      Result<Buffer> into = (*context)->arena().allocate(8);
      REQUIRE(into.ok());
      Result<Endpoint::Received> got = peer->receive_and_wait({1}, std::move(*into), deadline);
      CHECK(got.ok());
      if (got.ok()) CHECK(std::to_integer<int>(got->buffer.data()[7]) == 7);
    }
    if (peer.ok()) CHECK(peer->close(deadline).ok());
    client.join();
    CHECK(said.ok());
    listener->close();
  }
  use_verbs_api(nullptr);
  CHECK(fabric.complaints() == "");
}

}  // namespace
}  // namespace sluice::verbs
