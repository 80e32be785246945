// Tensors in messages over the bridge, and with peers that have none: who copies what, and that the
// bytes on the wire are protobuf's.
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>

#include <sluice/base/counters.h>
#include <sluice/grpc/bridge.h>
#include <sluice/grpc/tensor_message.h>

#include "tests/plugins/grpc/plain_tensors.grpc.pb.h"
#include "tests/plugins/grpc/tensors.grpc.pb.h"

namespace sluice::test {
namespace {

using tensors::Batch;

constexpr int64_t kElements = int64_t{1} << 20;  // 4 MiB
constexpr char kEchoMethod[] = "/sluice.tensors.Tensors/Echo";

class Service final : public tensors::Tensors::Service {
 public:
  ::grpc::Status Echo(::grpc::ServerContext*, const Batch* request, Batch* response) override {
    response->CopyFrom(*request);
    std::lock_guard lock(mutex);
    came = request->first().payload_tensor();
    shared = request->first().has_payload_tensor();
    return ::grpc::Status::OK;
  }
  ::grpc::Status Exchange(::grpc::ServerContext*,
                          ::grpc::ServerReaderWriter<Batch, Batch>* stream) override {
    Batch batch;
    while (stream->Read(&batch)) stream->Write(batch);
    return ::grpc::Status::OK;
  }
  std::mutex mutex;
  Tensor came;
  bool shared = false;
};

class PlainService final : public plain::Tensors::Service {
  ::grpc::Status Echo(::grpc::ServerContext*, const plain::Batch* request,
                      plain::Batch* response) override {
    *response = *request;
    return ::grpc::Status::OK;
  }
};

// A server, and channels to it.
struct Server {
  explicit Server(::grpc::Service& service, const char* address) {
    ::grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", ::grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    builder.SetMaxReceiveMessageSize(-1);
    server = builder.BuildAndStart();
    target = "127.0.0.1:" + std::to_string(port);
    if (address == nullptr) return;
    auto made = sluice::grpc::Listen(server.get(), {.address = address});
    REQUIRE(made.ok());
    listener = std::move(*made);
  }
  ~Server() {
    const auto soon = std::chrono::system_clock::now() + std::chrono::seconds(5);
    if (listener) listener->Shutdown(soon);
    server->Shutdown(soon);
  }
  std::shared_ptr<::grpc::Channel> channel(bool bridged) const {
    ::grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto insecure = ::grpc::InsecureChannelCredentials();
    return bridged ? sluice::grpc::CreateCustomChannel(target, insecure, arguments)
                   : ::grpc::CreateCustomChannel(target, insecure, arguments);
  }
  std::unique_ptr<::grpc::Server> server;
  std::unique_ptr<sluice::grpc::Listener> listener;
  std::string target;
};

struct Request {
  Request() {
    auto buffer = sluice::grpc::allocate(std::vector<int64_t>{kElements}, float32);
    REQUIRE(buffer.ok());
    for (int64_t i = 0; i < kElements; ++i)
      buffer->as<float>()[static_cast<size_t>(i)] = static_cast<float>(i);
    place = buffer->data();
    REQUIRE(sluice::grpc::to_message(std::move(*buffer), batch.mutable_first()).ok());
    batch.set_name("step");
    batch.set_last(3);
  }
  void check(const Batch& response) const {
    auto tensor = sluice::grpc::tensor_of(response.first());
    INFO(tensor.status().to_string());
    REQUIRE(tensor.ok());
    CHECK(tensor->size_bytes() == sizeof(float) * kElements);
    CHECK(std::memcmp(tensor->data(), place, tensor->size_bytes()) == 0);
    CHECK(response.name() == "step");
    CHECK(response.last() == 3);
  }
  Batch batch;
  std::byte* place = nullptr;
};

}  // namespace

TEST_CASE("over shared memory a service sees the client's own bytes, and nobody copies them",
          "[grpc][tensors]") {
  Service service;
  Server server(service, "sluice://0.0.0.0:0");
  auto stub = tensors::Tensors::NewStub(server.channel(true));
  const Request request;
  const uint64_t copied = read_counter("grpc.payloads_copied");
  for (int round = 0; round < 3; ++round) {
    Batch response;
    ::grpc::ClientContext context;
    const ::grpc::Status status = stub->Echo(&context, request.batch, &response);
    INFO(status.error_message());
    REQUIRE(status.ok());
    CHECK(response.first().has_payload_tensor());
    request.check(response);
  }
  CHECK(read_counter("grpc.payloads_copied") == copied);
  // What the client writes now shows in the tensor that the service kept: it is the same memory.
  std::lock_guard lock(service.mutex);
  REQUIRE(service.shared);
  CHECK(service.came.owned_by_peer());
  CHECK(service.came.data() != request.place);  // another mapping of it
  const float mark = -42;
  std::memcpy(request.place + 4096, &mark, sizeof(mark));
  float seen = 0;
  std::memcpy(&seen, service.came.data() + 4096, sizeof(seen));
  CHECK(seen == mark);
}

TEST_CASE("over TCP tensors land in registered memory at both ends", "[grpc][tensors]") {
  Service service;
  Server server(service, "tcp://127.0.0.1:0");
  auto stub = tensors::Tensors::NewStub(server.channel(true));
  const Request request;
  const uint64_t copied = read_counter("grpc.payloads_copied");
  Batch response;
  ::grpc::ClientContext context;
  REQUIRE(stub->Echo(&context, request.batch, &response).ok());
  request.check(response);
  CHECK(read_counter("grpc.payloads_copied") == copied);
  CHECK(response.first().has_payload_tensor());
  std::lock_guard lock(service.mutex);
  CHECK(service.shared);
  CHECK(service.came.storage()->kind() == StorageKind::kArena);
}

TEST_CASE("every kind of call carries tensors", "[grpc][tensors]") {
  Service service;
  Server server(service, "sluice://0.0.0.0:0");
  auto stub = tensors::Tensors::NewStub(server.channel(true));
  const Request request;
  {
    ::grpc::ClientContext context;
    auto stream = stub->Exchange(&context);
    Batch response;
    for (int i = 0; i < 20; ++i) {
      REQUIRE(stream->Write(request.batch));
      REQUIRE(stream->Read(&response));
      request.check(response);
    }
    stream->WritesDone();
    CHECK_FALSE(stream->Read(&response));
    CHECK(stream->Finish().ok());
  }
  {
    ::grpc::CompletionQueue queue;
    ::grpc::ClientContext context;
    Batch response;
    ::grpc::Status status;
    std::unique_ptr<::grpc::ClientAsyncResponseReader<Batch>> reader;
    {
      // The message may end at once: its tensor is held by what is sent.
      const Batch mine(request.batch);
      reader = stub->AsyncEcho(&context, mine, &queue);
    }
    reader->Finish(&response, &status, nullptr);
    void* tag;
    bool ok;
    REQUIRE(queue.Next(&tag, &ok));
    INFO(status.error_message());
    CHECK(status.ok());
    request.check(response);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {}
  }
}

TEST_CASE("many tensors in one message arrive, in pieces or in one", "[grpc][tensors]") {
  Service service;
  Server server(service, "sluice://0.0.0.0:0");
  auto stub = tensors::Tensors::NewStub(server.channel(true));
  for (const int count : {2, 31, 32, 33, 200}) {
    Batch batch, response;
    for (int i = 0; i < count; ++i) {
      auto buffer = sluice::grpc::allocate(std::vector<int64_t>{20'000 + i}, uint8);
      REQUIRE(buffer.ok());
      std::memset(buffer->data(), i, buffer->size_bytes());
      REQUIRE(batch.add_more()->set_payload_tensor(std::move(*buffer).freeze()).ok());
    }
    batch.set_never(std::string(30'000, 'n'));
    ::grpc::ClientContext context;
    const ::grpc::Status status = stub->Echo(&context, batch, &response);
    INFO(count << " " << status.error_message());
    REQUIRE(status.ok());
    CHECK((response.SerializeAsString() == batch.SerializeAsString()));
  }
}

TEST_CASE("a peer with plain gRPC reads and writes such messages", "[grpc][tensors]") {
  const Request request;
  {
    Service service;
    Server server(service, "sluice://0.0.0.0:0");
    plain::Batch sent, came;
    sent.set_name("step");
    sent.set_last(3);
    sent.mutable_first()->set_dtype("float32");
    sent.mutable_first()->add_shape(kElements);
    sent.mutable_first()->set_payload(
        std::string(reinterpret_cast<const char*>(request.place), sizeof(float) * kElements));
    for (const bool bridged : {false, true}) {
      ::grpc::ClientContext context;
      const ::grpc::internal::RpcMethod method(kEchoMethod,
                                               ::grpc::internal::RpcMethod::NORMAL_RPC);
      const auto channel = server.channel(bridged);
      const ::grpc::Status status = ::grpc::internal::BlockingUnaryCall<
          plain::Batch, plain::Batch, ::grpc::protobuf::MessageLite, ::grpc::protobuf::MessageLite>(
          channel.get(), method, &context, sent, &came);
      INFO(status.error_message());
      REQUIRE(status.ok());
      CHECK((came.SerializeAsString() == sent.SerializeAsString()));
      std::lock_guard lock(service.mutex);
      CHECK(service.shared == bridged);  // by gRPC's connection it is a string
    }
  }
  PlainService service;
  Server server(service, nullptr);
  for (const bool bridged : {false, true}) {
    Batch response;
    ::grpc::ClientContext context;
    const ::grpc::internal::RpcMethod method("/sluice.plain.Tensors/Echo",
                                             ::grpc::internal::RpcMethod::NORMAL_RPC);
    const auto channel = server.channel(bridged);
    const ::grpc::Status status =
        ::grpc::internal::BlockingUnaryCall<Batch, Batch, ::grpc::protobuf::MessageLite,
                                            ::grpc::protobuf::MessageLite>(
            channel.get(), method, &context, request.batch, &response);
    INFO(status.error_message());
    REQUIRE(status.ok());
    request.check(response);
    CHECK_FALSE(response.first().has_payload_tensor());
  }
}

}  // namespace sluice::test
