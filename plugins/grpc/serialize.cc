#include <sluice/grpc/serialize.h>

#include <optional>
#include <utility>
#include <vector>

#include <sluice/grpc/payload_field.h>
#include <sluice/grpc/pieces.h>

namespace sluice::grpc {

::grpc::Slice alias_of(const Tensor& tensor) {
  auto* kept = new Tensor(tensor);
  SharedRanges::add(kept);
  return ::grpc::Slice(
      const_cast<std::byte*>(kept->data()), kept->size_bytes(),
      [](void* user) {
        auto* ended = static_cast<Tensor*>(user);
        SharedRanges::remove(ended);
        delete ended;
      },
      kept);
}

bool serialize_shared(const ::grpc::protobuf::MessageLite& message, ::grpc::ByteBuffer* into,
                      ::grpc::Status* status) {
  if (!measure(message).has_tensors) return false;
  std::optional<std::vector<Piece>> pieces = take_apart(message);
  if (!pieces) {
    *status = ::grpc::Status(::grpc::StatusCode::INTERNAL, "Failed to serialize message");
    return true;
  }
  std::vector<::grpc::Slice> slices;
  slices.reserve(pieces->size());
  for (const Piece& piece : *pieces) {
    if (piece.tensor) {
      slices.push_back(alias_of(piece.tensor));
    } else {
      slices.emplace_back(piece.bytes);
    }
  }
  ::grpc::ByteBuffer(slices.data(), slices.size()).Swap(into);
  return true;
}

}  // namespace sluice::grpc
