// A gRPC service and its client, before sluice and after. Two lines differ: the one that makes the
// client's channel, and one behind the server's BuildAndStart().
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include <sluice/base/clock.h>
#include <sluice/grpc/bridge.h>

#include "examples/grpc/service.h"

namespace {

// The client: it does not know what carries its calls. Milliseconds of one call, the best of ten.
double milliseconds(const std::shared_ptr<grpc::Channel>& channel, size_t bytes) {
  auto stub = tensors::Tensors::NewStub(channel);
  tensors::Tensor request, response;
  request.set_dtype("float32");
  request.add_shape(static_cast<int64_t>(bytes / sizeof(float)));
  const float value = 1.5f;
  while (request.values().size() < bytes)
    request.mutable_values()->append(reinterpret_cast<const char*>(&value), sizeof(value));
  double best = 1e9;
  for (int i = 0; i < 10; ++i) {
    grpc::ClientContext context;
    const sluice::Instant start = sluice::now();
    const grpc::Status status = stub->Double(&context, request, &response);
    const std::chrono::duration<double, std::milli> took = sluice::now() - start;
    float first = 0;
    if (status.ok() && response.values().size() == bytes)
      std::memcpy(&first, response.values().data(), sizeof(first));
    if (first != 3.0f) {
      std::printf("failed: %s\n", status.error_message().c_str());
      return -1;
    }
    if (took.count() < best) best = took.count();
  }
  return best;
}

}  // namespace

int main() {
  DoublingService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  auto listener = sluice::grpc::Listen(server.get());  // the server's new line
  if (!listener.ok()) {
    std::fprintf(stderr, "%s\n", listener.status().to_string().c_str());
    return 1;
  }
  const std::string target = "127.0.0.1:" + std::to_string(port);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  auto before = grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  auto after =  // the client's changed line
      sluice::grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  for (size_t mebibytes : {1, 16, 64}) {
    const double plain = milliseconds(before, mebibytes << 20);
    const double bridged = milliseconds(after, mebibytes << 20);
    if (plain < 0 || bridged < 0) return 1;
    std::printf("%zu MiB doubled: %.1f ms by gRPC, %.1f ms over sluice\n", mebibytes, plain,
                bridged);
  }
  std::printf("values right\n");
  listener->reset();  // before the server's own end; Shutdown(deadline) would wait for calls
  server->Shutdown();
  return 0;
}
