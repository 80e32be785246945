// The cases of gRPC's public description (interop-test-descriptions), the same stubs over every
// path; plain gRPC is the control.
#include <chrono>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/l2/wire.h"
#include "tests/plugins/grpc/service.h"
#include "tests/support/skip.h"

namespace sluice::test {
namespace {

using ::grpc::ClientContext;
using ::grpc::StatusCode;
using interop::SimpleRequest;
using interop::SimpleResponse;
using interop::StreamingInputCallRequest;
using interop::StreamingInputCallResponse;
using interop::StreamingOutputCallRequest;
using interop::StreamingOutputCallResponse;

// Each case starts with a call that proves which way calls go.
struct Interop {
  explicit Interop(By by) : server(by), channel(server.channel()) {
    stub = interop::TestService::NewStub(channel);
    ClientContext context;
    SimpleRequest request;
    SimpleResponse response;
    request.set_fill_peer(true);
    ::grpc::Status status = stub->UnaryCall(&context, request, &response);
    INFO(status.error_message());
    REQUIRE(status.ok());
    REQUIRE_THAT(response.peer(), Catch::StartsWith(server.expected_peer()));
  }
  InteropServer server;
  std::shared_ptr<::grpc::Channel> channel;
  std::unique_ptr<interop::TestService::Stub> stub;
};

// In a guest RDMA alone: the others were tried outside.
By any_path() {
  if (rdma_host() != nullptr) return By::kRdma;
  if (!have_ethernet()) return GENERATE(By::kPlain, By::kShm, By::kTcp);
  return GENERATE(By::kPlain, By::kShm, By::kTcp, By::kEthernet);
}

StreamingOutputCallRequest asking_for(int size, int payload) {
  StreamingOutputCallRequest request;
  request.add_response_parameters()->set_size(size);
  request.mutable_payload()->mutable_body()->assign(static_cast<size_t>(payload), '\0');
  return request;
}

}  // namespace

// The cases below run over Ethernet too, where that can be had: this one says if not.
TEST_CASE("the target l2:// gives Ethernet, or says what the server lacks", "[grpc][l2]") {
  if (!have_ethernet()) return skip("netns", kNoNetwork);
  const auto call = [](const InteropServer& server, SimpleResponse* response) {
    auto stub = interop::TestService::NewStub(sluice::grpc::CreateChannel(
        "l2://" + server.target(), ::grpc::InsecureChannelCredentials()));
    ClientContext context;
    SimpleRequest request;
    request.set_fill_peer(true);
    return stub->UnaryCall(&context, request, response);
  };
  SimpleResponse response;
  {
    InteropServer server(By::kEthernet);
    const ::grpc::Status status = call(server, &response);
    INFO(status.error_message());
    CHECK(status.ok());
    CHECK_THAT(response.peer(), Catch::StartsWith("packet:"));
  }
  InteropServer server{InteropServer::NotWished()};
  const ::grpc::Status status = call(server, &response);
  CHECK(status.error_code() == StatusCode::UNAVAILABLE);
  CHECK_THAT(status.error_message(),
             Catch::Contains("the target forces l2://, which cannot be had"));
  CHECK_THAT(status.error_message(), Catch::Contains("the peer listens for no frames there"));
  CHECK_THAT(status.error_message(), Catch::Contains("set SLUICE_ETHERNET=1 where it runs"));
}

TEST_CASE("the target rdma:// gives RDMA of a listener that has other paths, too", "[grpc]") {
  if (rdma_host() == nullptr) return;  // paths_test has what a machine without it says
  InteropServer server(By::kShm);
  auto stub = interop::TestService::NewStub(sluice::grpc::CreateChannel(
      "rdma://" + server.target(), ::grpc::InsecureChannelCredentials()));
  ClientContext context;
  SimpleRequest request;
  SimpleResponse response;
  request.set_fill_peer(true);
  const ::grpc::Status status = stub->UnaryCall(&context, request, &response);
  INFO(status.error_message());
  CHECK(status.ok());
  CHECK_THAT(response.peer(), Catch::StartsWith("verbs:"));
}

TEST_CASE("empty_unary", "[grpc]") {
  Interop interop(any_path());
  ClientContext context;
  interop::Empty request, response;
  CHECK(interop.stub->EmptyCall(&context, request, &response).ok());
}

TEST_CASE("large_unary", "[grpc]") {
  Interop interop(any_path());
  for (int repeat = 0; repeat < 20; ++repeat) {
    ClientContext context;
    SimpleRequest request;
    SimpleResponse response;
    request.set_response_size(314159);
    request.mutable_payload()->mutable_body()->assign(271828, '\0');
    REQUIRE(interop.stub->UnaryCall(&context, request, &response).ok());
    CHECK(response.payload().body() == std::string(314159, '\0'));
  }
}

TEST_CASE("client_streaming", "[grpc]") {
  Interop interop(any_path());
  ClientContext context;
  StreamingInputCallResponse response;
  auto writer = interop.stub->StreamingInputCall(&context, &response);
  for (int size : {27182, 8, 1828, 45904}) {
    StreamingInputCallRequest request;
    request.mutable_payload()->mutable_body()->assign(static_cast<size_t>(size), '\0');
    REQUIRE(writer->Write(request));
  }
  REQUIRE(writer->WritesDone());
  REQUIRE(writer->Finish().ok());
  CHECK(response.aggregated_payload_size() == 74922);
}

TEST_CASE("server_streaming", "[grpc]") {
  Interop interop(any_path());
  ClientContext context;
  StreamingOutputCallRequest request;
  const std::vector<int> sizes{31415, 9, 2653, 58979};
  for (int size : sizes) request.add_response_parameters()->set_size(size);
  auto reader = interop.stub->StreamingOutputCall(&context, request);
  StreamingOutputCallResponse response;
  std::vector<int> came;
  while (reader->Read(&response))
    came.push_back(static_cast<int>(response.payload().body().size()));
  CHECK(came == sizes);
  CHECK(reader->Finish().ok());
}

TEST_CASE("ping_pong", "[grpc]") {
  Interop interop(any_path());
  ClientContext context;
  auto stream = interop.stub->FullDuplexCall(&context);
  const std::vector<std::pair<int, int>> sizes{
      {27182, 31415}, {8, 9}, {1828, 2653}, {45904, 58979}};
  for (auto [out, in] : sizes) {
    REQUIRE(stream->Write(asking_for(in, out)));
    StreamingOutputCallResponse response;
    REQUIRE(stream->Read(&response));
    CHECK(static_cast<int>(response.payload().body().size()) == in);
  }
  REQUIRE(stream->WritesDone());
  StreamingOutputCallResponse nothing;
  CHECK_FALSE(stream->Read(&nothing));
  CHECK(stream->Finish().ok());
}

TEST_CASE("empty_stream", "[grpc]") {
  Interop interop(any_path());
  ClientContext context;
  auto stream = interop.stub->FullDuplexCall(&context);
  REQUIRE(stream->WritesDone());
  StreamingOutputCallResponse nothing;
  CHECK_FALSE(stream->Read(&nothing));
  CHECK(stream->Finish().ok());
}

TEST_CASE("timeout_on_sleeping_server", "[grpc]") {
  Interop interop(any_path());
  ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  auto stream = interop.stub->FullDuplexCall(&context);
  StreamingOutputCallRequest request;
  request.mutable_payload()->mutable_body()->assign(27182, '\0');
  stream->Write(request);
  StreamingOutputCallResponse nothing;
  CHECK_FALSE(stream->Read(&nothing));
  CHECK(stream->Finish().error_code() == StatusCode::DEADLINE_EXCEEDED);
}

TEST_CASE("cancel_after_begin", "[grpc]") {
  Interop interop(any_path());
  ClientContext context;
  StreamingInputCallResponse response;
  auto writer = interop.stub->StreamingInputCall(&context, &response);
  context.TryCancel();
  CHECK(writer->Finish().error_code() == StatusCode::CANCELLED);
}

TEST_CASE("cancel_after_first_response", "[grpc]") {
  Interop interop(any_path());
  ClientContext context;
  auto stream = interop.stub->FullDuplexCall(&context);
  REQUIRE(stream->Write(asking_for(31415, 27182)));
  StreamingOutputCallResponse response;
  REQUIRE(stream->Read(&response));
  context.TryCancel();
  CHECK(stream->Finish().error_code() == StatusCode::CANCELLED);
  // The service hears of it, and ends.
  CHECK(interop.server.service().becomes_idle());
}

TEST_CASE("status_code_and_message", "[grpc]") {
  Interop interop(any_path());
  {
    ClientContext context;
    SimpleRequest request;
    SimpleResponse response;
    request.mutable_response_status()->set_code(2);
    request.mutable_response_status()->set_message("test status message");
    ::grpc::Status status = interop.stub->UnaryCall(&context, request, &response);
    CHECK(status.error_code() == StatusCode::UNKNOWN);
    CHECK(status.error_message() == "test status message");
    CHECK(status.error_details() == "details \x01\xff of test status message");
  }
  ClientContext context;
  auto stream = interop.stub->FullDuplexCall(&context);
  StreamingOutputCallRequest request;
  request.mutable_response_status()->set_code(2);
  request.mutable_response_status()->set_message("test status message");
  REQUIRE(stream->Write(request));
  REQUIRE(stream->WritesDone());
  StreamingOutputCallResponse nothing;
  CHECK_FALSE(stream->Read(&nothing));
  ::grpc::Status status = stream->Finish();
  CHECK(status.error_code() == StatusCode::UNKNOWN);
  CHECK(status.error_message() == "test status message");
}

TEST_CASE("special_status_message", "[grpc]") {
  Interop interop(any_path());
  const std::string text =
      "\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP \U0001F608\t\n";
  ClientContext context;
  SimpleRequest request;
  SimpleResponse response;
  request.mutable_response_status()->set_code(2);
  request.mutable_response_status()->set_message(text);
  ::grpc::Status status = interop.stub->UnaryCall(&context, request, &response);
  CHECK(status.error_code() == StatusCode::UNKNOWN);
  CHECK(status.error_message() == text);
}

TEST_CASE("custom_metadata", "[grpc]") {
  Interop interop(any_path());
  const std::string binary("\x0a\x0b\x0a\x0b\x0a\x00\xff", 7);
  const auto check = [&](const ClientContext& context) {
    const auto& initial = context.GetServerInitialMetadata();
    const auto& trailing = context.GetServerTrailingMetadata();
    auto first = initial.find("x-grpc-test-echo-initial");
    REQUIRE(first != initial.end());
    CHECK(first->second == "test_initial_metadata_value");
    auto last = trailing.find("x-grpc-test-echo-trailing-bin");
    REQUIRE(last != trailing.end());
    CHECK(std::string(last->second.data(), last->second.size()) == binary);
  };
  {
    ClientContext context;
    context.AddMetadata("x-grpc-test-echo-initial", "test_initial_metadata_value");
    context.AddMetadata("x-grpc-test-echo-trailing-bin", binary);
    SimpleRequest request;
    SimpleResponse response;
    request.set_response_size(314159);
    request.mutable_payload()->mutable_body()->assign(271828, '\0');
    REQUIRE(interop.stub->UnaryCall(&context, request, &response).ok());
    check(context);
  }
  ClientContext context;
  context.AddMetadata("x-grpc-test-echo-initial", "test_initial_metadata_value");
  context.AddMetadata("x-grpc-test-echo-trailing-bin", binary);
  auto stream = interop.stub->FullDuplexCall(&context);
  REQUIRE(stream->Write(asking_for(314159, 271828)));
  StreamingOutputCallResponse response;
  REQUIRE(stream->Read(&response));
  REQUIRE(stream->WritesDone());
  CHECK_FALSE(stream->Read(&response));
  REQUIRE(stream->Finish().ok());
  check(context);
}

TEST_CASE("unimplemented_method", "[grpc]") {
  Interop interop(any_path());
  ClientContext context;
  interop::Empty request, response;
  CHECK(interop.stub->UnimplementedCall(&context, request, &response).error_code() ==
        StatusCode::UNIMPLEMENTED);
}

TEST_CASE("unimplemented_service", "[grpc]") {
  Interop interop(any_path());
  auto stub = interop::UnimplementedService::NewStub(interop.channel);
  ClientContext context;
  interop::Empty request, response;
  CHECK(stub->UnimplementedCall(&context, request, &response).error_code() ==
        StatusCode::UNIMPLEMENTED);
}

}  // namespace sluice::test
