// What a path's connection can do: every operation of an Endpoint, and what the exchange stands on.
#ifndef SLUICE_SPI_ENDPOINT_CORE_H_
#define SLUICE_SPI_ENDPOINT_CORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <sluice/api/completion.h>
#include <sluice/api/endpoint.h>
#include <sluice/api/remote_key.h>
#include <sluice/base/result.h>
#include <sluice/spi/want_handler.h>

namespace sluice {

class PeerAccount;

// Implemented by the session of every path. Thread: the context's, all calls.
// Blocks: never. All posts: the buffer or tensor is taken only if the result is ok;
// errors are kTryAgain (table or queue full: progress, then repeat), kWrongState (not
// connected), kInvalidArgument, and what is listed with the call.
class EndpointCore {
 public:
  virtual ~EndpointCore() = default;

  // Sends the segments as one message, in order with other sends of this endpoint. They
  // are shared, not taken: a small message leaves without touching their counts.
  virtual Result<OperationId> post_send(Tag tag, std::span<const Tensor> segments,
                                        const PostOptions& options) = 0;
  // Receives the first message whose tag matches. The buffers are filled in order. A
  // message larger than their sum ends the receive with kInvalidArgument, untouched, and
  // stays for a larger one.
  virtual Result<OperationId> post_receive(TagMatch match, std::span<Buffer> segments,
                                           const PostOptions& options) = 0;
  // Reads `into.size_bytes()` bytes of the granted range. kAccessDenied: outside the grant.
  virtual Result<OperationId> post_read(const RemoteKey& key, uint64_t offset, Buffer& into,
                                        const PostOptions& options) = 0;
  // Writes the tensor's bytes to the granted range; completes at kPlaced.
  virtual Result<OperationId> post_write(const RemoteKey& key, uint64_t offset, Tensor& from,
                                         const PostOptions& options) = 0;
  // One atomic on the 8 bytes at `offset`; address and offset are multiples of 8. The value from
  // before goes to the first 8 bytes of `result`. Atomic towards other atomics through the same
  // device. kUnsupported: the path has no Capability::kAtomics.
  virtual Result<OperationId> post_atomic(const RemoteKey& key, uint64_t offset,
                                          const Atomic& request, Buffer& result,
                                          const PostOptions& options) = 0;
  // Asks for a keyed tensor; completes with it, or with options.destination filled.
  virtual Result<OperationId> post_want(WantOptions& want, const PostOptions& options) = 0;
  // The same for want.step and the steps behind it, as many as there are `options` and `ids`, 2 to
  // wire::kMaxStepsOfWant: one message asks for all of them if the peer can read that. Returns how
  // many operations there was room for, from the first on. Requires: no destination.
  virtual Result<size_t> post_wants(const WantOptions& want, std::span<const PostOptions> options,
                                    std::span<OperationId> ids) = 0;
  // Answers a request. The completion comes when the peer has released the tensor
  // (Level::kConsumed): ok, or why it did not get it.
  virtual Result<OperationId> post_supply(uint64_t token, const Tensor& tensor,
                                          const PostOptions& options) = 0;
  // Whether the path reads the tensor where it is. If not, of device memory, each supply copies it
  // to host memory first.
  virtual bool reaches(const Tensor& tensor) = 0;
  // Refuses a request; the peer's want ends with `code`.
  virtual Status refuse_want(uint64_t token, Code code) = 0;

  // Ends an operation with kCancelled, unless it already ended. After the completion
  // nothing writes to its memory. Errors: kInvalidArgument (no such operation now).
  virtual Status cancel(OperationId id) = 0;

  // Lets the peer access the memory of `buffer` (or read a tensor) until revoked.
  virtual Result<RemoteKey> grant(const Buffer& memory, const GrantOptions& options) = 0;
  virtual Result<RemoteKey> grant(const Tensor& memory, const GrantOptions& options) = 0;
  // After it no access through the key is running or can start. Errors: kInvalidArgument (no such
  // grant), kTimedOut (over shared memory the peer did not stop copying: the connection has ended,
  // and what it reads now may be what is written there from now on).
  virtual Status revoke(const RemoteKey& key) = 0;

  virtual void set_want_handler(WantHandler* handler) = 0;
  virtual const WantHandler* want_handler() const = 0;

  // Starts an orderly end: operations not yet done end kCancelled (or kOutcomeUnknown
  // where the peer may have them). State kClosed follows by progress.
  virtual void start_close() = 0;
  // Ends at once, without a message to the peer.
  virtual void abort(const Status& why) = 0;
  // No program will receive any more: messages that nobody received are dropped, those too that
  // come before the end.
  virtual void drop_unexpected() = 0;

  virtual EndpointState state() const = 0;
  virtual EndpointInfo info() const = 0;
  virtual EndpointCounters counters() const = 0;
  virtual void set_default_timeout(Duration timeout) = 0;
  // The account that is charged for what the peer makes us keep.
  virtual const std::shared_ptr<PeerAccount>& peer_account() const = 0;
};

}  // namespace sluice

#endif  // SLUICE_SPI_ENDPOINT_CORE_H_
