// How calls end when what was lent comes late, never or broken, and when a listener goes away.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <google/protobuf/struct.pb.h>
#include <grpcpp/impl/client_unary_call.h>

#include <sluice/grpc/connection.h>
#include <sluice/grpc/discovery.h>
#include <sluice/select/open.h>

#include "tests/plugins/grpc/service.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

using ::grpc::ByteBuffer;
using ::grpc::ClientContext;
using grpc::Frame;
using grpc::FrameKind;
using ::grpc::StatusCode;
using ::grpc::internal::RpcMethod;
using interop::SimpleRequest;
using interop::SimpleResponse;

// Calls that threads made, for one that waits for them.
class Count {
 public:
  void add() {
    ++count_;
    count_.notify_all();
  }
  int value() const { return count_; }
  void reaches(int wanted) const {
    for (int seen; (seen = count_) < wanted;) count_.wait(seen);
  }

 private:
  std::atomic<int> count_{0};
};

constexpr char kUnaryCall[] = "/sluice.interop.TestService/UnaryCall";

void give(ClientContext& context, std::chrono::milliseconds time) {
  context.set_deadline(std::chrono::system_clock::now() + time);
}

// One end of the bridge that is made by hand.
struct HandMade final : grpc::Connection::Owner {
  explicit HandMade(const InteropServer& server) {
    const grpc::Announcement found = server.announcement();
    auto opened = open_context();
    REQUIRE(opened.ok());
    context = std::move(*opened);
    auto endpoint = context->connect(found.address);
    REQUIRE(endpoint.ok());
    connection = std::make_unique<grpc::Connection>(*context, std::move(*endpoint), *this);
    connection->send(
        {.kind = FrameKind::kHello, .version = grpc::kBridgeVersion, .token = found.token});
  }
  ~HandMade() {
    connection->close();
    (void)context->wait_until([&] { return closed; }, after(now(), 20s));
  }
  void on_frame(const Frame& frame) override { frames.push_back(frame); }
  void on_closed(const Status&) override { closed = true; }
  const Frame* status() {
    (void)context->wait_until(
        [&] { return !frames.empty() && frames.back().kind == FrameKind::kStatus; },
        after(now(), 20s));
    return !frames.empty() && frames.back().kind == FrameKind::kStatus ? &frames.back() : nullptr;
  }
  std::unique_ptr<Context> context;
  std::unique_ptr<grpc::Connection> connection;
  std::vector<Frame> frames;
  bool closed = false;
};

}  // namespace

TEST_CASE(
    "a lent response that comes behind its status is waited for, also by a listener that ends",
    "[grpc][ends]") {
  InteropServer server(GENERATE(By::kShm, By::kTcp));
  auto stub = server.stub();
  const auto call = [&](int bytes) {
    ClientContext context;
    give(context, 10s);
    SimpleRequest request;
    request.set_response_size(bytes);
    SimpleResponse response;
    const ::grpc::Status status = stub->UnaryCall(&context, request, &response);
    return status.ok() && response.payload().body().size() == static_cast<size_t>(bytes)
               ? std::string("ok")
               : status.error_message();
  };
  REQUIRE(call(10) == "ok");
  std::atomic<bool> over{false};
  Count calls;
  std::vector<std::string> wrong(4);
  std::vector<std::thread> callers;
  for (std::string& said : wrong) {
    callers.emplace_back([&] {
      while (!over) {
        std::string now = call(1'000'000);
        calls.add();
        if (now != "ok") said = now;
      }
    });
  }
  calls.reaches(20);
  server.listener()->Shutdown(std::chrono::system_clock::now() + 30s);
  calls.reaches(calls.value() + 20);  // by gRPC's own connection
  over = true;
  for (auto& caller : callers) caller.join();
  for (const std::string& said : wrong) CHECK(said == "");
}

TEST_CASE("a request that the server cannot fetch ends its call with a status", "[grpc][ends]") {
  InteropServer server(GENERATE(By::kShm, By::kTcp));
  for (const bool whole : {true, false}) {
    INFO("whole " << whole);
    HandMade client(server);
    client.connection->send(
        {.kind = FrameKind::kHeaders, .stream = 1, .whole = whole, .text = kUnaryCall});
    client.connection->send({.kind = FrameKind::kMessage,
                             .stream = 1,
                             .length = 100'000,
                             .parts = {{.payload = 77, .length = 100'000, .bytes = {}}}});
    const Frame* status = client.status();
    REQUIRE(status != nullptr);
    CHECK(status->stream == 1);
    CHECK(status->code == static_cast<uint32_t>(StatusCode::UNAVAILABLE));
    CHECK_THAT(status->text, Catch::StartsWith("sluice: the server could not fetch the request"));
  }
}

TEST_CASE("a response of a stream that does not parse ends it, also behind its status",
          "[grpc][ends]") {
  using google::protobuf::Struct;
  InteropServer server(GENERATE(By::kShm, By::kTcp));
  auto channel = server.channel();
  const RpcMethod method(kUnaryCall, RpcMethod::SERVER_STREAMING);
  for (const int length : {100, 100'000}) {
    for (const bool late : {false, true}) {
      INFO("length " << length << ", late " << late);
      ClientContext context;
      give(context, 20s);
      SimpleRequest request;
      request.set_echo(true);
      request.mutable_payload()->set_body(std::string(static_cast<size_t>(length), '\xff'));
      std::unique_ptr<::grpc::ClientReader<Struct>> reader(
          ::grpc::internal::ClientReaderFactory<Struct>::Create(channel.get(), method, &context,
                                                                request));
      if (late) (void)std::promise<void>().get_future().wait_for(200ms);
      Struct other;
      const bool read = reader->Read(&other);
      // gRPC has decided by then whether a large one was read.
      if (length == 100) CHECK_FALSE(read);
      CHECK(other.fields().empty());
      CHECK(reader->Finish().error_code() == StatusCode::INTERNAL);
    }
  }
}

TEST_CASE("a channel that forces a path makes no new calls on a connection that ends",
          "[grpc][ends]") {
  InteropServer server(By::kShm);
  const std::string path = GENERATE("shm", "tcp");
  auto channel = sluice::grpc::CreateChannel(path + "://" + server.target(),
                                             ::grpc::InsecureChannelCredentials());
  auto stub = interop::TestService::NewStub(channel);
  ClientContext open;
  auto stream = stub->FullDuplexCall(&open);
  interop::StreamingOutputCallRequest request;
  request.add_response_parameters()->set_size(10);
  interop::StreamingOutputCallResponse response;
  REQUIRE(stream->Write(request));
  REQUIRE(stream->Read(&response));
  const Instant start = now();
  std::thread ending([&] { server.listener()->Shutdown(std::chrono::system_clock::now() + 20s); });
  ::grpc::Status status;
  while (status.ok() && now() - start < 15s) {
    ClientContext context;
    give(context, 300ms);
    interop::Empty nothing, none;
    status = stub->EmptyCall(&context, nothing, &none);
  }
  // It waits for a connection that takes new calls.
  CHECK(status.error_code() == StatusCode::DEADLINE_EXCEEDED);
  CHECK(stream->WritesDone());
  CHECK(stream->Finish().ok());
  ending.join();
  CHECK(now() - start < 15s);
  ClientContext context;
  give(context, 20s);
  interop::Empty nothing, none;
  status = stub->EmptyCall(&context, nothing, &none);
  CHECK(status.error_code() == StatusCode::UNAVAILABLE);
}

TEST_CASE("a call that forces a path and whose time is over never goes by gRPC's own connection",
          "[grpc][ends]") {
  // A listener that accepts nobody.
  auto context = open_context();
  REQUIRE(context.ok());
  auto listener = (*context)->listen("tcp://127.0.0.1:0");
  REQUIRE(listener.ok());
  InteropServer server(By::kPlain);
  const std::string address = listener->address();
  auto announcer = std::make_shared<grpc::Announcer>([&](const grpc::Properties&) {
    return grpc::Announcement{.token = {std::byte{1}}, .address = address};
  });
  REQUIRE(grpc::announce(&server.server(), announcer).has_value());
  auto channel =
      sluice::grpc::CreateChannel("tcp://" + server.target(), ::grpc::InsecureChannelCredentials());
  auto stub = interop::TestService::NewStub(channel);
  for (int i = 0; i < 30; ++i) {
    ClientContext call;
    give(call, 20ms);
    SimpleRequest request;
    request.set_fill_peer(true);
    SimpleResponse response;
    CHECK(stub->UnaryCall(&call, request, &response).error_code() == StatusCode::DEADLINE_EXCEEDED);
  }
  CHECK(server.service().becomes_idle());
  CHECK(server.service().metadata().empty());
}

TEST_CASE("a cancel and a deadline end a stream whose status came behind unread messages",
          "[grpc][ends]") {
  InteropServer server(GENERATE(By::kPlain, By::kShm, By::kTcp));
  const bool cancels = GENERATE(true, false);
  auto stub = server.stub();
  ClientContext context;
  give(context, cancels ? 20s : 1s);
  interop::StreamingOutputCallRequest request;
  for (int i = 0; i < 8; ++i) request.add_response_parameters()->set_size(10);
  auto reader = stub->StreamingOutputCall(&context, request);
  interop::StreamingOutputCallResponse response;
  REQUIRE(reader->Read(&response));
  CHECK(server.service().becomes_idle());
  (void)std::promise<void>().get_future().wait_for(200ms);  // its status is here
  if (cancels) context.TryCancel();
  CHECK(reader->Finish().error_code() ==
        (cancels ? StatusCode::CANCELLED : StatusCode::DEADLINE_EXCEEDED));
}

TEST_CASE("a stranger cannot hold a server up that shuts down", "[grpc][ends]") {
  InteropServer server(GENERATE(By::kPlain, By::kShm));
  ClientContext context;
  give(context, 20s);
  ByteBuffer answer;
  std::unique_ptr<::grpc::ClientReader<ByteBuffer>> reader(
      ::grpc::internal::ClientReaderFactory<ByteBuffer>::Create(
          server.channel(false).get(), RpcMethod(grpc::kHoldMethod, RpcMethod::SERVER_STREAMING),
          &context, grpc::buffer_of("")));
  CHECK_FALSE(reader->Read(&answer));
  CHECK(reader->Finish().error_code() == StatusCode::PERMISSION_DENIED);
}

}  // namespace sluice::test
