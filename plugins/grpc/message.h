// One message of a call on its way between gRPC's types and sluice's memory.
#ifndef SLUICE_GRPC_MESSAGE_H_
#define SLUICE_GRPC_MESSAGE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/interceptor.h>

#include <sluice/allocator/arena.h>
#include <sluice/grpc/connection.h>
#include <sluice/grpc/frames.h>
#include <sluice/grpc/pieces.h>

namespace sluice::grpc {

// A message as it leaves: bytes up to kInlineBytes altogether, and tensors.
struct Outgoing {
  uint64_t length = 0;
  std::vector<Piece> pieces;
  ::grpc::Status status;  // not ok: it cannot be sent
};

// What an interceptor was given to send. A protobuf message is serialised into its place at once;
// what the asynchronous API serialised already is copied there. Tensors of the message, or slices
// in memory that SharedRanges knows, stay where they are.
// Requires: the batch has PRE_SEND_MESSAGE.
Outgoing take_outgoing(::grpc::experimental::InterceptorBatchMethods& batch, Arena& arena);
Outgoing make_outgoing(const ::grpc::ByteBuffer& buffer, Arena& arena);
// Thread: the connection's. Requires: message.status.ok().
void send(Connection& connection, uint32_t stream, Outgoing message);

// The message of a frame: calls `done` once, now if all of it is there, else when the last lent
// part is. Not ok: a part is lost. Thread: the connection's.
using Gathered = std::function<void(const Status& status, ::grpc::ByteBuffer& message)>;
void gather(Connection& connection, const Frame& frame, Gathered done);

::grpc::ByteBuffer copy_of(std::span<const std::byte> bytes);

// gRPC's limits of a message, in bytes; -1: none. `what`: "Sent" or "Received".
bool over(uint64_t length, int64_t limit);
::grpc::Status too_large(const char* what, uint64_t length, int64_t limit);

// Parses `from` into what an interceptor was given to receive into: a protobuf message, or a
// ByteBuffer, which takes the slices as they are. False: it does not parse; the message is empty.
bool deliver(::grpc::ByteBuffer& from, void* into);

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_MESSAGE_H_
