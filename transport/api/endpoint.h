// One connection to one peer: tagged messages, one-sided access, and the seam that
// the exchange stands on. Abstract: which path carries it is the backend's matter.
#ifndef SLUICE_API_ENDPOINT_H_
#define SLUICE_API_ENDPOINT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <sluice/api/completion.h>
#include <sluice/api/peer_account.h>
#include <sluice/api/receipt.h>
#include <sluice/api/remote_key.h>
#include <sluice/base/process_mark.h>
#include <sluice/base/result.h>
#include <sluice/base/thread_mark.h>

namespace sluice {

class Context;

enum class EndpointState : uint8_t { kConnected, kClosing, kClosed };

struct EndpointInfo {
  PathProperties path;
  Path bulk_path = Path::kNone;  // path of bulk transfers; path.path unless a connection has two
                                 // (receipts say which it was)
  std::string local;             // address as the path knows it
  std::string peer;
  std::string reason;             // why this path and not a better one
  uint64_t peer_incarnation = 0;  // differs after the peer's process restarted
  uint32_t peer_pid = 0;          // 0 where the path does not say
  bool peer_silent = false;       // its kernel answers, it does not call progress
  // Its exchange can tell its latest step (fetch of kLatest); false: it is of an older version.
  bool peer_tells_latest = false;
};

struct EndpointCounters {
  uint64_t posted, completed;  // equal once the endpoint is closed
  uint64_t messages_sent, messages_received;
  uint64_t bytes_sent, bytes_received;  // payload
  uint64_t copied_bytes, kernel_copied_bytes;
  uint64_t loans_outstanding;  // of our memory, at the peer
  uint64_t views_outstanding;  // of the peer's memory, here
};

// A peer's request for a keyed tensor, as the exchange sees it.
struct WantRequest {
  uint64_t token = 0;    // names the request on its endpoint: answer with supply()
  uint32_t key_id = 0;   // peer's number for the key, dense from 0
  std::string_view key;  // the key's text; empty if this id was named before
  uint64_t step = 0;
  bool into = false;        // the peer has a destination of exactly
  TensorDescriptor layout;  // this dtype and shape
};

// Implemented by the exchange. Called from progress.
class WantHandler {
 public:
  virtual void on_want(class EndpointCore& endpoint, const WantRequest& request) noexcept = 0;
  // The peer no longer wants it. True if the request was still waiting for an answer.
  virtual bool on_want_cancelled(EndpointCore& endpoint, uint64_t token) noexcept = 0;
  // The endpoint is closed; all its operations have completed. Forget it.
  virtual void on_endpoint_closed(EndpointCore& endpoint, const Status& why) noexcept = 0;

 protected:
  ~WantHandler() = default;
};

// What a fetch asks for.
struct WantOptions {
  uint32_t key_id = 0;   // chosen by the asker, dense from 0, below kMaxKeyIds
  std::string_view key;  // given the first time the id is used on this endpoint
  uint64_t step = 0;
  Buffer destination;  // empty: a view or a fresh tensor; taken if posting succeeds
};

// A 64-bit atomic at the peer, in the byte order of its machine.
struct Atomic {
  enum class Kind : uint8_t { kFetchAdd, kCompareSwap };
  Kind kind = Kind::kFetchAdd;
  uint64_t operand = 0;   // the summand, or the new value
  uint64_t expected = 0;  // compare and swap: the value that must be there
};

// Keys one side may name on one connection, and the longest key.
inline constexpr uint32_t kMaxKeyIds = 1u << 16;
inline constexpr size_t kMaxKeyBytes = 255;

// What a backend's connection can do. Thread: the context's, all calls.
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
  // Answers a request. The completion comes when the peer has released the tensor
  // (Level::kConsumed): ok, or why it did not get it.
  virtual Result<OperationId> post_supply(uint64_t token, const Tensor& tensor,
                                          const PostOptions& options) = 0;
  // Refuses a request; the peer's want ends with `code`.
  virtual Status refuse_want(uint64_t token, Code code) = 0;

  // Ends an operation with kCancelled, unless it already ended. After the completion
  // nothing writes to its memory. Errors: kInvalidArgument (no such operation now).
  virtual Status cancel(OperationId id) = 0;

  // Lets the peer access the memory of `buffer` (or read a tensor) until revoked.
  virtual Result<RemoteKey> grant(const Buffer& memory, const GrantOptions& options) = 0;
  virtual Result<RemoteKey> grant(const Tensor& memory, const GrantOptions& options) = 0;
  // On return no access through the key is running or can start.
  virtual Status revoke(const RemoteKey& key) = 0;

  virtual void set_want_handler(WantHandler* handler) = 0;
  virtual const WantHandler* want_handler() const = 0;

  // Starts an orderly end: operations not yet done end kCancelled (or kOutcomeUnknown
  // where the peer may have them). State kClosed follows by progress.
  virtual void start_close() = 0;
  // Ends at once, without a message to the peer.
  virtual void abort(const Status& why) = 0;

  virtual EndpointState state() const = 0;
  virtual EndpointInfo info() const = 0;
  virtual EndpointCounters counters() const = 0;
  virtual void set_default_timeout(Duration timeout) = 0;
  // The account that is charged for what the peer makes us keep.
  virtual const std::shared_ptr<PeerAccount>& peer_account() const = 0;
};

// The handle a program holds. Shared with the Context, which must be able to finish
// an operation of an endpoint whose handle is gone; dropping the handle aborts.
class Endpoint {
 public:
  Endpoint() = default;
  Endpoint(std::shared_ptr<EndpointCore> core, Context* context);
  Endpoint(Endpoint&& other) noexcept = default;
  Endpoint& operator=(Endpoint&& other) noexcept;
  ~Endpoint();

  explicit operator bool() const { return static_cast<bool>(core_); }
  EndpointCore& core() const { return *core_; }
  const std::shared_ptr<EndpointCore>& shared() const { return core_; }
  Context& context() const { return *context_; }

  // Posted forms. An argument passed as an rvalue is taken only if the result is ok.
  Result<OperationId> send(Tag tag, const Tensor& segment, const PostOptions& options = {});
  Result<OperationId> send(Tag tag, Tensor&& segment, const PostOptions& options = {});
  Result<OperationId> send(Tag tag, std::span<const Tensor> segments,
                           const PostOptions& options = {});
  Result<OperationId> receive(TagMatch match, Buffer&& into, const PostOptions& options = {});
  Result<OperationId> receive(TagMatch match, std::span<Buffer> into,
                              const PostOptions& options = {});
  Result<OperationId> read(const RemoteKey& key, uint64_t offset, Buffer&& into,
                           const PostOptions& options = {});
  Result<OperationId> write(const RemoteKey& key, uint64_t offset, Tensor from,
                            const PostOptions& options = {});
  Result<OperationId> atomic(const RemoteKey& key, uint64_t offset, const Atomic& request,
                             Buffer&& result, const PostOptions& options = {});
  Status cancel(OperationId id);
  Result<RemoteKey> grant(const Buffer& memory, const GrantOptions& options = {});
  Result<RemoteKey> grant(const Tensor& memory, const GrantOptions& options = {});
  Status revoke(const RemoteKey& key);

  // Blocking twins: progress the context until the operation ended; at kPlaced.
  // Errors: as posting, and the operation's own status.
  Result<Receipt> send_and_wait(Tag tag, Tensor segment, Instant deadline);
  struct Received {
    Buffer buffer;  // reshaped to the bytes that came, as uint8
    Tag tag = 0;
    Receipt receipt;
  };
  // On failure `into` has its buffer again, unless the path may still write to it.
  Result<Received> receive_and_wait(TagMatch match, Buffer&& into, Instant deadline);
  Result<Receipt> write_and_wait(const RemoteKey& key, uint64_t offset, Tensor from,
                                 Instant deadline);
  Result<Received> read_and_wait(const RemoteKey& key, uint64_t offset, Buffer&& into,
                                 Instant deadline);
  // Returns the value from before. Errors: as post_atomic(); kNoMemory (8 bytes for the result).
  Result<uint64_t> fetch_add_and_wait(const RemoteKey& key, uint64_t offset, uint64_t add,
                                      Instant deadline);
  Result<uint64_t> compare_swap_and_wait(const RemoteKey& key, uint64_t offset, uint64_t expected,
                                         uint64_t desired, Instant deadline);

  // An empty handle: closed, and empty results.
  EndpointState state() const { return core_ ? core_->state() : EndpointState::kClosed; }
  EndpointInfo info() const { return core_ ? core_->info() : EndpointInfo(); }
  EndpointCounters counters() const { return core_ ? core_->counters() : EndpointCounters(); }
  void set_default_timeout(Duration timeout) {
    if (core_) core_->set_default_timeout(timeout);
  }

  // Orderly end: sent bytes are flushed, the peer is told, every operation completes.
  // Errors: kTimedOut (aborted at the deadline instead).
  Status close(Instant deadline);

 private:
  // False: an empty handle, the child of the process that connected, or a second thread.
  bool usable() const { return core_ && !owner_.in_forked_child() && !thread_mark_->elsewhere(); }
  Status unusable() const;
  std::shared_ptr<EndpointCore> core_;
  Context* context_ = nullptr;
  std::shared_ptr<ThreadMark> thread_mark_;  // of the context, which may be gone
  ProcessMark owner_ = ProcessMark::current();
};

}  // namespace sluice

#endif  // SLUICE_API_ENDPOINT_H_
