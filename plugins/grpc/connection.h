// Frames and lent payloads over one endpoint, in order. Knows no calls: both ends have one.
#ifndef SLUICE_GRPC_CONNECTION_H_
#define SLUICE_GRPC_CONNECTION_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/grpc/frames.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::grpc {

// Thread: the context thread's, all calls.
class Connection final : private CompletionSink, private WantHandler, private ProgressHook {
 public:
  // Told from progress(). on_closed comes once, and nothing after it.
  class Owner {
   public:
    virtual void on_frame(const Frame& frame) = 0;
    // What arrived together was told.
    virtual void on_packet_end() {}
    virtual void on_closed(const Status& why) = 0;

   protected:
    ~Owner() = default;
  };
  using Fetched = std::function<void(Result<Tensor>)>;

  // Requires: context and owner outlive it.
  Connection(Context& context, Endpoint endpoint, Owner& owner);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Queued until the turn's end, where frames that fit leave in one message.
  void send(const Frame& frame);
  // Reads no further while the peer has not taken more than that of what was sent, or of what was
  // lent: a peer that takes nothing cannot make frames or payloads pile up. One end only: two that
  // wait for each other would wait for ever.
  void stop_reading_beyond(size_t untaken_bytes, uint64_t lent_bytes) {
    most_untaken_ = untaken_bytes;
    most_lent_ = lent_bytes;
  }
  // A payload that the peer may fetch once, under the number that a message names. It is kept until
  // the peer has fetched or dropped it.
  uint64_t lend(Tensor tensor);
  // `done` comes once, from progress(): the payload, or why there is none.
  void fetch(uint64_t payload, Fetched done);
  // The lent parts of a message that nobody here will fetch: the peer need not keep them.
  void drop_parts(const Frame& message);
  // The peer broke the rules.
  void refuse(const char* why);
  // Ends it in the turns that follow; on_closed is the last word.
  void close() { end(Status()); }
  bool open() const { return open_; }
  // on_closed was told: it may be destroyed. Requires before the destructor.
  bool finished() const { return told_; }
  EndpointInfo info() const { return endpoint_.info(); }

 private:
  void on_completion(Completion&& completion) noexcept override;
  void on_want(EndpointCore& endpoint, const WantRequest& request) noexcept override;
  bool on_want_cancelled(EndpointCore& endpoint, uint64_t token) noexcept override;
  void on_endpoint_closed(EndpointCore& endpoint, const Status& why) noexcept override;
  size_t progress(Instant now) override;
  Instant next_timeout() override;

  void post_receive(Buffer&& buffer);
  bool may_read() const {
    return unsent_.size() + under_way_ <= most_untaken_ && lent_bytes_ <= most_lent_;
  }
  void read_on();
  // Of what was lent; empty if the number is none of it.
  Tensor take_lent(uint64_t payload);
  void send_drops();
  void on_packet(Completion&& completion);
  void flush();
  void end(const Status& why);

  Context& context_;
  Endpoint endpoint_;
  Owner& owner_;
  bool open_ = true;
  Status why_;  // what ended it, told in the next turn
  bool aborted_ = false, told_ = false;
  uint64_t operations_ = 0;  // that will still complete into *this
  uint64_t receives_posted_ = 0, receives_handled_ = 0;
  std::map<uint64_t, Completion> early_;  // receives that ended before one posted earlier
  std::string unsent_;                    // whole frames
  std::deque<size_t> frame_ends_;         // in bytes from the start of unsent_
  size_t most_untaken_ = SIZE_MAX;
  size_t under_way_ = 0;  // bytes of sends that have not ended
  uint64_t most_lent_ = UINT64_MAX, lent_bytes_ = 0;
  std::vector<Buffer> paused_;  // receives that are posted again once the peer took more
  bool blocked_ = false;        // no room for a message; a send that ends makes room
  uint64_t sends_out_ = 0;
  uint64_t next_payload_ = 1;
  std::unordered_map<uint64_t, Tensor> lent_;
  std::vector<uint64_t> to_drop_;  // of the peer's: it is told when there is room for an operation
  uint64_t next_fetch_ = 1;
  std::unordered_map<uint64_t, Fetched> fetches_;
};

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_CONNECTION_H_
