// A service and its client in one process. Prints by which path the call came.
#include <chrono>
#include <cstdio>
#include <string>

#include <grpcpp/grpcpp.h>

#include <sluice/grpc/bridge.h>

#include "echo.grpc.pb.h"

namespace {

class Echo final : public echo::Echo::Service {
  grpc::Status Say(grpc::ServerContext* context, const echo::Text* request,
                   echo::Text* response) override {
    const std::string peer = sluice::grpc::peer(*context);
    response->set_text(request->text() + " by " + peer.substr(0, peer.find(':')));
    return grpc::Status::OK;
  }
};

}  // namespace

int main() {
  Echo service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
#ifndef AUTO_LISTEN
  auto listener = sluice::grpc::Listen(server.get());
  if (!listener.ok()) {
    std::fprintf(stderr, "%s\n", listener.status().to_string().c_str());
    return 1;
  }
#endif
  grpc::Status status;
  echo::Text request, response;
  request.set_text("hello");
  {
    auto stub = echo::Echo::NewStub(sluice::grpc::CreateChannel(
        "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    status = stub->Say(&context, request, &response);
  }
#ifndef AUTO_LISTEN
  (*listener)->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
#endif
  server->Shutdown();
  std::printf("%s\n", status.ok() ? response.text().c_str() : status.error_message().c_str());
  return status.ok() ? 0 : 1;
}
