// One message of a call on its way between gRPC's types and sluice's memory.
#ifndef SLUICE_GRPC_MESSAGE_H_
#define SLUICE_GRPC_MESSAGE_H_

#include <cstdint>
#include <span>
#include <string>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/interceptor.h>

#include <sluice/allocator/arena.h>

namespace sluice::grpc {

// A message as it leaves: inline bytes up to kInlineBytes, else arena memory.
struct Outgoing {
  uint64_t length = 0;
  std::string bytes;
  Tensor tensor;
  ::grpc::Status status;  // not ok: it cannot be sent
};

// What an interceptor was given to send. A protobuf message is serialised into its place at once;
// what the asynchronous API serialised already is copied there.
// Requires: the batch has PRE_SEND_MESSAGE.
Outgoing take_outgoing(::grpc::experimental::InterceptorBatchMethods& batch, Arena& arena);
Outgoing make_outgoing(const ::grpc::ByteBuffer& buffer, Arena& arena);

::grpc::ByteBuffer copy_of(std::span<const std::byte> bytes);
// Aliases the tensor, which lives until the last reference to the slice ends.
::grpc::ByteBuffer alias_of(const Tensor& tensor);

// Parses `from` into what an interceptor was given to receive into: a protobuf message, or a
// ByteBuffer, which takes the slices as they are. False: it does not parse.
bool deliver(::grpc::ByteBuffer& from, void* into);

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_MESSAGE_H_
