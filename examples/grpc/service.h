// A service as it was before sluice: nothing here knows of it.
#ifndef SLUICE_EXAMPLES_GRPC_SERVICE_H_
#define SLUICE_EXAMPLES_GRPC_SERVICE_H_

#include <cstring>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "examples/grpc/tensors.grpc.pb.h"

class DoublingService final : public tensors::Tensors::Service {
  ::grpc::Status Double(::grpc::ServerContext*, const tensors::Tensor* request,
                        tensors::Tensor* response) override {
    if (request->dtype() != "float32" || request->values().size() % sizeof(float) != 0)
      return ::grpc::Status(::grpc::StatusCode::INVALID_ARGUMENT, "float32 values are wanted");
    *response->mutable_shape() = request->shape();
    response->set_dtype(request->dtype());
    std::string& doubled = *response->mutable_values();
    doubled = request->values();
    for (size_t at = 0; at < doubled.size(); at += sizeof(float)) {
      float value;
      std::memcpy(&value, doubled.data() + at, sizeof(value));
      value *= 2;
      std::memcpy(doubled.data() + at, &value, sizeof(value));
    }
    return ::grpc::Status::OK;
  }
};

#endif  // SLUICE_EXAMPLES_GRPC_SERVICE_H_
