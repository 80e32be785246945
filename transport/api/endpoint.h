// One connection to one peer: tagged messages and one-sided access. Which path carries it is no
// matter of this file.
#ifndef SLUICE_API_ENDPOINT_H_
#define SLUICE_API_ENDPOINT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <sluice/api/completion.h>
#include <sluice/api/receipt.h>
#include <sluice/api/remote_key.h>
#include <sluice/base/process_mark.h>
#include <sluice/base/result.h>
#include <sluice/base/thread_mark.h>

namespace sluice {

class Context;
class EndpointCore;  // <sluice/spi/endpoint_core.h>

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
  // Connections over which bulk is spread: more than 1 over TCP where a round trip is long
  // (SLUICE_TCP_STREAMS).
  uint32_t streams = 1;
};

struct EndpointCounters {
  uint64_t posted, completed;  // equal once the endpoint is closed
  uint64_t messages_sent, messages_received;
  uint64_t bytes_sent, bytes_received;  // payload
  uint64_t copied_bytes, kernel_copied_bytes;
  uint64_t loans_outstanding;  // of our memory, at the peer
  uint64_t views_outstanding;  // of the peer's memory, here
};

// A 64-bit atomic at the peer, in the byte order of its machine.
struct Atomic {
  enum class Kind : uint8_t { kFetchAdd, kCompareSwap };
  Kind kind = Kind::kFetchAdd;
  uint64_t operand = 0;   // the summand, or the new value
  uint64_t expected = 0;  // compare and swap: the value that must be there
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
  // Ends a grant: after ok no access through the key runs, and none can start.
  // Blocks: until what runs has ended. Over shared memory the peer copies by itself: it has 100 ms
  // to end its piece, or 2 ms if such waits have taken a fifth of this thread's time. Over RDMA the
  // device confirms, within a second or the connection ends. Over a stream what is queued is
  // copied, 3 MiB at most.
  // Errors: kInvalidArgument (no such grant: it was revoked before, or the connection has ended);
  // kWrongState (the handle is empty, or another thread is inside the context); kTimedOut (over
  // shared memory: the peer did not stop copying). Then the connection has ended, and the copy may
  // still run: put nothing into that memory that the peer must not see.
  Status revoke(const RemoteKey& key);

  // Blocking twins: progress the context until the operation ended; at kPlaced.
  // Errors: as posting, and the operation's own status; kWrongState inside a completion of l2 or
  // kmod (CompletionSink).
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
  EndpointState state() const;
  EndpointInfo info() const;
  EndpointCounters counters() const;
  void set_default_timeout(Duration timeout);

  // Starts the orderly end that close() waits for: operations not yet done end kCancelled (or
  // kOutcomeUnknown if the peer may have them). state() is kClosed some time later.
  void start_close();
  // Ends at once, without a message to the peer.
  void abort(const Status& why);
  // Orderly end: sent bytes are flushed, the peer is told, every operation completes.
  // Errors: kTimedOut (aborted at the deadline instead); kWrongState inside a completion of l2 or
  // kmod: the endpoint is open as before, and start_close() may be called.
  Status close(Instant deadline);

 private:
  // False: an empty handle, the child of the process that connected, or a second thread.
  bool usable() const { return core_ && !owner_.in_forked_child() && !thread_mark_->elsewhere(); }
  Status unusable() const;
  class Wait;
  Result<uint64_t> atomic_and_wait(const RemoteKey& key, uint64_t offset, const Atomic& request,
                                   Instant deadline);
  std::shared_ptr<EndpointCore> core_;
  Context* context_ = nullptr;
  std::shared_ptr<ThreadMark> thread_mark_;  // of the context, which may be gone
  ProcessMark owner_ = ProcessMark::current();
};

namespace internal {
// The posts of an Endpoint whose handle may have moved meanwhile: for asio.h.
Result<OperationId> post_send(EndpointCore& core, Tag tag, std::span<const Tensor> segments,
                              const PostOptions& options);
Result<OperationId> post_receive(EndpointCore& core, TagMatch match, std::span<Buffer> into,
                                 const PostOptions& options);
Result<OperationId> post_read(EndpointCore& core, const RemoteKey& key, uint64_t offset,
                              Buffer& into, const PostOptions& options);
Result<OperationId> post_write(EndpointCore& core, const RemoteKey& key, uint64_t offset,
                               Tensor& from, const PostOptions& options);
Status cancel(EndpointCore& core, OperationId id);
}  // namespace internal

}  // namespace sluice

#endif  // SLUICE_API_ENDPOINT_H_
