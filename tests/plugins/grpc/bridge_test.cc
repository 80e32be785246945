// The bridge beside the cases of gRPC's description: other interfaces of stubs, limits,
// back-pressure, servers without it, and peers that break the rules.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/client_unary_call.h>

#include <sluice/base/counters.h>
#include <sluice/grpc/discovery.h>
#include <sluice/select/open.h>

#include "tests/plugins/grpc/service.h"
#include "tests/support/pattern.h"

namespace sluice::test {
namespace {

using ::grpc::ClientContext;
using ::grpc::StatusCode;
using interop::SimpleRequest;
using interop::SimpleResponse;
using interop::StreamingOutputCallRequest;
using interop::StreamingOutputCallResponse;

By bridged_path() { return GENERATE(By::kShm, By::kTcp); }

std::string peer_of_a_call(interop::TestService::Stub& stub) {
  ClientContext context;
  SimpleRequest request;
  SimpleResponse response;
  request.set_fill_peer(true);
  ::grpc::Status status = stub.UnaryCall(&context, request, &response);
  return status.ok() ? response.peer() : "failed: " + status.error_message();
}

class CountingInterceptors final : public ::grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit CountingInterceptors(std::atomic<int>& messages) : messages_(messages) {}
  ::grpc::experimental::Interceptor* CreateClientInterceptor(
      ::grpc::experimental::ClientRpcInfo*) override {
    struct Counting final : ::grpc::experimental::Interceptor {
      explicit Counting(std::atomic<int>& messages) : messages(messages) {}
      void Intercept(::grpc::experimental::InterceptorBatchMethods* batch) override {
        using Hook = ::grpc::experimental::InterceptionHookPoints;
        if (batch->QueryInterceptionHookPoint(Hook::PRE_SEND_INITIAL_METADATA))
          batch->GetSendInitialMetadata()->emplace("x-grpc-test-echo-initial", "intercepted");
        if (batch->QueryInterceptionHookPoint(Hook::POST_RECV_MESSAGE) &&
            batch->GetRecvMessage() != nullptr)
          ++messages;
        batch->Proceed();
      }
      std::atomic<int>& messages;
    };
    return new Counting(messages_);
  }

 private:
  std::atomic<int>& messages_;
};

}  // namespace

TEST_CASE("a server without a listener is called by plain gRPC", "[grpc]") {
  InteropServer server(By::kPlain);
  auto stub = server.stub();
  CHECK_THAT(peer_of_a_call(*stub), Catch::StartsWith("ipv4:"));
}

TEST_CASE("messages of all sizes cross whole in both directions", "[grpc]") {
  InteropServer server(bridged_path());
  auto stub = server.stub();
  for (int size : {0, 1, 32 << 10, (32 << 10) + 1, 1 << 20, (1 << 20) + 1, 20 << 20}) {
    ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    SimpleRequest request;
    SimpleResponse response;
    std::string& body = *request.mutable_payload()->mutable_body();
    body.resize(static_cast<size_t>(size));
    fill(std::as_writable_bytes(std::span(body)), 7);
    request.set_echo(true);
    INFO("size " << size);
    REQUIRE(stub->UnaryCall(&context, request, &response).ok());
    CHECK((response.payload().body() == body));
  }
}

TEST_CASE("SLUICE_GRPC=off makes a channel plain", "[grpc]") {
  InteropServer server(By::kShm);
  ::setenv("SLUICE_GRPC", "off", 1);
  auto stub = server.stub();
  ::unsetenv("SLUICE_GRPC");
  CHECK_THAT(peer_of_a_call(*stub), Catch::StartsWith("ipv4:"));
}

TEST_CASE("a server that is not there gives what plain gRPC gives", "[grpc]") {
  auto channel = sluice::grpc::CreateChannel("127.0.0.1:1", ::grpc::InsecureChannelCredentials());
  auto stub = interop::TestService::NewStub(channel);
  ClientContext context;
  interop::Empty request, response;
  CHECK(stub->EmptyCall(&context, request, &response).error_code() == StatusCode::UNAVAILABLE);
}

TEST_CASE("a plain client of a bridged server goes by its port, and cannot claim a path",
          "[grpc]") {
  InteropServer server(By::kShm);
  auto stub = interop::TestService::NewStub(server.channel(false));
  ClientContext context;
  context.AddMetadata("sluice-peer", "shm:forged");
  context.AddMetadata("sluice-proof-bin", std::string(16, '\0'));
  SimpleRequest request;
  SimpleResponse response;
  request.set_fill_peer(true);
  REQUIRE(stub->UnaryCall(&context, request, &response).ok());
  CHECK_THAT(response.peer(), Catch::StartsWith("ipv4:"));
}

TEST_CASE("a plain client that repeats the metadata of a bridged call cannot claim its path",
          "[grpc]") {
  InteropServer server(By::kShm);
  auto bridged = server.stub();
  CHECK_THAT(peer_of_a_call(*bridged), Catch::StartsWith(server.expected_peer()));
  const auto metadata = server.service().metadata();  // as a service that passes it on tells it
  REQUIRE(metadata.contains("sluice-proof-bin"));
  auto stub = interop::TestService::NewStub(server.channel(false));
  ClientContext context;
  for (const auto& [key, value] : metadata) {
    if (key.starts_with("sluice-")) context.AddMetadata(key, value);
  }
  SimpleRequest request;
  SimpleResponse response;
  request.set_fill_peer(true);
  REQUIRE(stub->UnaryCall(&context, request, &response).ok());
  CHECK_THAT(response.peer(), Catch::StartsWith("ipv4:"));
}

TEST_CASE("a bridged client cannot claim to be another", "[grpc]") {
  InteropServer server(bridged_path());
  auto stub = server.stub();
  ClientContext context;
  context.AddMetadata("sluice-peer", "forged");
  SimpleRequest request;
  SimpleResponse response;
  request.set_fill_peer(true);
  REQUIRE(stub->UnaryCall(&context, request, &response).ok());
  CHECK_THAT(response.peer(), Catch::StartsWith(server.expected_peer()));
}

TEST_CASE("the asynchronous interface works over the bridge", "[grpc]") {
  InteropServer server(bridged_path());
  auto stub = server.stub();
  ::grpc::CompletionQueue queue;
  constexpr int kCalls = 50;
  struct Call {
    ClientContext context;
    SimpleResponse response;
    ::grpc::Status status;
    std::unique_ptr<::grpc::ClientAsyncResponseReader<SimpleResponse>> reader;
  };
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < kCalls; ++i) {
    auto call = std::make_unique<Call>();
    SimpleRequest request;
    request.set_response_size(i * 5000);
    call->reader = stub->AsyncUnaryCall(&call->context, request, &queue);
    call->reader->Finish(&call->response, &call->status, call.get());
    calls.push_back(std::move(call));
  }
  for (int i = 0; i < kCalls; ++i) {
    void* tag;
    bool ok;
    REQUIRE(queue.Next(&tag, &ok));
    CHECK(ok);
    CHECK(static_cast<Call*>(tag)->status.ok());
  }
  for (int i = 0; i < kCalls; ++i)
    CHECK(calls[static_cast<size_t>(i)]->response.payload().body().size() ==
          static_cast<size_t>(i) * 5000);
}

TEST_CASE("the callback interface works over the bridge, a thousand calls at once", "[grpc]") {
  InteropServer server(bridged_path());
  auto stub = server.stub();
  REQUIRE_THAT(peer_of_a_call(*stub), Catch::StartsWith(server.expected_peer()));
  constexpr int kCalls = 1000;
  struct Call {
    ClientContext context;
    SimpleRequest request;
    SimpleResponse response;
  };
  std::vector<Call> calls(kCalls);
  std::atomic<int> good{0}, left{kCalls};
  std::promise<void> all;
  const uint64_t before = read_counter("grpc.calls_bridged");
  for (Call& call : calls) {
    // Some larger than what lies in frames.
    const bool large = (&call - calls.data()) % 4 == 0;
    call.request.set_response_size(large ? 100'000 : 1000);
    call.request.mutable_payload()->mutable_body()->assign(large ? 50'000 : 2000, 'x');
    stub->async()->UnaryCall(
        &call.context, &call.request, &call.response, [&](::grpc::Status status) {
          good += status.ok() && call.response.payload().body().size() ==
                                     static_cast<size_t>(call.request.response_size());
          if (--left == 0) all.set_value();
        });
  }
  all.get_future().wait();
  CHECK(good == kCalls);
  CHECK(read_counter("grpc.calls_bridged") - before == kCalls);
}

// Threads that block progress the connection themselves, one of them for all.
TEST_CASE("callers of one channel that block get their own answers", "[grpc]") {
  InteropServer server(bridged_path());
  auto stub = server.stub();
  REQUIRE(peer_of_a_call(*stub).starts_with(server.expected_peer()));
  std::atomic<int> right{0}, wrong{0};
  const auto make_calls = [&](int caller) {
    for (int i = 0; i < 100; ++i) {
      SimpleRequest request;
      SimpleResponse response;
      // Its own length, now and then one that is lent.
      const int length = caller * 1000 + i + (i % 10 == 9 ? 100'000 : 0);
      request.set_response_size(length);
      request.mutable_payload()->set_body(std::string(static_cast<size_t>(length), 'q'));
      ClientContext context;
      const bool ok = stub->UnaryCall(&context, request, &response).ok();
      ++(ok && response.payload().body().size() == static_cast<size_t>(length) ? right : wrong);
    }
  };
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller) callers.emplace_back(make_calls, caller);
  for (std::thread& caller : callers) caller.join();
  CHECK(right == 600);
  CHECK(wrong == 0);
}

TEST_CASE("a generic stub works over the bridge", "[grpc]") {
  InteropServer server(bridged_path());
  ::grpc::TemplatedGenericStub<::grpc::ByteBuffer, ::grpc::ByteBuffer> stub(server.channel());
  SimpleRequest request;
  request.set_response_size(300000);
  ClientContext context;
  ::grpc::ByteBuffer question = grpc::buffer_of(request.SerializeAsString()), answer;
  std::promise<::grpc::Status> done;
  stub.UnaryCall(&context, "/sluice.interop.TestService/UnaryCall", {}, &question, &answer,
                 [&](::grpc::Status status) { done.set_value(status); });
  REQUIRE(done.get_future().get().ok());
  SimpleResponse response;
  REQUIRE(response.ParseFromString(grpc::text_of(answer)));
  CHECK(response.payload().body().size() == 300000);
}

TEST_CASE("the user's interceptors see bridged calls", "[grpc]") {
  InteropServer server(bridged_path());
  std::atomic<int> messages{0};
  std::vector<std::unique_ptr<::grpc::experimental::ClientInterceptorFactoryInterface>> own;
  own.push_back(std::make_unique<CountingInterceptors>(messages));
  auto channel = sluice::grpc::CreateCustomChannelWithInterceptors(
      server.target(), ::grpc::InsecureChannelCredentials(), {}, std::move(own));
  auto stub = interop::TestService::NewStub(channel);
  ClientContext context;
  SimpleRequest request;
  SimpleResponse response;
  request.set_fill_peer(true);
  REQUIRE(stub->UnaryCall(&context, request, &response).ok());
  CHECK_THAT(response.peer(), Catch::StartsWith(server.expected_peer()));
  // One of the call, and one where the channel was asked for the listener.
  CHECK(messages >= 1);
  const auto& initial = context.GetServerInitialMetadata();
  auto echoed = initial.find("x-grpc-test-echo-initial");
  REQUIRE(echoed != initial.end());
  CHECK(echoed->second == "intercepted");
}

TEST_CASE("message limits are those that the user set, with gRPC's status", "[grpc]") {
  const By by = GENERATE(By::kPlain, By::kShm, By::kTcp);
  InteropServer server(by, 1 << 20);
  const auto call = [&](::grpc::ChannelArguments arguments, int request_size, int response_size) {
    auto channel = sluice::grpc::CreateCustomChannel(
        server.target(), ::grpc::InsecureChannelCredentials(), arguments);
    auto stub = interop::TestService::NewStub(channel);
    ClientContext context;
    SimpleRequest request;
    SimpleResponse response;
    request.mutable_payload()->mutable_body()->assign(static_cast<size_t>(request_size), 'x');
    request.set_response_size(response_size);
    return stub->UnaryCall(&context, request, &response).error_code();
  };
  ::grpc::ChannelArguments usual, sending;
  sending.SetMaxSendMessageSize(100);
  CHECK(call(usual, 1000, 1000) == StatusCode::OK);
  CHECK(call(usual, 1000, 5 << 20) == StatusCode::RESOURCE_EXHAUSTED);
  CHECK(call(usual, 2 << 20, 1000) == StatusCode::RESOURCE_EXHAUSTED);
  CHECK(call(sending, 1000, 1000) == StatusCode::RESOURCE_EXHAUSTED);
}

TEST_CASE("a client that does not read stops the service from writing", "[grpc]") {
  InteropServer server(bridged_path());
  auto stub = server.stub();
  ClientContext context;
  StreamingOutputCallRequest request;
  constexpr int kMessages = 400;
  for (int i = 0; i < kMessages; ++i) request.add_response_parameters()->set_size(200'000);
  auto reader = stub->StreamingOutputCall(&context, request);
  StreamingOutputCallResponse response;
  REQUIRE(reader->Read(&response));
  // The window is a megabyte; beside it lie a message or two in gRPC's own hands.
  int written = 0;
  for (int same = 0; same < 20; ++same) {
    std::this_thread::yield();
    (void)peer_of_a_call(*stub);  // other calls go on
    if (written != server.service().responses_written) same = 0;
    written = server.service().responses_written;
  }
  CHECK(written < 20);
  int read = 1;
  while (reader->Read(&response)) ++read;
  CHECK(read == kMessages);
  CHECK(reader->Finish().ok());
}

TEST_CASE("Shutdown of the listener waits for calls in flight, and new ones go by plain gRPC",
          "[grpc]") {
  InteropServer server(bridged_path());
  auto stub = server.stub();
  ClientContext context;
  auto stream = stub->FullDuplexCall(&context);
  StreamingOutputCallRequest request;
  request.add_response_parameters()->set_size(10);
  StreamingOutputCallResponse response;
  REQUIRE(stream->Write(request));
  REQUIRE(stream->Read(&response));
  std::thread stopping([&] {
    server.listener()->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(30));
  });
  std::string peer;
  std::string failed;
  while (!(peer = peer_of_a_call(*stub)).starts_with("ipv4:") && failed.empty())
    if (peer.starts_with("failed")) failed = peer;
  CHECK(failed == "");
  CHECK(stream->Write(request));
  CHECK(stream->Read(&response));
  CHECK(stream->WritesDone());
  ::grpc::Status status = stream->Finish();
  CHECK(status.error_message() == "");
  CHECK(status.ok());
  stopping.join();
}

TEST_CASE("Shutdown of the listener ends calls that outlive the deadline", "[grpc]") {
  InteropServer server(bridged_path());
  auto stub = server.stub();
  ClientContext context;
  auto stream = stub->FullDuplexCall(&context);
  StreamingOutputCallRequest request;
  request.add_response_parameters()->set_size(10);
  StreamingOutputCallResponse response;
  REQUIRE(stream->Write(request));
  REQUIRE(stream->Read(&response));
  server.listener()->Shutdown(std::chrono::system_clock::now());
  CHECK_FALSE(stream->Read(&response));
  CHECK(stream->Finish().error_code() == StatusCode::UNAVAILABLE);
  CHECK(server.service().becomes_idle());
}

TEST_CASE("who has no token of the server, or breaks the format, is refused, and calls go on",
          "[grpc]") {
  InteropServer server(By::kTcp);
  auto stub = server.stub();
  REQUIRE_THAT(peer_of_a_call(*stub), Catch::StartsWith("tcp:"));
  auto context = open_context();
  REQUIRE(context.ok());
  const auto soon = [] { return now() + std::chrono::seconds(20); };
  // What is sent after a right or a wrong hello; the server ends the connection.
  const auto ends = [&](const std::string& bytes) {
    auto endpoint = (*context)->connect(server.announcement().address);
    REQUIRE(endpoint.ok());
    auto room = (*context)->allocate({static_cast<int64_t>(bytes.size())}, uint8);
    REQUIRE(room.ok());
    std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), room->data());
    REQUIRE(endpoint->send(1, std::move(*room).freeze()).ok());
    return (*context)
        ->wait_until([&] { return endpoint->state() == EndpointState::kClosed; }, soon())
        .ok();
  };
  const auto hello = [&] {
    std::string text;
    grpc::append(text, {.kind = grpc::FrameKind::kHello,
                        .version = grpc::kBridgeVersion,
                        .token = server.announcement().token});
    return text;
  };
  std::string stranger;
  grpc::append(stranger, {.kind = grpc::FrameKind::kHello, .version = grpc::kBridgeVersion});
  CHECK(ends(stranger));
  CHECK(ends("no frame at all"));
  CHECK(ends(hello() + "no frame at all"));
  for (const grpc::Frame& wrong : std::vector<grpc::Frame>{
           {.kind = grpc::FrameKind::kMessage, .stream = 7, .length = 0},
           {.kind = grpc::FrameKind::kStatus, .stream = 1},
           {.kind = grpc::FrameKind::kHello, .version = grpc::kBridgeVersion},
       }) {
    std::string text = hello();
    grpc::append(text, wrong);
    CHECK(ends(text));
  }
  // A number used twice, and credit for what was never sent.
  for (grpc::FrameKind second : {grpc::FrameKind::kHeaders, grpc::FrameKind::kWindow}) {
    std::string text = hello();
    grpc::append(text, {.kind = grpc::FrameKind::kHeaders,
                        .stream = 1,
                        .text = "/sluice.interop.TestService/FullDuplexCall"});
    grpc::append(text, {.kind = second, .stream = 1, .text = "/a/b", .count = 9});
    CHECK(ends(text));
  }
  CHECK_THAT(peer_of_a_call(*stub), Catch::StartsWith("tcp:"));
  CHECK(server.service().becomes_idle());
}

TEST_CASE("metadata and methods that gRPC forbids are refused with a status", "[grpc]") {
  InteropServer server(By::kTcp);
  auto context = open_context();
  REQUIRE(context.ok());
  const grpc::Announcement found = server.announcement();
  auto endpoint = (*context)->connect(found.address);
  REQUIRE(endpoint.ok());
  std::string text;
  grpc::append(
      text,
      {.kind = grpc::FrameKind::kHello, .version = grpc::kBridgeVersion, .token = found.token});
  const std::string method = "/sluice.interop.TestService/EmptyCall";
  uint32_t stream = 0;
  for (const grpc::Metadata& metadata :
       std::vector<grpc::Metadata>{{{"Upper", "x"}},
                                   {{"a b", "x"}},
                                   {{"", "x"}},
                                   {{":path", "/"}},
                                   {{"grpc-timeout", "1S"}},
                                   {{"a", "line\nbreak"}},
                                   {{"a", std::string("\0", 1)}}}) {
    grpc::append(text, {.kind = grpc::FrameKind::kHeaders,
                        .stream = ++stream,
                        .text = method,
                        .metadata = metadata});
  }
  for (const char* wrong : {"", "x", "/", "/line\nbreak"})
    grpc::append(text, {.kind = grpc::FrameKind::kHeaders, .stream = ++stream, .text = wrong});
  auto room = (*context)->allocate({static_cast<int64_t>(text.size())}, uint8);
  REQUIRE(room.ok());
  std::copy_n(reinterpret_cast<const std::byte*>(text.data()), text.size(), room->data());
  REQUIRE(endpoint->send(1, std::move(*room).freeze()).ok());
  uint32_t refused = 0;
  while (refused < stream) {
    auto answer = (*context)->allocate({static_cast<int64_t>(grpc::kPacketBytes)}, uint8);
    REQUIRE(answer.ok());
    auto came = endpoint->receive_and_wait({.tag = 1}, std::move(*answer),
                                           now() + std::chrono::seconds(20));
    INFO(came.status().to_string());
    REQUIRE(came.ok());
    std::span<const std::byte> rest = came->buffer.bytes();
    while (!rest.empty()) {
      auto frame = grpc::take_frame(rest);
      REQUIRE(frame);
      if (frame->kind != grpc::FrameKind::kStatus) continue;
      CHECK((frame->code == static_cast<uint32_t>(StatusCode::INTERNAL) ||
             frame->code == static_cast<uint32_t>(StatusCode::UNIMPLEMENTED)));
      ++refused;
    }
  }
  CHECK(server.service().becomes_idle());
}

}  // namespace sluice::test
