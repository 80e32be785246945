// Lent messages that nobody fetches: they are given back, and do not pile up.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include <sluice/base/counters.h>
#include <sluice/grpc/connection.h>
#include <sluice/select/open.h>

#include "tests/plugins/grpc/service.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

using ::grpc::ClientContext;
using grpc::Frame;
using grpc::FrameKind;
using ::grpc::StatusCode;

uint64_t fetched() { return read_counter("grpc.payloads_fetched"); }
// Lent by either end, and neither fetched nor given back.
uint64_t kept() {
  return read_counter("grpc.payloads_lent") - fetched() - read_counter("grpc.payloads_dropped");
}

// Until neither end of a bridge keeps more than before.
bool comes_down_to(uint64_t before) {
  const Instant deadline = after(now(), 20s);
  while (kept() > before && now() < deadline) std::this_thread::yield();
  return kept() <= before;
}

struct End final : grpc::Connection::Owner {
  End(Context& context, Endpoint endpoint) : connection(context, std::move(endpoint), *this) {}
  void on_frame(const Frame& frame) override { frames.push_back(frame); }
  void on_closed(const Status&) override { closed = true; }
  grpc::Connection connection;
  std::vector<Frame> frames;
  bool closed = false;
};

// Both ends in one context.
struct Ends {
  Ends() {
    auto opened = open_context();
    REQUIRE(opened.ok());
    context = std::move(*opened);
    auto listener = context->listen("tcp://127.0.0.1:0");
    REQUIRE(listener.ok());
    auto there = context->connect(listener->address());
    REQUIRE(there.ok());
    auto here = listener->accept(after(now(), 20s));
    REQUIRE(here.ok());
    lender = std::make_unique<End>(*context, std::move(*here));
    receiver = std::make_unique<End>(*context, std::move(*there));
  }
  ~Ends() {
    lender->connection.close();
    receiver->connection.close();
    CHECK(until([&] { return lender->closed && receiver->closed; }));
  }
  template <typename Condition>
  bool until(Condition condition) {
    return context->wait_until(condition, after(now(), 20s)).ok();
  }
  // A message of `parts` lent parts of `bytes` bytes each.
  void lend(size_t parts, size_t bytes) {
    Frame message{.kind = FrameKind::kMessage, .stream = 1, .length = parts * bytes};
    for (size_t i = 0; i < parts; ++i) {
      auto room = context->allocate({static_cast<int64_t>(bytes)}, uint8);
      REQUIRE(room.ok());
      const uint64_t payload = lender->connection.lend(std::move(*room).freeze());
      message.parts.push_back({.payload = payload, .length = bytes, .bytes = {}});
    }
    lender->connection.send(message);
  }

  std::unique_ptr<Context> context;
  std::unique_ptr<End> lender, receiver;
};

}  // namespace

TEST_CASE("lent parts that the receiver drops are freed, also when the tables are full",
          "[grpc][lent]") {
  Ends ends;
  const uint64_t before = kept();
  constexpr size_t kMessages = 400;  // more parts than an endpoint has operations
  for (size_t i = 0; i < kMessages; ++i) ends.lend(grpc::kMostParts, 64);
  REQUIRE(ends.until([&] { return ends.receiver->frames.size() == kMessages; }));
  CHECK(kept() == before + kMessages * grpc::kMostParts);
  const uint64_t first = ends.receiver->frames[0].parts[0].payload;
  for (const Frame& frame : ends.receiver->frames) ends.receiver->connection.drop_parts(frame);
  CHECK(ends.until([&] { return kept() == before; }));
  // It is gone.
  bool failed = false;
  ends.receiver->connection.fetch(first, [&](Result<Tensor> got) { failed = !got.ok(); });
  CHECK(ends.until([&] { return failed; }));
}

TEST_CASE("a peer that sends messages for nothing and takes none back loses its connection",
          "[grpc][lent]") {
  Ends ends;
  Frame message{.kind = FrameKind::kMessage, .stream = 1, .length = 6400};
  for (uint64_t i = 1; i <= grpc::kMostParts; ++i)
    message.parts.push_back({.payload = i, .length = 100, .bytes = {}});
  int taken = 0;
  while (taken < 2000 && ends.receiver->connection.open()) {
    ends.receiver->connection.drop_parts(message);
    ++taken;
  }
  // Far beyond what calls that cross their ends can have.
  CHECK(taken > 1000);
  CHECK(taken < 2000);
  CHECK(ends.until([&] { return ends.receiver->closed; }));
}

TEST_CASE("an end that lends what nobody takes reads on only when it is taken or dropped",
          "[grpc][lent]") {
  Ends ends;
  const bool dropped = GENERATE(false, true);
  ends.lender->connection.stop_reading_beyond(SIZE_MAX, 1 << 20);
  ends.lend(1, 2 << 20);
  REQUIRE(ends.until([&] { return ends.receiver->frames.size() == 1; }));
  constexpr uint32_t kFrames = 200;
  for (uint32_t i = 1; i <= kFrames; ++i) {  // each in a packet of its own
    ends.receiver->connection.send({.kind = FrameKind::kHalfClose, .stream = i});
    for (int turns = 0; turns < 10; ++turns) ends.context->progress();
  }
  // What was posted before it was known.
  CHECK(ends.lender->frames.size() <= 20);
  if (dropped) {
    ends.receiver->connection.drop_parts(ends.receiver->frames[0]);
  } else {
    bool got = false;
    ends.receiver->connection.fetch(ends.receiver->frames[0].parts[0].payload,
                                    [&](Result<Tensor> fetched) { got = fetched.ok(); });
    CHECK(ends.until([&] { return got; }));
  }
  CHECK(ends.until([&] { return ends.lender->frames.size() == kFrames; }));
}

TEST_CASE("a request beyond the server's limit is not fetched, and is given back", "[grpc][lent]") {
  const By by = GENERATE(By::kShm, By::kTcp);
  // The second is gRPC's own, of a server that says nothing.
  const int limit = GENERATE(1 << 20, InteropServer::kUsualLimit);
  const bool stream = GENERATE(false, true);
  InteropServer server(by, limit);
  auto stub = server.stub();
  const uint64_t kept_before = kept(), fetched_before = fetched();
  const auto call = [&](size_t bytes) {
    ClientContext context;
    if (!stream) {
      interop::SimpleRequest request;
      interop::SimpleResponse response;
      request.mutable_payload()->mutable_body()->assign(bytes, 'x');
      return stub->UnaryCall(&context, request, &response);
    }
    interop::StreamingInputCallResponse response;
    interop::StreamingInputCallRequest request;
    request.mutable_payload()->mutable_body()->assign(bytes, 'x');
    auto writer = stub->StreamingInputCall(&context, &response);
    (void)writer->Write(request);
    (void)writer->WritesDone();
    return writer->Finish();
  };
  const size_t most = limit > 0 ? static_cast<size_t>(limit) : size_t{4} << 20;
  const ::grpc::Status status = call(most + 1000);
  CHECK(status.error_code() == StatusCode::RESOURCE_EXHAUSTED);
  CHECK_THAT(status.error_message(), Catch::StartsWith("Received message larger than max"));
  CHECK(fetched() == fetched_before);
  CHECK(comes_down_to(kept_before));
  CHECK(call(most - 1000).ok());
  CHECK(fetched() == fetched_before + 1);
}

TEST_CASE("a response beyond the client's limit is given back", "[grpc][lent]") {
  InteropServer server(GENERATE(By::kShm, By::kTcp));
  auto channel = sluice::grpc::CreateCustomChannel(
      server.target(), ::grpc::InsecureChannelCredentials(), ::grpc::ChannelArguments());
  auto stub = interop::TestService::NewStub(channel);
  const uint64_t before = kept();
  for (int i = 0; i < 5; ++i) {
    ClientContext context;
    interop::SimpleRequest request;
    interop::SimpleResponse response;
    request.set_response_size(5 << 20);
    CHECK(stub->UnaryCall(&context, request, &response).error_code() ==
          StatusCode::RESOURCE_EXHAUSTED);
  }
  CHECK(comes_down_to(before));
}

TEST_CASE("what is on its way when a call is cancelled is given back", "[grpc][lent]") {
  InteropServer server(GENERATE(By::kShm, By::kTcp));
  auto stub = server.stub();
  const uint64_t before = kept(), dropped = read_counter("grpc.payloads_dropped");
  // Not every cancel crosses a message.
  for (int i = 0; i < 2000 && read_counter("grpc.payloads_dropped") < dropped + 10; ++i) {
    ClientContext context;
    interop::StreamingOutputCallRequest request;
    for (int k = 0; k < 8; ++k) request.add_response_parameters()->set_size(100'000);
    auto reader = stub->StreamingOutputCall(&context, request);
    interop::StreamingOutputCallResponse response;
    CHECK(reader->Read(&response));
    context.TryCancel();
    (void)reader->Finish();
  }
  CHECK(read_counter("grpc.payloads_dropped") > dropped);
  CHECK(comes_down_to(before));
}

}  // namespace sluice::test
