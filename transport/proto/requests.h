// What we ask of the peer beside messages: keys, and access to memory that it granted; and the
// offers that answer.
#ifndef SLUICE_PROTO_REQUESTS_H_
#define SLUICE_PROTO_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include <sluice/api/endpoint.h>
#include <sluice/proto/connection.h>
#include <sluice/proto/control_queue.h>
#include <sluice/proto/incoming.h>
#include <sluice/proto/layout_numbers.h>
#include <sluice/proto/operations.h>
#include <sluice/proto/send_queue.h>
#include <sluice/proto/transfer.h>
#include <sluice/spi/want_handler.h>

namespace sluice::proto {

// Thread: the context's. Blocks: never.
class Requests {
 public:
  Requests(Connection& connection, Operations& operations, ControlQueue& control, SendQueue& sends,
           Incoming& incoming, Transfer& transfer)
      : connection_(connection),
        operations_(operations),
        control_(control),
        sends_(sends),
        incoming_(incoming),
        transfer_(transfer) {}

  // EndpointCore's.
  Result<OperationId> post_read(const RemoteKey& key, uint64_t offset, Buffer& into,
                                const PostOptions& options);
  Result<OperationId> post_write(const RemoteKey& key, uint64_t offset, Tensor& from,
                                 const PostOptions& options);
  Result<OperationId> post_atomic(const RemoteKey& key, uint64_t offset, const Atomic& request,
                                  Buffer& result, const PostOptions& options);
  Result<OperationId> post_want(WantOptions& want, const PostOptions& options);
  Result<size_t> post_wants(const WantOptions& want, std::span<const PostOptions> options,
                            std::span<OperationId> ids);

  // The peer's offer for a request. Errors: kCorrupt.
  Status on_answer(wire::Offer& offer, PayloadReader& payload);

 private:
  Status take_number(wire::Offer& offer);

  Connection& connection_;
  Operations& operations_;
  ControlQueue& control_;
  SendQueue& sends_;
  Incoming& incoming_;
  Transfer& transfer_;
  LayoutNumbers layouts_;  // as the peer numbers them
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_REQUESTS_H_
