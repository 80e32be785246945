// Memory that the peer may reach: our grants, and what it reads and writes through them by
// messages. Every value in its requests was chosen by the peer.
#ifndef SLUICE_PROTO_GRANTED_ACCESS_H_
#define SLUICE_PROTO_GRANTED_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include <sluice/api/endpoint.h>
#include <sluice/proto/connection.h>
#include <sluice/proto/control_queue.h>
#include <sluice/proto/grants.h>
#include <sluice/proto/incoming.h>
#include <sluice/proto/operations.h>
#include <sluice/proto/send_queue.h>
#include <sluice/proto/transfer.h>

namespace sluice::proto {

// Thread: the context's. Blocks: never, where not said.
class GrantedAccess {
 public:
  GrantedAccess(Connection& connection, Operations& operations, ControlQueue& control,
                SendQueue& sends, Incoming& incoming, Transfer& transfer, RandomSource random)
      : connection_(connection),
        operations_(operations),
        control_(control),
        sends_(sends),
        incoming_(incoming),
        transfer_(transfer),
        grants_(std::move(random)) {}

  // EndpointCore's.
  Result<RemoteKey> grant(const Buffer& memory, const GrantOptions& options) {
    return add(memory.storage(), memory.data(), memory.size_bytes(), options);
  }
  Result<RemoteKey> grant(const Tensor& memory, const GrantOptions& options);
  // Blocks: for milliseconds, until the peer has ended the piece that it was copying.
  Status revoke(const RemoteKey& key) { return revoke(key.grant); }

  // Requests of the peer. Errors: kCorrupt.
  Status on_write(const wire::Offer& offer, PayloadReader& payload);
  Status on_read(const wire::Want& want);

  // Revokes grants that are past their deadline, where a device would go on; returns when to look
  // again.
  Instant expire(Instant now);
  // A device does not let go: nobody else gets the memory.
  void quarantine();
  void clear() { grants_.clear(); }

 private:
  Result<RemoteKey> add(const StorageRef& storage, std::byte* data, uint64_t length,
                        const GrantOptions& options);
  Status revoke(uint64_t number);
  // An operation for a request, over that part of the grant's memory.
  Result<Operation*> take(OperationKind kind, const Grant& grant, uint64_t offset, uint64_t length);
  void stop_read(Operation* op);
  void refuse(uint64_t request);

  Connection& connection_;
  Operations& operations_;
  ControlQueue& control_;
  SendQueue& sends_;
  Incoming& incoming_;
  Transfer& transfer_;
  Grants grants_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_GRANTED_ACCESS_H_
