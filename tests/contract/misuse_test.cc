// What a program does wrong is refused with the cause, and nothing is lost by it: handles
// that are empty or have outlived their context, calls after fork, exchanges given the wrong
// endpoints.
#include "tests/contract/pair.h"

#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sluice/exchange/exchange.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

bool says(const Status& status, Code code, std::string_view part) {
  UNSCOPED_INFO(status.to_string());
  return status == code && status.detail().find(part) != std::string_view::npos;
}

// What the child finds wrong, a line each.
class Report {
 public:
  void expect(const char* what, const Status& status) {
    const bool right =
        status == Code::kWrongState && status.detail().find("forked") != std::string_view::npos;
    if (!right) text_ += std::string(what) + ": " + status.to_string() + "\n";
  }
  void expect(const char* what, bool right) {
    if (!right) text_ += std::string(what) + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

TEST_CASE("after fork every call of the child says so, and what it drops hurts nobody",
          "[contract][misuse]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    auto near = std::make_unique<Exchange>(*pair.client_context);
    auto far = std::make_unique<Exchange>(*pair.server_context);
    REQUIRE(near->add(pair.client).ok());
    REQUIRE(far->add(pair.server).ok());
    auto published = far->publish({"w", 1}, floats(*pair.server_context, {1000}, 1));
    REQUIRE(published.ok());
    auto waiting = near->fetch({"later", 1}, soon());
    Box& box = pair.box();
    auto pending = pair.client.receive({.tag = 9}, room(*pair.client_context, 1000), box.options());
    REQUIRE(pending.ok());
    auto key =
        pair.server.grant(filled(*pair.server_context, 1000, 1), {.rights = Right::kReadWrite});
    REQUIRE(key.ok());
    pair.settle();

    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      Report report;
      Context& c = *pair.client_context;
      Endpoint& e = pair.client;
      report.expect("progress", c.progress() == 0 && !(near.get() == nullptr));
      report.expect("wait", c.wait(in(1s)));
      report.expect("wait_until", c.wait_until([] { return false; }, in(1s)));
      report.expect("connect", c.connect(pair.address).status());
      report.expect("listen", c.listen(fresh_address()).status());
      report.expect("close of the context", c.close(in(1s)).status());
      report.expect("try_accept", pair.listener->try_accept().status());
      report.expect("accept", pair.listener->accept(in(1s)).status());
      Tensor tensor;  // the arena is the parent's, too
      report.expect("send", e.send(1, tensor, {}).status());
      report.expect("receive", e.receive({.tag = 1}, Buffer(), {}).status());
      report.expect("read", e.read(*key, 0, Buffer(), {}).status());
      report.expect("write", e.write(*key, 0, tensor, {}).status());
      report.expect("atomic", e.atomic(*key, 0, {}, Buffer(), {}).status());
      report.expect("cancel", e.cancel(*pending));
      report.expect("grant", e.grant(tensor, {}).status());
      report.expect("revoke", pair.server.revoke(*key));
      report.expect("send_and_wait", e.send_and_wait(1, tensor, in(1s)).status());
      report.expect("receive_and_wait", e.receive_and_wait({.tag = 1}, Buffer(), in(1s)).status());
      report.expect("fetch_add_and_wait", e.fetch_add_and_wait(*key, 0, 1, in(1s)).status());
      report.expect("add", near->add(e));
      report.expect("publish", near->publish({"mine", 1}, tensor).status());
      report.expect("run_until", c.run_until(waiting, in(1s)).status());
      auto fresh = near->fetch({"w", 1}, in(1s));
      report.expect("fetch", fresh.ready() && fresh.take().status() == Code::kWrongState);
      published->retire();
      waiting.cancel();
      near->remove(e);
      { auto dropped = near->fetch({"w", 2}, in(1s)); }
      near.reset();
      far.reset();
      report.expect("close of the endpoint", e.close(in(1s)));
      { Endpoint dropped = std::move(pair.server); }
      pair.listener->close();
      pair.client_context.reset();
      pair.server_context.reset();
      const std::string& text = report.text();
      const bool told =
          ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
      ::_exit(told ? 0 : 1);
    }
    REQUIRE(child > 0);
    ::close(ends[1]);
    std::string text(16384, '\0');
    size_t length = 0;
    for (ssize_t n; (n = ::read(ends[0], text.data() + length, text.size() - length)) > 0;)
      length += static_cast<size_t>(n);
    ::close(ends[0]);
    text.resize(length);
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(text == "");

    // The parent's connection goes on: both ways, by the exchange, one-sided, and for who comes
    // now.
    REQUIRE(pair.server.send(9, tensor(*pair.server_context, 1000, 5), {}).ok());
    CHECK(pair.wait(box, *pending).status.ok());
    auto got = pair.client_context->run_until(near->fetch({"w", 1}, soon()), soon());
    REQUIRE(got.ok());
    CHECK(got->value.as<float>()[999] == 1000);
    got->value = Tensor();
    REQUIRE(far->publish({"later", 1}, floats(*pair.server_context, {10}, 1)).ok());
    CHECK(pair.client_context->run_until(waiting, soon()).ok());
    CHECK(pair.client.read_and_wait(*key, 0, room(*pair.client_context, 1000), soon()).ok());
    auto [again, theirs] = pair.connect_again();
    auto coming = theirs.receive({.tag = 3}, room(*pair.server_context, 10), box.options());
    REQUIRE(coming.ok());
    CHECK(again.send_and_wait(3, tensor(*pair.client_context, 10, 1), soon()).ok());
  }
  pair.settle();
}

TEST_CASE("an empty handle refuses everything, and says what it is", "[contract][misuse]") {
  NothingLeftBehind audit;
  auto context = open();
  Endpoint empty;
  const Status status = empty.send(1, Tensor(), {}).status();
  CHECK(says(status, Code::kWrongState, "empty"));
  CHECK(empty.receive({.tag = 1}, Buffer(), {}).code() == Code::kWrongState);
  CHECK(empty.read({}, 0, Buffer(), {}).code() == Code::kWrongState);
  CHECK(empty.write({}, 0, Tensor(), {}).code() == Code::kWrongState);
  CHECK(empty.atomic({}, 0, {}, Buffer(), {}).code() == Code::kWrongState);
  CHECK(empty.cancel({}) == Code::kWrongState);
  CHECK(empty.grant(Tensor(), {}).code() == Code::kWrongState);
  CHECK(empty.revoke({}) == Code::kWrongState);
  CHECK(empty.send_and_wait(1, Tensor(), soon()).code() == Code::kWrongState);
  CHECK(empty.receive_and_wait({.tag = 1}, Buffer(), soon()).code() == Code::kWrongState);
  CHECK(empty.fetch_add_and_wait({}, 0, 1, soon()).code() == Code::kWrongState);
  CHECK(empty.state() == EndpointState::kClosed);
  CHECK(empty.info().peer.empty());
  CHECK(empty.counters().posted == 0);
  empty.set_default_timeout(1s);
  CHECK(empty.close(soon()).ok());
  Exchange exchange(*context);
  CHECK(says(exchange.add(empty), Code::kInvalidArgument, "empty Endpoint"));
  exchange.remove(empty);
  Publication nothing;
  CHECK(nothing.ready());
  CHECK(nothing.readers_done() == 0);
  nothing.retire();
  CHECK_FALSE(nothing.take());
}

TEST_CASE("an endpoint that outlives its context is closed, and every call says so",
          "[contract][misuse]") {
  Pair pair;
  pair.drop_contexts();
  Endpoint& e = pair.client;
  CHECK(e.state() == EndpointState::kClosed);
  CHECK(says(e.send(1, Tensor(), {}).status(), Code::kWrongState, "closed"));
  CHECK(e.receive_and_wait({.tag = 1}, Buffer(), soon()).code() == Code::kWrongState);
  CHECK(e.fetch_add_and_wait({}, 0, 1, soon()).code() == Code::kWrongState);
  CHECK(e.grant(Tensor(), {}).code() == Code::kWrongState);
  (void)e.cancel({});
  CHECK(e.close(soon()).ok());
}

TEST_CASE("a listener that outlives its context is closed, and says so", "[contract][misuse]") {
  NothingLeftBehind audit;
  auto context = open();
  auto listener = context->listen(fresh_address());
  REQUIRE(listener.ok());
  Listener moved = std::move(*listener);
  CHECK_FALSE(moved.address().empty());
  context.reset();
  CHECK_FALSE(moved);
  CHECK(moved.address().empty());
  CHECK(says(moved.try_accept().status(), Code::kWrongState, "closed"));
  CHECK(says(moved.accept(soon()).status(), Code::kWrongState, "closed"));
  moved.close();
}

TEST_CASE("a closed context says how much is still held, and connects and listens no more",
          "[contract][misuse]") {
  NothingLeftBehind audit;
  Pair pair;
  Tensor view;
  {
    Exchange near(*pair.client_context), far(*pair.server_context);
    REQUIRE(near.add(pair.client).ok());
    REQUIRE(far.add(pair.server).ok());
    REQUIRE(far.publish({"w", 1}, floats(*pair.server_context, {100'000}, 1)).ok());
    auto got = pair.client_context->run_until(near.fetch({"w", 1}, soon()), soon());
    REQUIRE(got.ok());
    view = std::move(got->value);
  }
  Context& context = *pair.client_context;
  auto listener = context.listen(fresh_address());
  REQUIRE(listener.ok());
  auto held = context.close(soon());
  REQUIRE(held.ok());
  CHECK(*held == 1);
  CHECK(listener->address().empty());
  CHECK(says(context.connect("tcp://127.0.0.1:9").status(), Code::kWrongState, "is closed"));
  CHECK(says(context.listen(fresh_address()).status(), Code::kWrongState, "is closed"));
  CHECK(view.as<float>()[99'999] == 100'000);
  view = Tensor();
  held = context.close(soon());
  REQUIRE(held.ok());
  CHECK(*held == 0);
}

// Has a second thread make calls while this one is inside progress().
struct SecondThread final : CompletionSink {
  explicit SecondThread(Pair& of) : pair(of) {}
  void on_completion(Completion&&) noexcept override {
    std::thread second([&] {
      Context& context = *pair.client_context;
      statuses = {context.wait(in(1ms)), pair.client.send(1, Tensor(), {}).status(),
                  context.connect("tcp://127.0.0.1:9").status(), context.close(soon()).status()};
      progressed = context.progress();
    });
    second.join();
  }
  Pair& pair;
  std::vector<Status> statuses;
  size_t progressed = 1;
};

TEST_CASE("calls from a second thread while a first one is inside are told", "[contract][misuse]") {
  NothingLeftBehind audit;
  Pair pair;
  SecondThread sink(pair);
  REQUIRE(
      pair.client
          .receive({.tag = 4}, room(*pair.client_context, 64), {.sink = &sink, .deadline = soon()})
          .ok());
  REQUIRE(pair.server.send(4, tensor(*pair.server_context, 64, 1), {}).ok());
  REQUIRE(pair.until([&] { return !sink.statuses.empty(); }));
  REQUIRE(sink.statuses.size() == 4);
  for (const Status& status : sink.statuses)
    CHECK(says(status, Code::kWrongState, "another thread is inside"));
  CHECK(sink.progressed == 0);
  // Taking turns is no mistake.
  Status alone;
  std::thread third([&] { alone = pair.client_context->wait(in(1ms)); });
  third.join();
  CHECK(alone != Code::kWrongState);
}

TEST_CASE("an exchange takes an endpoint once, of its own context, while it is connected",
          "[contract][misuse]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchange one(*pair.client_context), other(*pair.client_context), far(*pair.server_context);
    REQUIRE(one.add(pair.client).ok());
    CHECK(says(one.add(pair.client), Code::kWrongState, "in this exchange already"));
    CHECK(says(other.add(pair.client), Code::kWrongState, "in another exchange"));
    CHECK(says(other.add(pair.server), Code::kInvalidArgument, "another Context"));
    CHECK(one.endpoint_count() == 1);
    CHECK(other.endpoint_count() == 0);
    // It still works where it is, and can go to the other once it has left.
    REQUIRE(far.add(pair.server).ok());
    auto published = far.publish({"w", 1}, floats(*pair.server_context, {8}, 1), {.readers = 2});
    REQUIRE(published.ok());
    CHECK(pair.client_context->run_until(one.fetch({"w", 1}, soon()), soon()).ok());
    other.remove(pair.client);  // it is not there: nothing happens
    CHECK(one.endpoint_count() == 1);
    one.remove(pair.client);
    REQUIRE(other.add(pair.client).ok());
    CHECK(pair.client_context->run_until(other.fetch({"w", 1}, soon()), soon()).ok());
    REQUIRE(pair.until([&] { return published->ready(); }));
    other.remove(pair.client);
    Endpoint ended = std::move(pair.client);
    CHECK(says(other.add(pair.client), Code::kInvalidArgument, "empty Endpoint"));
    ended.core().start_close();
    REQUIRE(pair.until([&] { return ended.state() == EndpointState::kClosed; }));
    CHECK(says(other.add(ended), Code::kWrongState, "closed"));
  }
}

TEST_CASE("a fetch that cannot be answered names the true cause", "[contract][misuse]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchange near(*pair.client_context);
    auto cause = [&](auto&& fetch) {
      auto outcome = pair.client_context->run_until(std::forward<decltype(fetch)>(fetch), soon());
      return outcome.status();
    };
    Endpoint empty;
    CHECK(says(cause(near.fetch({"w", 1}, in(5ms))), Code::kTimedOut, "no endpoint"));
    CHECK(says(cause(near.fetch({"w", 1}, soon(), {.from = &pair.client})), Code::kWrongState,
               "not in the exchange"));
    CHECK(says(cause(near.fetch({"w", 1}, soon(), {.from = &empty})), Code::kWrongState, "closed"));
    Placed placed = pair.client_context->run_until(
        near.fetch_into({"", 1}, room(*pair.client_context, 64), soon()), soon());
    CHECK(says(placed.status(), Code::kInvalidArgument, "1 to 255 bytes"));
    CHECK(placed.take_buffer().size_bytes() == 64);
    REQUIRE(near.add(pair.client).ok());
    CHECK(says(cause(near.fetch({"w", 1}, in(20ms))), Code::kTimedOut, "was not published"));
    pair.client.core().start_close();
    REQUIRE(pair.until([&] { return pair.client.state() == EndpointState::kClosed; }));
    CHECK(says(cause(near.fetch({"w", 1}, soon(), {.from = &pair.client})), Code::kWrongState,
               "closed"));
  }
}

TEST_CASE("run_until ends at its deadline, and what was waited for goes on", "[contract][misuse]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchange near(*pair.client_context), far(*pair.server_context);
    REQUIRE(near.add(pair.client).ok());
    REQUIRE(far.add(pair.server).ok());
    auto fetch = near.fetch({"w", 1}, soon());
    CHECK(pair.client_context->run_until(fetch, in(5ms)).code() == Code::kTimedOut);
    auto published = far.publish({"w", 1}, floats(*pair.server_context, {8}, 1));
    REQUIRE(published.ok());
    auto got = pair.client_context->run_until(fetch, soon());
    REQUIRE(got.ok());
    CHECK(got->value.as<float>()[7] == 8);
    if (path_has_views())
      CHECK(pair.server_context->run_until(*published, in(5ms)).code() == Code::kTimedOut);
    got->value = Tensor();
    auto home = pair.server_context->run_until(*published, soon());
    REQUIRE(home.ok());
    CHECK(home->size_bytes() == 32);
  }
}

TEST_CASE("a wait ends at its deadline although others keep the thread busy",
          "[contract][misuse]") {
  NothingLeftBehind audit;
  Pair pair;
  struct Busy final : ProgressHook {
    size_t progress(Instant) override { return 1; }
    Instant next_timeout() override { return kNever; }
  } busy;
  pair.client_context->add_hook(&busy);
  CHECK(pair.client_context->wait_until([] { return false; }, in(5ms)) == Code::kTimedOut);
  pair.client_context->remove_hook(&busy);
}

TEST_CASE("a publication ends at its deadline, and tells how many readers went",
          "[contract][misuse]") {
  NothingLeftBehind audit;
  Pair pair;
  {
    Exchange near(*pair.client_context), far(*pair.server_context);
    REQUIRE(near.add(pair.client).ok());
    REQUIRE(far.add(pair.server).ok());
    auto later = far.publish({"v", 1}, floats(*pair.server_context, {8}, 1), {.deadline = soon()});
    auto published = far.publish({"w", 1}, floats(*pair.server_context, {8}, 1),
                                 {.readers = 2, .deadline = in(20ms)});
    REQUIRE(published.ok());
    REQUIRE(later.ok());
    auto home = pair.server_context->run_until(*published, soon());
    REQUIRE(home.ok());
    CHECK(home->size_bytes() == 32);
    CHECK(published->readers_done() == 0);
    CHECK(published->readers_lost() == 0);
    // Over for who asks now; the other goes on.
    CHECK(pair.client_context->run_until(near.fetch({"w", 1}, soon()), soon()).code() ==
          Code::kWrongState);
    CHECK(pair.client_context->run_until(near.fetch({"v", 1}, soon()), soon()).ok());
    // A reader that goes with a view in its hands is counted where the path has views.
    auto held =
        far.publish({"u", 1}, floats(*pair.server_context, {1 << 20}, 1), {.deadline = soon()});
    REQUIRE(held.ok());
    auto got = pair.client_context->run_until(near.fetch({"u", 1}, soon()), soon());
    REQUIRE(got.ok());
    if (path_has_views()) {
      pair.server.core().abort(Status(Code::kUnreachable, Scope::kEndpoint, "test"));
      REQUIRE(pair.until([&] { return held->readers_lost() == 1; }));
      CHECK_FALSE(held->ready());
    }
    got->value = Tensor();
  }
}

TEST_CASE("a blocking receive or read that fails gives the buffer back", "[contract][misuse]") {
  NothingLeftBehind audit;
  Pair pair;
  Buffer buffer = room(*pair.client_context, 100);
  const std::byte* place = buffer.data();
  CHECK(pair.client.receive_and_wait({.tag = 1}, std::move(buffer), in(5ms)).code() ==
        Code::kTimedOut);
  REQUIRE(buffer);
  CHECK(buffer.data() == place);
  RemoteKey nobodys{.grant = 99, .length = 100, .rights = Right::kReadWrite};
  const Status read = pair.client.read_and_wait(nobodys, 0, std::move(buffer), soon()).status();
  INFO(read.to_string());
  CHECK_FALSE(read.ok());
  if (!path_is_direct()) {
    REQUIRE(buffer);
    CHECK(buffer.data() == place);
  }
}

// Waits for everything there is to wait for, once.
struct Waiter final : CompletionSink {
  explicit Waiter(Pair& of) : pair(of) {}
  void on_completion(Completion&& completion) noexcept override {
    status = completion.status;
    if (std::exchange(called, true)) return;
    Context& context = *pair.client_context;
    Endpoint& client = pair.client;
    const RemoteKey key{};
    results.push_back(context.wait(in(10ms)));
    results.push_back(context.wait_until([] { return false; }, in(10ms)));
    results.push_back(context.run_until(exchange->fetch({"w", 1}, in(10ms)), in(10ms)).status());
    results.push_back(client.send_and_wait(7, source, in(10ms)).status());
    results.push_back(client.receive_and_wait({.tag = 8}, std::move(buffer), in(10ms)).status());
    results.push_back(client.read_and_wait(key, 0, std::move(buffer), in(10ms)).status());
    results.push_back(client.write_and_wait(key, 0, source, in(10ms)).status());
    results.push_back(client.fetch_add_and_wait(key, 0, 1, in(10ms)).status());
    results.push_back(client.close(in(10ms)));
  }
  Pair& pair;
  Exchange* exchange = nullptr;
  Tensor source;
  Buffer buffer;
  Status status;
  bool called = false;
  std::vector<Status> results;
};

TEST_CASE("waiting inside a completion ends, and where nothing could move it is refused",
          "[contract][misuse]") {
  NothingLeftBehind audit;
  Pair pair;
  Exchange exchange(*pair.client_context);
  REQUIRE(exchange.add(pair.client).ok());
  Waiter waiter(pair);
  waiter.exchange = &exchange;
  waiter.source = tensor(*pair.client_context, 100, 1);
  waiter.buffer = room(*pair.client_context, 100);
  const PostOptions options{.sink = &waiter, .deadline = soon()};
  REQUIRE(pair.client.receive({.tag = 1}, room(*pair.client_context, 100), options).ok());
  REQUIRE(pair.server.send(1, tensor(*pair.server_context, 100, 1)).ok());
  REQUIRE(pair.until([&] { return waiter.called; }));
  CHECK(waiter.status.ok());
  const bool refused = waiter.results[0] == Code::kWrongState;
  // What delays messages may tell of them outside the path's turn.
  if (!faults_under_test()) CHECK(refused == (path_is_slp() || path_is_module()));
  if (refused) {
    for (const Status& result : waiter.results)
      CHECK(says(result, Code::kWrongState, "wait after progress() has returned"));
    CHECK(waiter.buffer);
    // Nothing is lost.
    Box& box = pair.box();
    REQUIRE(pair.server.receive({.tag = 7}, room(*pair.server_context, 100), box.options(1)).ok());
    CHECK(pair.client.send_and_wait(7, waiter.source, soon()).ok());
    CHECK(pair.until([&] { return box.all.size() == 1; }));
    CHECK(pair.client.counters().posted == pair.client.counters().completed);
  } else {
    CHECK_FALSE(pair.client);
  }
  waiter.source = Tensor();
  waiter.buffer = Buffer();
}

}  // namespace
}  // namespace sluice::test
