// One SLP session with its memory, as a link and its provider use it. This process or the kernel's
// module runs the protocol. Knows no session of ours.
#ifndef SLUICE_PROTO_DIRECT_CONNECTION_H_
#define SLUICE_PROTO_DIRECT_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <sluice/base/clock.h>
#include <sluice/base/result.h>
#include <sluice/proto/direct_client.h>
#include <sluice/spi/link.h>

namespace sluice::proto {

class DirectLink;

class DirectConnection {
 public:
  virtual ~DirectConnection() = default;
  // Path of bulk transfers.
  virtual Path bulk_path() const = 0;
  // How many of `bytes` received into memory we did not copy, although the traits say so.
  virtual uint64_t uncopied_in(uint64_t) { return 0; }
  // How many sent `bytes` of windows or writes no kernel copied, although the traits say so.
  virtual uint64_t uncopied_out(uint64_t) { return 0; }
  virtual std::string local_name() const = 0;
  virtual std::string peer_name() const = 0;

  // Over, and why.
  bool failed() const { return failed_; }
  const Status& failure() const { return failure_; }
  virtual void fail(Status why) = 0;

  // After the greeting: from now on what comes goes to the client.
  virtual void set_client(DirectClient* client) = 0;
  // Gives the client what has come; returns how much.
  virtual size_t turn(Instant now) = 0;
  virtual bool has_news() const = 0;

  // False, of these three: no room now.
  virtual bool send(ConstBytes header, std::span<const ConstBytes> payload) = 0;
  virtual Result<bool> read(const wire::Segment& peer, std::span<const MutableBytes> into,
                            uint64_t cookie) = 0;
  virtual Result<bool> write(std::span<const ConstBytes> from, const wire::Segment& peer,
                             uint64_t cookie, const uint32_t* notice) = 0;
  // Something was refused for want of room, and may find it now. Says so once.
  virtual bool became_writable() = 0;
  virtual void cancel_moves(uint64_t cookie) = 0;
  // Errors: kTryAgain (too many windows), kUnreachable, kNoMemory.
  virtual Result<WindowId> open_window(std::byte* data, uint64_t length, Right rights,
                                       uint64_t cookie, wire::Segment& out) = 0;
  // `tell`: on_window_closed() follows.
  virtual void close_window(WindowId window, bool tell) = 0;

  // The program's end of it is over: windows close, what comes is dropped, what was sent still
  // goes out.
  virtual void leave() = 0;
  // All that was posted is with the peer, or never will be.
  virtual bool drained() const = 0;
  // Ends all access to memory of either end, and says so to the peer.
  virtual void stop() = 0;

  // The link that is told of news; null: none any more.
  virtual void set_link(DirectLink* to) { link = to; }

  bool marked_active = false;  // the provider's
  DirectLink* link = nullptr;  // for the provider

 protected:
  bool failed_ = false;
  Status failure_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_DIRECT_CONNECTION_H_
