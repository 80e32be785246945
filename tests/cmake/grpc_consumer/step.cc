// A service that takes tensors, and its client, in one process. Prints what arrived without a copy.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include <sluice/grpc/bridge.h>
#include <sluice/grpc/tensor_message.h>

#include "messages/step.grpc.pb.h"

namespace {

const std::vector<int64_t> kShape = {256, 1024};

bool all(const sluice::Tensor& tensor, std::byte value) {
  return tensor.size_bytes() == 256 * 1024 * 4 &&
         std::all_of(tensor.data(), tensor.data() + tensor.size_bytes(),
                     [&](std::byte byte) { return byte == value; });
}

class Trainer final : public step::Trainer::Service {
  grpc::Status Train(grpc::ServerContext*, const step::Step* request,
                     step::Answer* response) override {
    const bool shared = request->has_gradient_tensor() && request->weights().has_payload_tensor();
    auto weights = sluice::grpc::tensor_of(request->weights());
    const bool right = weights.ok() && weights->descriptor().rank() == 2 &&
                       all(*weights, std::byte(1)) && all(request->gradient_tensor(), std::byte(2));
    response->set_text(std::string(right ? "right" : "wrong") +
                       (shared ? ", no copy" : ", copied"));
    return grpc::Status::OK;
  }
};

int fail(const sluice::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

}  // namespace

int main() {
  Trainer service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  auto listener = sluice::grpc::Listen(server.get());
  auto weights = sluice::grpc::allocate(kShape, sluice::float32);
  auto gradient = sluice::grpc::allocate(kShape, sluice::float32);
  if (!listener.ok() || !weights.ok() || !gradient.ok()) return fail(listener.status());
  std::fill_n(weights->data(), weights->size_bytes(), std::byte(1));
  std::fill_n(gradient->data(), gradient->size_bytes(), std::byte(2));
  step::Step request;
  if (auto set = sluice::grpc::to_message(std::move(*weights), request.mutable_weights());
      !set.ok())
    return fail(set);
  if (auto set = request.set_gradient_tensor(std::move(*gradient).freeze()); !set.ok())
    return fail(set);
  step::Answer answer;
  grpc::Status status;
  {
    auto stub = step::Trainer::NewStub(sluice::grpc::CreateChannel(
        "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    status = stub->Train(&context, request, &answer);
  }
  request.Clear();
  (*listener)->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  server->Shutdown();
  std::printf("%s\n", status.ok() ? answer.text().c_str() : status.error_message().c_str());
  return status.ok() ? 0 : 1;
}
