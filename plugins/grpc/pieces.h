// A protobuf message in the pieces that it leaves in: encoded bytes, and the tensors of its
// PayloadFields in between, in the order of the encoding. Needs protobuf; no gRPC.
#ifndef SLUICE_GRPC_PIECES_H_
#define SLUICE_GRPC_PIECES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <google/protobuf/message_lite.h>

#include <sluice/allocator/buffer.h>

namespace sluice::grpc {

// One of both: a tensor, or bytes.
struct Piece {
  std::string bytes;
  Tensor tensor;
  uint64_t length() const { return tensor ? tensor.size_bytes() : bytes.size(); }
};

// Bytes of the encoded message, and whether it holds tensors.
struct Measured {
  uint64_t length;
  bool has_tensors;
};
Measured measure(const ::google::protobuf::MessageLite& message);

// Nothing: a required field is missing. Cost: copies all but the tensors.
std::optional<std::vector<Piece>> take_apart(const ::google::protobuf::MessageLite& message);

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_PIECES_H_
