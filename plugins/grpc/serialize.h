// Makes gRPC send the tensors of protoc-gen-sluice's messages from their own memory, also where it
// serialises by itself: responses, the asynchronous interface, and calls that are not bridged.
// Included by generated code, before any use of gRPC's templates.
#ifndef SLUICE_GRPC_SERIALIZE_H_
#define SLUICE_GRPC_SERIALIZE_H_

#if __has_include(<grpcpp/impl/codegen/proto_utils.h>)
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <sluice/allocator/buffer.h>

namespace sluice::grpc {

// Aliases the tensor, which lives until the last reference to the slice ends. SharedRanges knows
// it until then.
::grpc::Slice alias_of(const Tensor& tensor);
// True: the message holds tensors, and `into` its pieces. False: it holds none, nothing was done.
bool serialize_shared(const ::grpc::protobuf::MessageLite& message, ::grpc::ByteBuffer* into,
                      ::grpc::Status* status);

}  // namespace sluice::grpc

// gRPC's stubs and services serialise all messages as this one type. A part of the program that
// does not see this header has gRPC's own: where the linker takes that one, tensors are copied.
template <>
class grpc::SerializationTraits<::grpc::protobuf::MessageLite, void> {
 public:
  static ::grpc::Status Serialize(const ::grpc::protobuf::MessageLite& message,
                                  ::grpc::ByteBuffer* into, bool* own_buffer) {
    ::grpc::Status status;
    *own_buffer = true;
    if (sluice::grpc::serialize_shared(message, into, &status)) return status;
    return ::grpc::GenericSerialize<::grpc::ProtoBufferWriter, ::grpc::protobuf::MessageLite>(
        message, into, own_buffer);
  }
  static ::grpc::Status Deserialize(::grpc::ByteBuffer* from,
                                    ::grpc::protobuf::MessageLite* message) {
    return ::grpc::GenericDeserialize<::grpc::ProtoBufferReader, ::grpc::protobuf::MessageLite>(
        from, message);
  }
};
#endif

#endif  // SLUICE_GRPC_SERIALIZE_H_
