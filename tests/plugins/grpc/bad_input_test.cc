// What the bridge does with bytes that are not what they should be: messages that do not parse,
// other versions of the bridge, listeners that belong to somebody else, peers that do not read.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <google/protobuf/struct.pb.h>
#include <grpcpp/impl/client_unary_call.h>

#include <sluice/base/counters.h>
#include <sluice/grpc/discovery.h>
#include <sluice/select/open.h>

#include "tests/plugins/grpc/service.h"

namespace sluice::test {
namespace {

using ::grpc::ByteBuffer;
using ::grpc::ClientContext;
using grpc::Frame;
using grpc::FrameKind;
using ::grpc::StatusCode;
using ::grpc::internal::RpcMethod;
using interop::SimpleRequest;
using interop::SimpleResponse;

Instant soon() { return now() + std::chrono::seconds(20); }

::grpc::Status unary(const std::shared_ptr<::grpc::Channel>& channel, std::string* peer) {
  auto stub = interop::TestService::NewStub(channel);
  ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  SimpleRequest request;
  SimpleResponse response;
  request.set_fill_peer(true);
  const ::grpc::Status status = stub->UnaryCall(&context, request, &response);
  *peer = response.peer();
  return status;
}

// A server whose gRPC port sends clients to a listener of the test's, which is no bridge: it does
// with each connection what the test says, on a thread of its own.
class SomebodyElse {
 public:
  using Act = std::function<void(Context&, Endpoint&)>;
  explicit SomebodyElse(Act act) : server(By::kPlain), act_(std::move(act)) {
    auto context = open_context();
    REQUIRE(context.ok());
    context_ = std::move(*context);
    auto listener = context_->listen("tcp://127.0.0.1:0");
    REQUIRE(listener.ok());
    listener_ = std::move(*listener);
    const std::string address = listener_.address();
    announcer_ = std::make_shared<grpc::Announcer>([address](const grpc::Properties&) {
      return grpc::Announcement{.token = {std::byte{1}}, .address = address};
    });
    REQUIRE(grpc::announce(&server.server(), announcer_).has_value());
    thread_ = std::thread([this] { run(); });
  }
  ~SomebodyElse() {
    stopping_ = true;
    thread_.join();
  }
  InteropServer server;
  int connections() const { return connections_; }

 private:
  void run() {
    std::vector<Endpoint> kept;
    while (!stopping_) {
      (void)context_->wait_until([&] { return false; }, now() + std::chrono::milliseconds(1));
      auto endpoint = listener_.try_accept();
      if (!endpoint.ok()) continue;
      ++connections_;
      act_(*context_, *endpoint);
      kept.push_back(std::move(*endpoint));
    }
  }

  const Act act_;
  std::unique_ptr<Context> context_;
  sluice::Listener listener_;
  std::shared_ptr<grpc::Announcer> announcer_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> connections_{0};
  std::thread thread_;
};

// False: not now.
bool send_text(Context& context, Endpoint& endpoint, const std::string& text) {
  auto room = context.allocate({static_cast<int64_t>(text.size())}, uint8);
  if (!room.ok()) return false;
  std::copy_n(reinterpret_cast<const std::byte*>(text.data()), text.size(), room->data());
  return endpoint.send(1, std::move(*room).freeze()).ok();
}

std::string text_of_frames(const std::vector<Frame>& frames) {
  std::string text;
  for (const Frame& frame : frames) grpc::append(text, frame);
  return text;
}

}  // namespace

TEST_CASE("a message that does not parse ends its call alone", "[grpc][bad]") {
  const By by = GENERATE(By::kPlain, By::kShm, By::kTcp);
  InteropServer server(by);
  auto channel = server.channel();
  const RpcMethod method("/sluice.interop.TestService/UnaryCall", RpcMethod::NORMAL_RPC);
  // In its frame, and large enough to be lent.
  for (int length : {3, 100'000}) {
    INFO("length " << length);
    const std::string bytes(static_cast<size_t>(length), '\xff');
    {
      ClientContext context;
      ByteBuffer answer;
      const ::grpc::Status status = ::grpc::internal::BlockingUnaryCall<ByteBuffer, ByteBuffer>(
          channel.get(), method, &context, grpc::buffer_of(bytes), &answer);
      CHECK(status.error_code() == StatusCode::INTERNAL);
    }
    // A response whose field 1 has no key that a map could have.
    ClientContext context;
    SimpleRequest request;
    request.set_echo(true);
    request.mutable_payload()->set_body(bytes);
    google::protobuf::Struct other;
    using Message = ::grpc::protobuf::MessageLite;
    const ::grpc::Status status =
        ::grpc::internal::BlockingUnaryCall<SimpleRequest, google::protobuf::Struct, Message,
                                            Message>(channel.get(), method, &context, request,
                                                     &other);
    // gRPC 1.51 itself takes it for no message at all.
    CHECK(status.error_code() ==
          (by == By::kPlain ? StatusCode::UNIMPLEMENTED : StatusCode::INTERNAL));
  }
  std::string peer;
  CHECK(unary(channel, &peer).ok());
  CHECK_THAT(peer, Catch::StartsWith(server.expected_peer()));
}

TEST_CASE("compression that a client or a service asks for does not change a bridged call",
          "[grpc]") {
  const By by = GENERATE(By::kPlain, By::kShm, By::kTcp);
  InteropServer server(by);
  auto stub = server.stub();
  ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  SimpleRequest request;
  request.set_fill_peer(true);
  request.set_echo(true);
  request.set_compress(true);
  request.mutable_payload()->set_body(std::string(50'000, 'c'));
  SimpleResponse response;
  const ::grpc::Status status = stub->UnaryCall(&context, request, &response);
  INFO(status.error_message());
  REQUIRE(status.ok());
  CHECK_THAT(response.peer(), Catch::StartsWith(server.expected_peer()));
  CHECK(response.payload().body() == request.payload().body());
  for (const auto& [key, value] : context.GetServerInitialMetadata())
    CHECK_FALSE(std::string(key.data(), key.size()).starts_with("grpc-internal"));
  // A stream, some of whose messages are not to be compressed.
  ClientContext streaming;
  streaming.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  interop::StreamingInputCallResponse sum;
  auto writer = stub->StreamingInputCall(&streaming, &sum);
  for (int i = 0; i < 4; ++i) {
    interop::StreamingInputCallRequest part;
    part.mutable_payload()->set_body(std::string(1000, 'p'));
    ::grpc::WriteOptions options;
    if (i % 2 == 0) options.set_no_compression();
    REQUIRE(writer->Write(part, options));
  }
  REQUIRE(writer->WritesDone());
  REQUIRE(writer->Finish().ok());
  CHECK(sum.aggregated_payload_size() == 4000);
}

TEST_CASE("a server refuses a client of another version, and serves the others", "[grpc][bad]") {
  InteropServer server(By::kTcp);
  auto context = open_context();
  REQUIRE(context.ok());
  const uint64_t refused = read_counter("grpc.strangers_refused");
  const grpc::Announcement found = server.announcement();
  auto endpoint = (*context)->connect(found.address);
  REQUIRE(endpoint.ok());
  // The token is right.
  (void)send_text(**context, *endpoint,
                  text_of_frames({{.kind = FrameKind::kHello,
                                   .version = grpc::kBridgeVersion + 1,
                                   .token = found.token}}));
  CHECK((*context)
            ->wait_until([&] { return endpoint->state() == EndpointState::kClosed; }, soon())
            .ok());
  CHECK(read_counter("grpc.strangers_refused") == refused + 1);
  std::string peer;
  CHECK(unary(server.channel(), &peer).ok());
  CHECK_THAT(peer, Catch::StartsWith("tcp:"));
}

TEST_CASE("a client that reads no answers is not read from without end", "[grpc][bad]") {
  InteropServer server(By::kTcp);
  auto channel = server.channel();
  std::string peer;
  REQUIRE(unary(channel, &peer).ok());
  auto context = open_context();
  REQUIRE(context.ok());
  const grpc::Announcement found = server.announcement();
  auto endpoint = (*context)->connect(found.address);
  REQUIRE(endpoint.ok());
  (void)send_text(
      **context, *endpoint,
      text_of_frames(
          {{.kind = FrameKind::kHello, .version = grpc::kBridgeVersion, .token = found.token}}));
  // Calls that are refused at once, each with an answer.
  const uint64_t before = read_counter("grpc.calls_refused");
  uint32_t calls = 0, packets = 0;
  for (; packets < 200; ++packets) {
    std::string packet;
    while (packet.size() + 64 < grpc::kPacketBytes)
      grpc::append(packet, {.kind = FrameKind::kHeaders, .stream = ++calls, .text = "x"});
    if (!send_text(**context, *endpoint, packet)) break;
  }
  REQUIRE(packets > 150);
  uint64_t refused = 0;
  for (int same = 0; same < 50; ++same) {
    (void)(*context)->progress();
    REQUIRE(unary(channel, &peer).ok());  // other calls go on
    const uint64_t now_refused = read_counter("grpc.calls_refused") - before;
    if (now_refused != refused || now_refused == 0) same = 0;
    refused = now_refused;
  }
  CHECK(refused > 0);
  CHECK(refused < calls / 2);
  CHECK_THAT(peer, Catch::StartsWith("tcp:"));
}

TEST_CASE("a listener that is no bridge, or one of another version, is left to plain gRPC",
          "[grpc][bad]") {
  using Frames = std::vector<Frame>;
  const std::string said = GENERATE(
      text_of_frames(Frames{{.kind = FrameKind::kWelcome, .version = grpc::kBridgeVersion + 1}}),
      text_of_frames(Frames{{.kind = FrameKind::kStatus, .stream = 1}}), std::string("no frame"),
      std::string());
  SomebodyElse other([&](Context& context, Endpoint& endpoint) {
    if (said.empty()) return (void)endpoint.close(soon());
    (void)send_text(context, endpoint, said);
  });
  std::string peer;
  {
    const ::grpc::Status status = unary(other.server.channel(), &peer);
    INFO(status.error_message());
    CHECK(status.ok());
    CHECK_THAT(peer, Catch::StartsWith("ipv4:"));
    CHECK(other.connections() == 1);
  }
  // Where the path is forced, the text says what to look at.
  const ::grpc::Status status =
      unary(sluice::grpc::CreateChannel("tcp://" + other.server.target(),
                                        ::grpc::InsecureChannelCredentials()),
            &peer);
  CHECK(status.error_code() == StatusCode::UNAVAILABLE);
  CHECK_THAT(status.error_message(), Catch::StartsWith("sluice: "));
  CHECK_THAT(status.error_message(), Catch::Contains("same version of sluice"));
}

TEST_CASE("a server that breaks the rules during a call ends that connection's calls alone",
          "[grpc][bad]") {
  using Frames = std::vector<Frame>;
  const std::string wrong = GENERATE(
      std::string("no frame"), text_of_frames(Frames{{.kind = FrameKind::kStatus, .stream = 9}}),
      text_of_frames(Frames{{.kind = FrameKind::kWindow, .stream = 1, .count = 1000}}),
      text_of_frames(Frames{{.kind = FrameKind::kHalfClose, .stream = 1}}),
      text_of_frames(
          Frames(grpc::kWindowMessages + 1, {.kind = FrameKind::kMessage, .stream = 1})));
  SomebodyElse other([&](Context& context, Endpoint& endpoint) {
    (void)send_text(
        context, endpoint,
        text_of_frames({{.kind = FrameKind::kWelcome, .version = grpc::kBridgeVersion}}));
    // Its hello, then the call.
    for (int packets = 0; packets < 2; ++packets) {
      auto room = context.allocate({static_cast<int64_t>(grpc::kPacketBytes)}, uint8);
      if (!room.ok()) return;
      if (!endpoint.receive_and_wait({.tag = 1}, std::move(*room), soon()).ok()) return;
    }
    (void)send_text(context, endpoint, wrong);
  });
  auto channel = other.server.channel();
  auto stub = interop::TestService::NewStub(channel);
  InteropServer good(By::kTcp);
  auto good_channel = good.channel();
  std::string peer;
  REQUIRE(unary(good_channel, &peer).ok());
  ClientContext context;
  auto stream = stub->FullDuplexCall(&context);
  stream->WaitForInitialMetadata();
  const ::grpc::Status status = stream->Finish();
  CHECK(status.error_code() == StatusCode::UNAVAILABLE);
  CHECK_THAT(status.error_message(), Catch::StartsWith("sluice: the connection ended during"));
  CHECK(unary(good_channel, &peer).ok());
  CHECK_THAT(peer, Catch::StartsWith("tcp:"));
}

}  // namespace sluice::test
