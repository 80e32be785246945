// The verbs backend on a fake fabric that a test breaks: two contexts on one thread, a
// connection or more between them, and traffic of every kind that is audited to its end.
// Knows the backend by its counters and error texts only.
#ifndef SLUICE_TESTS_VERBS_BACKEND_SCENE_H_
#define SLUICE_TESTS_VERBS_BACKEND_SCENE_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/pair.h"
#include "tests/verbs/fake_provider.h"

#include <sluice/spi/endpoint_core.h>

namespace sluice::verbs {

using test::in;
using test::soon;
using namespace std::chrono_literals;

// In the place of the system's libraries while it lives. At its end nothing is alive in it,
// nothing was misused, no message met an empty receive queue.
class Fabric {
 public:
  explicit Fabric(FakeOptions options = {});
  ~Fabric();
  FakeVerbs* operator->() { return &fake; }
  template <typename Function>
  auto with_faults(Function function) {
    return fake.with_faults(std::move(function));
  }

  test::NothingLeftBehind audit;  // first: ends last
  FakeVerbs fake;
  // What the case provokes itself: complaints that contain this are expected.
  std::string expected_complaint;
};

// Where the completions of one endpoint go, and what was expected of them.
class Tally final : public CompletionSink {
 public:
  struct Expected {
    OperationKind kind;
    Instant deadline;
    size_t buffers = 0;  // that must come back, however it ends
    uint64_t seed = 0;   // what they hold if it ends well; 0: not looked at
    bool ended = false;
    Status status = {};
    Receipt receipt = {};
  };
  // A deadline for each operation that is posted from now on.
  Duration limit = 5s;
  // The peer's bytes were changed on their way: whether they are right is not asked.
  bool bytes_may_lie = false;

  PostOptions options(Level level = Level::kPlaced) {
    return {.sink = this, .deadline = in(limit), .level = level};
  }
  // Posts that are refused say why and are no operations.
  void expect(const Result<OperationId>& posted, OperationKind kind, size_t buffers = 0,
              uint64_t seed = 0);
  bool ended() const { return open_ == 0; }
  size_t count(Code code) const;
  size_t failures() const;
  // Exactly once, in time, with their buffers, with the right bytes, with a text.
  void check() const;
  std::string text() const;  // of the failures, for INFO
  void on_completion(Completion&& completion) noexcept override;

  std::vector<std::pair<OperationId, Expected>> all;
  std::vector<Status> refused;
  // Called from on_completion, before the account is made.
  std::function<void(const Completion&)> on_end;

 private:
  size_t open_ = 0;
  std::vector<std::string> wrongs_;
};

// Answers every request with the key's tensor: fill(key id + 1) of `size` bytes.
class Shelf final : public WantHandler {
 public:
  Shelf(Context& context, Tally& tally) : context_(context), tally_(tally) {}
  void on_want(EndpointCore& endpoint, const WantRequest& request) noexcept override;
  bool on_want_cancelled(EndpointCore&, uint64_t) noexcept override { return false; }
  void on_endpoint_closed(EndpointCore&, const Status&) noexcept override {}
  size_t size = 0;

 private:
  Context& context_;
  Tally& tally_;
};

struct DuoOptions {
  std::string address = "rdma://127.0.0.1:0";
  ArenaOptions arena = test::small_arena();
  ConnectOptions connect = {.timeout = 3s};
  ListenOptions listen;
};

class Duo {
 public:
  explicit Duo(DuoOptions options = {});
  ~Duo();
  Duo(const Duo&) = delete;

  // Listens and connects. Not ok: what said no.
  Status open();
  // One more connection: {client's end, server's end}.
  Result<std::pair<Endpoint, Endpoint>> connect();
  // Both run until `done`. Asleep between events if `sleeping`.
  bool until(const std::function<bool()>& done, Instant deadline = soon());
  // As a stopped process: its device still answers. Run `near` alone meanwhile.
  void stop_far(bool stopped) { near_hook_.frozen = stopped; }
  // Until neither has anything to do.
  void settle();
  bool connected() {
    return client && client.state() == EndpointState::kConnected &&
           server.state() == EndpointState::kConnected;
  }
  bool both_closed();
  Tally& tally() { return tallies_.emplace_back(); }
  Shelf& shelf(Context& context, Tally& tally) { return shelves_.emplace_back(context, tally); }
  // Ends everything, with the audit: posted == completed, no memory is out.
  void close();

  std::unique_ptr<Context> near, far;
  Listener listener;
  Endpoint client, server;
  bool sleeping = false;
  uint64_t sleeps = 0;
  // Of the sockets' poll: what ended without an event, at its timeout.
  uint64_t sleeps_overslept = 0;

 private:
  bool sleep(Instant deadline);
  DuoOptions options_;
  std::deque<Tally> tallies_;
  std::deque<Shelf> shelves_;
  test::ProgressOther near_hook_, far_hook_;
};

// Every kind of operation on one connection, both ways.
class Traffic {
 public:
  Traffic(Duo& duo, Endpoint& client, Endpoint& server, Duration limit = 5s);
  ~Traffic();
  // Small and large sends and receives, fetches with and without destination both ways;
  // the client reads, writes and does atomics at the server.
  void post(size_t large = 100'000);
  bool ended() const { return client_tally.ended() && server_tally.ended(); }
  // Runs both sides until all have ended, and audits it.
  void finish();
  size_t failures() const { return client_tally.failures() + server_tally.failures() + refused(); }
  size_t refused() const { return client_tally.refused.size() + server_tally.refused.size(); }
  std::string text() const { return client_tally.text() + server_tally.text(); }

  Tally& client_tally;
  Tally& server_tally;

 private:
  void post_messages(size_t large);
  void post_wants(size_t large);
  void post_one_sided(size_t large);

  Duo& duo_;
  Endpoint &client_, &server_;
  Shelf &client_shelf_, &server_shelf_;
  std::vector<Buffer> granted_;
  std::vector<RemoteKey> keys_;
  uint32_t next_key_ = 0;
  Tag next_tag_ = 1;
};

// One round of everything that must go well.
void expect_traffic(Duo& duo, Endpoint& client, Endpoint& server);
// Another connection of the same contexts, which must not notice.
class Bystander {
 public:
  explicit Bystander(Duo& duo);
  ~Bystander();
  Endpoint client, server;

 private:
  Duo& duo_;
};
// That a new connection works.
void expect_reconnect(Duo& duo);

// What a counter gained since it was made.
class Gain {
 public:
  explicit Gain(const char* name);
  uint64_t operator()() const;

 private:
  const char* name_;
  uint64_t before_;
};

}  // namespace sluice::verbs

#endif  // SLUICE_TESTS_VERBS_BACKEND_SCENE_H_
