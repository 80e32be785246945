// A table of calls that are wrong: the code of each, and a part of its text (empty: the text is the
// path's own). After all of them the connection, the exchange and the arena work as before.
#include "tests/contract/pair.h"

#include <array>
#include <functional>
#include <string>
#include <vector>

#include <sluice/exchange/exchange.h>
#include <sluice/select/open.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

constexpr size_t kGranted = 4096;

// What the calls are made on.
struct Scene {
  Pair pair;
  Exchange near{*pair.client_context}, far{*pair.server_context};
  RemoteKey readable, writable;

  Scene() {
    REQUIRE(near.add(pair.client).ok());
    REQUIRE(far.add(pair.server).ok());
    auto reads =
        pair.server.grant(filled(*pair.server_context, kGranted, 1), {.rights = Right::kRead});
    auto writes =
        pair.server.grant(filled(*pair.server_context, kGranted, 2), {.rights = Right::kReadWrite});
    REQUIRE(reads.ok());
    REQUIRE(writes.ok());
    readable = *reads;
    writable = *writes;
  }
  Context& context() { return *pair.client_context; }
  Endpoint& endpoint() { return pair.client; }
  Buffer memory(size_t bytes = 64) { return room(context(), bytes); }
  Tensor data(size_t bytes = 64) { return tensor(context(), bytes, 3); }
  template <typename F>
  Status outcome(F&& fetch) {
    return context().run_until(std::forward<F>(fetch), soon()).status();
  }
};

struct Refusal {
  const char* call;
  const char* misuse;
  std::function<Status(Scene&)> make;
  Code code;
  const char* says;
};

std::vector<Refusal> of_memory() {
  return {
      {"Arena::allocate", "a negative extent",
       [](Scene& s) { return s.context().allocate({-1}, float32).status(); },
       Code::kInvalidArgument, "dimension 0 is negative: -1"},
      {"Arena::allocate", "a product that overflows",
       [](Scene& s) {
         return s.context().allocate({int64_t{1} << 40, int64_t{1} << 40}, float32).status();
       },
       Code::kInvalidArgument, "more than 2^63 - 1 elements"},
      {"Arena::allocate", "nine dimensions",
       [](Scene& s) {
         return s.context().allocate({1, 1, 1, 1, 1, 1, 1, 1, 1}, float32).status();
       },
       Code::kInvalidArgument, "rank 9 is above the limit of 8; merge dimensions"},
      {"Arena::allocate", "more than the limit",
       [](Scene& s) { return s.context().arena().allocate(size_t{1} << 40).status(); },
       Code::kNoMemory, "the arena's limit is"},
      {"Arena::allocate", "more than the quota",
       [](Scene& s) {
         Quota quota(100);
         return s.context().arena().allocate(4096, {.quota = &quota}).status();
       },
       Code::kNoMemory, "a peer's quota"},
      {"Arena::prefault", "more than the limit",
       [](Scene& s) { return s.context().arena().prefault(size_t{1} << 40); }, Code::kNoMemory,
       "the arena's limit is"},
      {"Arena::create", "a limit above what can be addressed",
       [](Scene&) { return Arena::create({.limit_bytes = size_t{1} << 50}).status(); },
       Code::kInvalidArgument, "above 1 TiB"},
      {"Buffer::wrap", "null with a length",
       [](Scene&) { return Buffer::wrap(nullptr, 8, nullptr, nullptr).status(); },
       Code::kInvalidArgument, "null memory of 8 bytes"},
      {"Tensor::wrap", "null with a length",
       [](Scene&) {
         return Tensor::wrap(nullptr, TensorDescriptor::bytes(8), nullptr, nullptr).status();
       },
       Code::kInvalidArgument, "null memory for uint8[8]"},
      {"Buffer::reshape", "more than its capacity",
       [](Scene& s) { return s.memory().reshape(TensorDescriptor::bytes(1 << 20)); },
       Code::kInvalidArgument, "does not fit"},
      {"Tensor::slice_bytes", "outside the tensor",
       [](Scene& s) { return s.data(64).slice_bytes(60, 5).status(); }, Code::kInvalidArgument,
       "slice of 5 bytes at 60 of a tensor of 64 bytes"},
      {"Tensor::slice_bytes", "an offset that overflows",
       [](Scene& s) { return s.data(64).slice_bytes(~uint64_t{0}, 2).status(); },
       Code::kInvalidArgument, "of a tensor of 64 bytes"},
      {"TensorDescriptor::strided", "fewer strides than dimensions",
       [](Scene&) {
         const std::array<int64_t, 2> shape = {2, 2};
         const std::array<int64_t, 1> strides = {1};
         return TensorDescriptor::strided(shape, strides, float32, 0).status();
       },
       Code::kInvalidArgument, "1 strides for 2 dimensions"},
  };
}

std::vector<Refusal> of_connecting() {
  return {
      {"Context::connect", "no address", [](Scene& s) { return s.context().connect("").status(); },
       Code::kInvalidArgument, "examples: sluice://"},
      {"Context::connect", "an unknown scheme",
       [](Scene& s) { return s.context().connect("ftp://host:1").status(); },
       Code::kInvalidArgument, "unknown scheme; examples"},
      {"Context::connect", "a port out of range",
       [](Scene& s) { return s.context().connect("tcp://127.0.0.1:70000").status(); },
       Code::kInvalidArgument, "from 0 to 65535"},
      {"Context::connect", "requirements that no path meets",
       [](Scene& s) {
         return s.context().connect("tcp://127.0.0.1:1", {.require = {.zero_copy = true}}).status();
       },
       Code::kUnsupported, "tcp copies each byte 2 times; use sluice://"},
      {"Context::connect", "a secret file that is not there",
       [](Scene& s) {
         return s.context()
             .connect("l2://udp/127.0.0.1:1", {.secret_file = "/nowhere/secret"})
             .status();
       },
       Code::kInvalidArgument, "/nowhere/secret: it cannot be opened; make one with"},
      {"Context::connect", "a secret file that is not there, whatever path would be taken",
       [](Scene& s) {
         return s.context()
             .connect("sluice://127.0.0.1:1", {.secret_file = "/nowhere/secret"})
             .status();
       },
       Code::kInvalidArgument, "/nowhere/secret: it cannot be opened; make one with"},
      {"Context::listen", "a secret file that is not there",
       [](Scene& s) {
         return s.context()
             .listen("sluice://127.0.0.1:0", {.secret_file = "/nowhere/secret"})
             .status();
       },
       Code::kInvalidArgument, "/nowhere/secret: it cannot be opened; make one with"},
      {"Context::listen", "an address in use",
       [](Scene& s) { return s.context().listen(s.pair.address).status(); }, Code::kInvalidArgument,
       ""},
      {"Context::listen", "an unknown scheme",
       [](Scene& s) { return s.context().listen("ftp://host:1").status(); }, Code::kInvalidArgument,
       "unknown scheme; examples"},
      {"Context::listen", "an address of another machine",
       [](Scene& s) { return s.context().listen("tcp://192.0.2.77:0").status(); },
       Code::kInvalidArgument, "no interface of this machine"},
      {"Listener::accept", "nobody comes",
       [](Scene& s) { return s.pair.listener->accept(in(1ms)).status(); }, Code::kTimedOut,
       "nobody connected to"},
      {"Listener::accept", "after close",
       [](Scene& s) {
         auto listener = s.context().listen(fresh_address());
         REQUIRE(listener.ok());
         listener->close();
         return listener->accept(soon()).status();
       },
       Code::kWrongState, "closed, or was never opened; call Context::listen()"},
      {"Listener::try_accept", "after close",
       [](Scene& s) {
         auto listener = s.context().listen(fresh_address());
         REQUIRE(listener.ok());
         listener->close();
         return listener->try_accept().status();
       },
       Code::kWrongState, "closed, or was never opened; call Context::listen()"},
  };
}

std::vector<Refusal> of_endpoints() {
  return {
      {"Endpoint::send", "more segments than a message has",
       [](Scene& s) {
         const std::vector<Tensor> segments(100, s.data(8));
         return s.endpoint().send(1, std::span<const Tensor>(segments)).status();
       },
       Code::kInvalidArgument, "1 to 16 segments, not 100"},
      {"Endpoint::receive_and_wait", "nothing comes",
       [](Scene& s) {
         return s.endpoint().receive_and_wait({.tag = 77}, s.memory(), in(1ms)).status();
       },
       Code::kTimedOut,
       "no message with tag 77 arrived for a receive of 64 bytes; no other message waits either"},
      {"Endpoint::receive_and_wait", "another tag comes",
       [](Scene& s) {
         REQUIRE(s.pair.server.send(80, tensor(*s.pair.server_context, 1000, 1)).ok());
         s.pair.settle();
         const Status late =
             s.endpoint().receive_and_wait({.tag = 81}, s.memory(), in(1ms)).status();
         CHECK(s.endpoint().receive_and_wait({.tag = 80}, s.memory(1000), soon()).ok());
         return late;
       },
       Code::kTimedOut, "other messages wait: tag 80 (1000 bytes); receive those"},
      {"Endpoint::receive_and_wait", "a message that is larger",
       [](Scene& s) {
         REQUIRE(s.pair.server.send(78, tensor(*s.pair.server_context, 1000, 1)).ok());
         const Status small =
             s.endpoint().receive_and_wait({.tag = 78}, s.memory(10), soon()).status();
         CHECK(s.endpoint().receive_and_wait({.tag = 78}, s.memory(1000), soon()).ok());
         return small;
       },
       Code::kInvalidArgument, "post a larger receive, the message is kept"},
      {"Endpoint::read", "outside the grant",
       [](Scene& s) {
         return s.endpoint()
             .read_and_wait(s.readable, kGranted - 10, s.memory(64), soon())
             .status();
       },
       Code::kAccessDenied, ""},
      {"Endpoint::read", "an offset that overflows",
       [](Scene& s) {
         return s.endpoint()
             .read_and_wait(s.readable, ~uint64_t{0} - 1, s.memory(64), soon())
             .status();
       },
       Code::kAccessDenied, ""},
      {"Endpoint::write", "a grant to read",
       [](Scene& s) {
         return s.endpoint().write_and_wait(s.readable, 0, s.data(), soon()).status();
       },
       Code::kAccessDenied, path_is_direct() ? "" : "does not allow this (rights or range)"},
      {"Endpoint::cancel", "an operation that is not",
       [](Scene& s) { return s.endpoint().cancel(OperationId{}); }, Code::kInvalidArgument,
       "no such operation is outstanding"},
      {"Endpoint::grant", "an empty buffer",
       [](Scene& s) { return s.endpoint().grant(Buffer()).status(); }, Code::kInvalidArgument,
       "cannot be granted"},
      {"Endpoint::grant", "an empty tensor",
       [](Scene& s) { return s.endpoint().grant(Tensor()).status(); }, Code::kInvalidArgument,
       "cannot be granted"},
      {"Endpoint::revoke", "a key of nobody",
       [](Scene& s) { return s.endpoint().revoke(RemoteKey{}); }, Code::kInvalidArgument,
       "no such grant"},
      {"Endpoint::revoke", "twice",
       [](Scene& s) {
         auto key = s.endpoint().grant(s.memory());
         REQUIRE(key.ok());
         REQUIRE(s.endpoint().revoke(*key).ok());
         return s.endpoint().revoke(*key);
       },
       Code::kInvalidArgument, "no such grant; it was revoked before"},
      {"Endpoint::send", "after close",
       [](Scene& s) {
         auto [mine, theirs] = s.pair.connect_again();
         mine.core().start_close();
         REQUIRE(s.pair.until([&, &end = mine] { return end.state() == EndpointState::kClosed; }));
         return mine.send(1, s.data()).status();
       },
       Code::kWrongState, "the endpoint is closed"},
      {"Endpoint::receive", "after close",
       [](Scene& s) {
         auto [mine, theirs] = s.pair.connect_again();
         mine.core().start_close();
         REQUIRE(s.pair.until([&, &end = mine] { return end.state() == EndpointState::kClosed; }));
         return mine.receive({.tag = 1}, s.memory()).status();
       },
       Code::kWrongState, "the endpoint is closed"},
  };
}

std::vector<Refusal> of_the_exchange() {
  return {
      {"Exchange::publish", "an empty key",
       [](Scene& s) {
         return s.near.publish({"", 1}, s.data()).status();
       },
       Code::kInvalidArgument, "1 to 255 bytes, not 0"},
      {"Exchange::publish", "a key of 256 bytes",
       [](Scene& s) {
         return s.near.publish({std::string(256, 'k'), 1}, s.data()).status();
       },
       Code::kInvalidArgument, "1 to 255 bytes, not 256"},
      {"Exchange::publish", "a step that is published",
       [](Scene& s) {
         auto first = s.near.publish({"twice", 1}, s.data());
         REQUIRE(first.ok());
         return s.near.publish({"twice", 1}, s.data()).status();
       },
       Code::kInvalidArgument, "is published already; retire it or use another step"},
      {"Exchange::publish", "a step below one that is retired",
       [](Scene& s) {
         auto first = s.near.publish({"below", 5}, s.data());
         REQUIRE(first.ok());
         first->retire();
         return s.near.publish({"below", 5}, s.data()).status();
       },
       Code::kInvalidArgument, "was published before and has ended; use another step"},
      {"Exchange::publish", "no readers",
       [](Scene& s) {
         return s.near.publish({"w", 1}, s.data(), {.readers = 0}).status();
       },
       Code::kInvalidArgument, "at least one reader, or until_retired"},
      {"Exchange::publish", "-2 readers",
       [](Scene& s) {
         return s.near.publish({"w", 1}, s.data(), {.readers = -2}).status();
       },
       Code::kInvalidArgument, "at least one reader, or until_retired"},
      {"Exchange::publish", "-2 steps to keep",
       [](Scene& s) {
         return s.near.publish({"steps", 1}, s.data(), {.keep_steps = -2}).status();
       },
       Code::kInvalidArgument, "from 0 on, or -1 for all, not -2"},
      {"Exchange::fetch", "an empty key",
       [](Scene& s) {
         return s.outcome(s.near.fetch({"", 1}, soon()));
       },
       Code::kInvalidArgument, "1 to 255 bytes, not 0"},
      {"Exchange::fetch", "a key of 256 bytes",
       [](Scene& s) {
         return s.outcome(s.near.fetch({std::string(256, 'k'), 1}, soon()));
       },
       Code::kInvalidArgument, "1 to 255 bytes, not 256"},
      {"Exchange::fetch", "an endpoint that is not in it",
       [](Scene& s) {
         return s.outcome(s.near.fetch({"w", 1}, soon(), {.from = &s.pair.server}));
       },
       Code::kWrongState, "not in the exchange; add() it first"},
      {"Exchange::fetch", "what nobody publishes",
       [](Scene& s) {
         return s.outcome(s.near.fetch({"nobody", 1}, in(5ms)));
       },
       Code::kTimedOut, "was not published before the deadline"},
      {"Exchange::fetch_into", "another shape than was published",
       [](Scene& s) {
         auto published = s.far.publish({"shape", 1}, floats(*s.pair.server_context, {8}, 1));
         REQUIRE(published.ok());
         return s.outcome(s.near.fetch_into({"shape", 1}, s.memory(16), soon()));
       },
       Code::kInvalidArgument, "the tensor is float32[8], the destination uint8[16]; give"},
      {"Exchange::fetch_into", "another dtype, asked for before it is published",
       [](Scene& s) {
         auto early = s.near.fetch_into({"dtype", 1}, s.memory(32), soon());
         s.pair.settle();
         auto published = s.far.publish({"dtype", 1}, floats(*s.pair.server_context, {8}, 1));
         REQUIRE(published.ok());
         Status status = s.outcome(std::move(early));
         // Its place is free for one that fits.
         CHECK(s.outcome(s.near.fetch({"dtype", 1}, soon())).ok());
         return status;
       },
       Code::kInvalidArgument, "the tensor is float32[8], the destination uint8[32]"},
  };
}

TEST_CASE("each wrong call is refused with a code and a text that fit, and harms nothing",
          "[contract][misuse]") {
  NothingLeftBehind audit;
  {
    Scene scene;
    for (const auto& part : {of_memory(), of_connecting(), of_endpoints(), of_the_exchange()}) {
      for (const Refusal& each : part) {
        const Status status = each.make(scene);
        INFO(each.call << ": " << each.misuse << ": " << status.to_string());
        CHECK(status.code() == each.code);
        CHECK(status.detail().find(each.says) != std::string_view::npos);
        CHECK(status.detail().size() > 10);
      }
    }
    auto published = scene.far.publish({"after", 1}, floats(*scene.pair.server_context, {8}, 1));
    REQUIRE(published.ok());
    CHECK(scene.outcome(scene.near.fetch({"after", 1}, soon())).ok());
    CHECK(scene.endpoint().read_and_wait(scene.writable, 0, scene.memory(kGranted), soon()).ok());
    REQUIRE(scene.endpoint().send(79, scene.data(64)).ok());
    CHECK(scene.pair.server
              .receive_and_wait({.tag = 79}, room(*scene.pair.server_context, 64), soon())
              .ok());
    scene.pair.settle();
  }
}

}  // namespace
}  // namespace sluice::test
