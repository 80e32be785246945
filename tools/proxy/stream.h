// One forwarded connection at this end: a socket on one side, a numbered stream of the link to the
// other proxy on the other. Bytes wait here for at most a window in each direction.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/runtime/event_handler.h>

#include "tools/proxy/frame.h"
#include "tools/proxy/sockets.h"
#include "tools/proxy/totals.h"

namespace sluice::tools::proxy {

// What a stream needs of the connection to the other proxy. Calls never call back.
class Carrier {
 public:
  virtual Context& context() = 0;
  virtual Totals& totals() = 0;
  virtual void send(const Frame& frame) = 0;
  // `message` has the data behind room for kFrameBytes.
  virtual void send_data(uint64_t stream, Tensor message) = 0;
  // Stream::piece_released() follows.
  virtual void announce(uint64_t stream, Tensor piece) = 0;
  // The piece follows with Stream::deliver().
  virtual void ask(uint64_t stream, uint64_t piece) = 0;
  // False: what was sent before has not left. wait_to_read(): Stream::resume() follows.
  virtual bool may_read() const = 0;
  virtual void wait_to_read(uint64_t stream) = 0;
  // Stream::on_time() follows.
  virtual void call_after(uint64_t stream, Duration delay) = 0;
  // The service cannot be reached, for that reason.
  virtual void unreachable(const Status& why) = 0;
  // The stream is dropped after this turn.
  virtual void over(uint64_t stream) = 0;

 protected:
  ~Carrier() = default;
};

struct Windows {
  uint64_t own = 0;      // what the peer may send before we grant more
  uint64_t smaller = 0;  // of both sides: more is not sent, so a grant may not wait for more
};

class Stream final : private EventHandler {
 public:
  // Requires: the carrier outlives it.
  Stream(Carrier& carrier, uint64_t id, const Windows& windows);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // One of the two begins it: a connected socket, or the service's addresses, tried in turn.
  void take(Descriptor socket);
  void dial(std::span<const SocketAddress> addresses);

  // What the peer said of this stream. Errors: kCorrupt, which ends the link.
  Status on_frame(const Frame& frame, std::span<const std::byte> data);
  // False: it has another length than was announced.
  bool deliver(uint64_t piece, Tensor tensor);

  // The peer is done with a piece of ours. Until it is with all, the stream counts as open.
  void piece_released();
  void resume();
  void on_time();
  // The socket is reset, and the peer is told where `tell`.
  void end(ResetReason reason, bool tell);
  bool is_over() const { return over_; }

 private:
  // Bytes on their way to the socket.
  struct Chunk {
    uint64_t piece = 0;  // 0: `bytes`
    size_t length = 0;
    size_t done = 0;
    Tensor tensor;      // of a piece, once it is here
    std::string bytes;  // small data, joined
    bool ready() const { return piece == 0 || tensor; }
    const std::byte* data() const {
      return piece == 0 ? reinterpret_cast<const std::byte*>(bytes.data()) : tensor.data();
    }
  };

  void on_event(uint32_t events) noexcept override;
  void try_address();
  void finish_connect();
  bool reading() const;
  void read_socket();
  bool read_piece(uint64_t& budget);
  void write_socket();
  void stop_writing();
  void on_reset(ResetReason reason);
  size_t gather(struct iovec* parts, size_t most) const;
  void written(size_t bytes);
  Status account(uint64_t bytes);
  Status on_credit(uint64_t total);
  void finish_if_done();
  void stop(bool hard);
  void watch_what_is_needed();

  Carrier& carrier_;
  const uint64_t id_;
  const Windows windows_;
  Descriptor socket_;
  std::span<const SocketAddress> addresses_;  // the one that is tried, and those after it
  Instant dial_by_{};
  Status unreached_;      // why the address before was none
  uint32_t watched_ = 0;  // epoll events; 0: not watched
  bool connecting_ = false;
  bool over_ = false;

  // From the socket to the peer.
  uint64_t sent_ = 0, acknowledged_ = 0;
  uint64_t acknowledged_before_ = 0;  // when a failed write was looked after last
  uint64_t pieces_out_ = 0;
  bool read_open_ = true;
  bool waits_to_read_ = false;

  // From the peer to the socket.
  std::deque<Chunk> chunks_;
  uint64_t received_ = 0, written_ = 0, granted_ = 0;
  bool blocked_ = false;       // the socket takes no more now
  bool end_received_ = false;  // no more comes
  bool write_open_ = true;
  bool write_failed_ = false;  // the program takes no more, but may have said something
  bool reset_ = false;         // the peer's RESET came; what came before it is still to be written
};

}  // namespace sluice::tools::proxy
