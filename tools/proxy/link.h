// The connection to another proxy: its frames, its streams, and the pieces on their way. Everything
// that comes from the peer is checked here or in its stream; a lie ends the link.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/spi/endpoint_core.h>

#include "tools/proxy/frame.h"
#include "tools/proxy/sockets.h"
#include "tools/proxy/stream.h"
#include "tools/proxy/totals.h"

namespace sluice::tools::proxy {

struct LinkOptions {
  uint64_t window = 0;            // bytes of a stream, each way
  uint64_t most_connections = 0;  // of this process
  // Where streams that the peer opens go; empty: it may open none.
  std::span<const SocketAddress> service;
};

class Link final : private CompletionSink, private WantHandler, private Carrier {
 public:
  // Requires: context, totals and what options names outlive it, which ends once it is settled.
  Link(Context& context, Endpoint endpoint, Totals& totals, const LinkOptions& options);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  Status start();
  // The peer's HELLO is here, and nothing has failed.
  bool is_ready() const { return peer_window_ != 0 && !failed(); }
  bool failed() const { return !failure_.ok(); }
  const Status& failure() const { return failure_; }
  size_t open_streams() const { return streams_.size() - over_.size(); }
  EndpointInfo info() const { return endpoint_.info(); }
  // Why the last stream was reset by the peer; empty: none was since the last call.
  std::string take_refusal() { return std::exchange(refusal_, {}); }
  // Why the service could not be reached last; empty: it could since the last call.
  std::string take_unreachable() { return std::exchange(unreachable_, {}); }
  // From now on streams that the peer opens are reset: this proxy ends.
  void take_no_more() { ending_ = true; }

  // A program's connection becomes a stream. Requires: is_ready().
  void open(Descriptor socket);
  // What is left to do after the context's progress. Returns when to be called at the latest.
  Instant turn(Instant now);
  // Its end in steps that do not wait. All streams end, and the peer is told.
  void end_streams(ResetReason reason);
  // What was said before has left; or it never will.
  bool is_flushed();
  // A peer that is silent keeps it from being settled until abort().
  void start_close();
  void abort();
  // Nothing refers to this any more.
  bool is_settled() const;

 private:
  struct Piece {
    uint64_t stream = 0;
    Tensor tensor;
    bool supplied = false;
  };
  struct Asked {
    uint64_t stream = 0;
    uint64_t piece = 0;
  };
  struct Call {
    Instant at{};
    uint64_t stream = 0;
  };
  // A message that came, until those before it are handled.
  struct Received {
    Buffer buffer;
    size_t bytes = 0;
    bool here = false;
  };

  // Carrier.
  Context& context() override { return context_; }
  Totals& totals() override { return totals_; }
  void send(const Frame& frame) override;
  void send_data(uint64_t stream, Tensor message) override;
  void announce(uint64_t stream, Tensor piece) override;
  void ask(uint64_t stream, uint64_t piece) override;
  bool may_read() const override { return outbox_.empty(); }
  void wait_to_read(uint64_t stream) override { waiting_.push_back(stream); }
  void over(uint64_t stream) override;
  void call_after(uint64_t stream, Duration delay) override;
  void unreachable(const Status& why) override;

  void on_completion(Completion&& completion) noexcept override;
  void on_want(EndpointCore& endpoint, const WantRequest& request) noexcept override;
  bool on_want_cancelled(EndpointCore& endpoint, uint64_t token) noexcept override;
  void on_endpoint_closed(EndpointCore& endpoint, const Status& why) noexcept override;

  void fail(const Status& why);
  Status post_receive(uint64_t slot, Buffer buffer);
  void on_message(Completion&& completion);
  Status handle(std::span<const std::byte> message);
  Status handle_stream(const Frame& frame, std::span<const std::byte> data);
  Status on_open(uint64_t stream);
  void on_piece_here(Completion&& completion);
  void on_piece_gone(const Completion& completion);
  void transmit(Tensor message);
  void post_wants();
  Instant call_streams(Instant now);
  Windows windows() const {
    return {.own = options_.window, .smaller = std::min(options_.window, peer_window_)};
  }
  Stream* find(uint64_t stream);

  Context& context_;
  Endpoint endpoint_;
  Totals& totals_;
  const LinkOptions options_;
  const Instant hello_by_;
  Status failure_;
  std::string refusal_, unreachable_;
  bool ending_ = false;
  uint64_t peer_window_ = 0;  // 0: no HELLO yet
  std::unordered_map<uint64_t, std::unique_ptr<Stream>> streams_;
  uint64_t last_stream_ = 0;
  std::vector<uint64_t> over_;     // streams to be dropped
  std::vector<uint64_t> waiting_;  // streams that would read
  std::vector<Call> calls_;        // streams that asked for a time
  std::deque<Tensor> outbox_;      // frames that the endpoint has no room for

  static constexpr size_t kReceives = 64;
  std::array<Received, kReceives> received_;  // by slot: what is handled next is not always here
  uint64_t next_message_ = 0;

  std::map<uint64_t, Piece> pieces_;  // ours, until the peer has released them
  uint64_t last_piece_ = 0;
  uint64_t last_peer_piece_ = 0;
  std::deque<Asked> to_ask_;
  std::unordered_map<uint64_t, uint64_t> asked_;  // piece -> stream
  bool key_named_ = false;
};

// The whole end of links, all at once: none waits for another's peer. Blocks: until `deadline`, or
// until a second later if one had to be aborted. Some may not be settled even then.
void finish(Context& context, std::span<Link* const> links, ResetReason reason, Instant deadline);

}  // namespace sluice::tools::proxy
