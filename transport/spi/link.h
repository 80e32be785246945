// The seam between the path-independent session and a backend. A path implements one of
// ViewLink, StreamLink and DeviceLink: control messages as any Link carries them, and bulk in its
// own way. What arrives goes to the session (LinkClient) and to its transfer (ViewClient,
// StreamClient, DeviceClient). No I/O here, no clock: time is an argument.
#ifndef SLUICE_SPI_LINK_H_
#define SLUICE_SPI_LINK_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <variant>

#include <sluice/allocator/storage.h>
#include <sluice/api/receipt.h>
#include <sluice/api/remote_key.h>
#include <sluice/base/clock.h>
#include <sluice/base/result.h>
#include <sluice/base/streaming_rule.h>
#include <sluice/wire/messages.h>

namespace sluice {

class DeviceStorage;  // sluice/allocator/device_storage.h

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

// CPU copies per payload byte that one side makes when bytes pass this way.
struct CopyCost {
  uint8_t user = 0;
  uint8_t kernel = 0;
};

// What a path is, fixed for the life of the connection.
struct LinkTraits {
  PathProperties properties;
  // Largest payload that rides in a control message; above it rendezvous.
  uint32_t inline_bytes = 0;
  // A message between that and this, where this is more, goes eager if Link::prefer_eager() says
  // so, and if nobody is to hear that it has arrived.
  uint32_t most_inline_bytes = 0;
  // send() leaves nothing behind that flush() must bring out.
  bool sends_at_once = false;
  // Views: which of what is pulled is copied past the caches; null: nothing. Outlives the
  // connection.
  StreamingRule* streaming = nullptr;
  // Largest payload of one DATA message (streams).
  uint32_t data_bytes = 0;
  // Direct: largest read() or write().
  uint64_t chunk_bytes = 0;
  // Direct: the windows of one operation lie on queues that work side by side: its chunks
  // go to them in turn.
  bool spread = false;
  // The peer may be so far away that the credit of HELLO is less than what the line holds: credit
  // grows while the peer waits for it.
  bool credit_grows = false;
  CopyCost inline_out, inline_in;  // payload inside control messages
  CopyCost bulk_out, bulk_in;      // DATA; pulling from a view is counted by the session
};

// Direct: memory that is open to the peer's device, by its number at the link that opened
// it. On the wire it is a Segment: extent is the device's key, offset the address there.
using WindowId = uint32_t;

// Direct: a 64-bit atomic at the peer (native byte order of the device's host).
struct AtomicRequest {
  bool compare = false;   // compare and swap; else fetch and add
  uint64_t operand = 0;   // what to add, or what to put there
  uint64_t expected = 0;  // compare: only if this is there
};

// Inline payload of a message that is being handled: read once, in order.
class PayloadReader {
 public:
  // Copies the next out.size() bytes. Requires: as many are left.
  virtual void read(MutableBytes out) = 0;

 protected:
  ~PayloadReader() = default;
};

// Of bytes that lie in one piece.
class BytesPayload final : public PayloadReader {
 public:
  explicit BytesPayload(ConstBytes bytes) : left_(bytes) {}
  void read(MutableBytes out) override {
    size_t length = std::min(out.size(), left_.size());
    if (length > 0) std::memcpy(out.data(), left_.data(), length);
    left_ = left_.subspan(length);
  }

 private:
  ConstBytes left_;
};

// A peer's memory, mapped read-only. Counted: views keep it after the link is gone.
class PeerMapping {
 public:
  virtual void retain() noexcept = 0;
  virtual void drop() noexcept = 0;
  // The same, on the thread of the context whose link gave it out.
  virtual void drop_in_context() noexcept { drop(); }

 protected:
  ~PeerMapping() = default;
};

struct ImportedRun {
  const std::byte* data = nullptr;
  // Carries a reference for the caller; null where the memory is the storage's own.
  PeerMapping* mapping = nullptr;
};

// Where arriving DATA bytes go: up to so many runs at once.
inline constexpr size_t kMaxPlaces = 8;
struct Placement {
  std::array<MutableBytes, kMaxPlaces> runs;
  size_t count = 0;   // 0: nobody wants these bytes; read and drop them
  bool wait = false;  // but with this leave them where they are, and ask again in a later turn
};

// Implemented by the session; called by the link on the context's thread, from
// progress only (never from inside a call of the session into the link).
class LinkClient {
 public:
  // One control message (not DATA on stream links). `header` is a private copy that the
  // peer cannot change and that wire::decode_header() accepted. Payload that is not read
  // is skipped by the link. An error closes the endpoint with it.
  virtual Status handle_message(ConstBytes header, PayloadReader& payload, Instant now) = 0;
  // The same for a message that wire::decode_fast() took, where a link looks for it.
  virtual Status handle_tagged_inline(const wire::TaggedInline& message, PayloadReader& payload,
                                      Instant now) = 0;
  // So many messages were handed on, which took so long. True: no operation needed most of them,
  // and overdrawn() is asked before the next.
  virtual bool note_messages(uint32_t /*messages*/, Duration /*took*/, Instant /*now*/) {
    return false;
  }
  // The peer has had its part of the thread for messages that no operation needed. The link leaves
  // the rest where it is, and asks again in a later turn.
  virtual bool overdrawn(Instant /*now*/) const { return false; }
  // The link said "no room" before, by whatever call; there is room now.
  virtual void writable(Instant now) = 0;
  // The path is gone: peer dead, connection reset, protocol broken. Called once.
  virtual void link_down(const Status& why, Instant now) = 0;

 protected:
  ~LinkClient() = default;
};

// Implemented by the session's transfer, and called as LinkClient is.
class ViewClient {
 public:
  // Bytes of imported runs are still to be copied. They are within reach after the peer's end too,
  // so the link waits for them with link_down().
  virtual bool copies_pending() const = 0;

 protected:
  ~ViewClient() = default;
};

class StreamClient {
 public:
  // Where bytes [offset, offset + length) of DATA `id` go; asked again after every pause, since
  // the operation may have ended meanwhile.
  virtual Placement place(uint64_t id, uint64_t offset, uint64_t length) = 0;
  // `length` more bytes of DATA `id` are in memory (or were dropped).
  virtual Status placed(uint64_t id, uint64_t offset, uint64_t length, Instant now) = 0;
  // The bytes of a push() are out of the sender's memory.
  virtual void pushed(uint64_t cookie, uint64_t length, Instant now) = 0;

 protected:
  ~StreamClient() = default;
};

class DeviceClient {
 public:
  // A read(), write() or atomic() of `cookie` is over: `length` bytes of it are where they belong,
  // or the status says why not. Of Scope::kOperation: this alone was refused; else link_down()
  // follows.
  virtual void transfer_done(uint64_t cookie, uint64_t length, const Status& status,
                             Instant now) = 0;
  // A write() with `notice` of the peer has come, all its bytes before this.
  virtual Status arrived(uint32_t notice, Instant now) = 0;
  // The peer's device cannot reach the window of `cookie` any more.
  virtual void window_closed(uint64_t cookie, Instant now) = 0;

 protected:
  ~DeviceClient() = default;
};

// What every path carries: control messages. Implemented, as one of the three kinds below, by a
// backend's connection. Thread: the context's. Blocks: never.
class Link {
 public:
  virtual ~Link() = default;
  virtual const LinkTraits& traits() const = 0;

  // Sends a control message, in order, all or nothing. `header` starts with a
  // wire::Header whose payload_bytes is the sum of `payload`. The bytes are consumed
  // before it returns. False: no room now; writable() follows.
  virtual bool send(ConstBytes header, std::span<const ConstBytes> payload) = 0;
  // The session has nothing more to send in this round: coalesced writes go out.
  virtual void flush() = 0;

  // Of a payload that has more than traits().inline_bytes and at most most_inline_bytes: whether it
  // had better go eager, in its control message, as the two ends are now. A hint: either way is
  // right, one may take longer.
  virtual bool prefer_eager() const { return false; }

  // How many connections of the path carry its bulk.
  virtual uint32_t streams() const { return 1; }

  // Something that the link took waits here for room on the path.
  virtual bool has_unsent() const { return false; }

  // Memory of operations that have ended and that somebody may still reach: kept until nobody
  // can. Loans the peer has not given back when the session ends (its process ended, or it
  // unmapped them); what was lend() and never told as pushed(); of devices, what stop() could not
  // answer for (the device is closed).
  virtual void quarantine(StorageRef loan) = 0;

  // Nothing is called after it; pending bytes are tried once, then dropped.
  virtual void close() = 0;

  virtual std::string local_name() const = 0;
  virtual std::string peer_name() const = 0;
};

// The receiver can read the sender's arena in place: offers carry segments.
class ViewLink : public Link {
 public:
  // Once, by the session, before anything else. Both outlive the link's last call.
  virtual void set_client(LinkClient* session, ViewClient* transfer) = 0;

  // Describes our memory to the peer, announcing its extents first if needed.
  // False: the memory is not in an arena or not for this peer: send it by copy.
  // kTryAgain where the announcement has no room now.
  virtual Result<bool> export_run(const std::byte* data, size_t length, wire::Segment& out) = 0;
  // The peer's run as readable memory here. Errors: kCorrupt (the peer never
  // announced it, or it reaches outside).
  virtual Result<ImportedRun> import_run(const wire::Segment& segment) = 0;

  // How revoke() makes the peer stop copying. Each end counts the offers that it has
  // withdrawn, where the other can read it without a message, and says whether it copies from the
  // other's memory just now. Paths without such memory keep the defaults. Before a piece is copied
  // from the peer's memory: false if the peer has withdrawn other than `withdrawals_seen` offers; a
  // CANCEL that tells which is on its way. True: end_copy() follows, within some milliseconds.
  virtual bool begin_copy(uint64_t /*withdrawals_seen*/) { return true; }
  virtual void end_copy() {}
  // We have withdrawn so many offers. On return begin_copy() at the peer says no.
  virtual void count_withdrawals(uint64_t /*total*/) {}
  // Whether the peer is between begin_copy() and end_copy().
  virtual bool peer_is_copying() { return false; }
};

// Bytes travel as DATA, out of the sender's memory into the receiver's.
class StreamLink : public Link {
 public:
  // Once, by the session, before anything else. Both outlive the link's last call.
  virtual void set_client(LinkClient* session, StreamClient* transfer) = 0;

  // As send() for DATA, but the payload is read later: it must stay valid until
  // pushed(cookie) came for all of it, or link_down().
  virtual bool push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) = 0;
  // As push(), for payload that settle() is never asked about: whatever carries it may read it
  // where it is until pushed() has come, also behind the link's back.
  virtual bool lend(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) {
    return push(header, payload, cookie);
  }
  // Of the `bytes` that pushed() tells, as many as no kernel copied although traits() says so.
  // Asked once for each, from within pushed().
  virtual uint64_t uncopied_out(uint64_t /*bytes*/) { return 0; }
  // On return nothing that was push()ed with `cookie` is read from the caller's memory any
  // more: what has not left is copied into memory of the link, which is bounded by what it takes at
  // once. pushed() follows for those bytes as before.
  virtual void settle(uint64_t cookie) = 0;
  // DATA of one id may come in another order than it was pushed in: by several streams. Never false
  // again once it was true.
  virtual bool may_reorder() const { return false; }
};

// The devices of the two ends move bytes between registered memory by themselves: offers and
// requests carry windows, and what is large goes by read() and write().
class DeviceLink : public Link {
 public:
  // Once, by the session, before anything else. Both outlive the link's last call.
  virtual void set_client(LinkClient* session, DeviceClient* transfer) = 0;

  // Whether the device reads and writes this memory of another device where it is: asked before
  // each operation on it. A link that says so finds it by its addresses in the calls below.
  virtual bool reaches(DeviceStorage& /*memory*/) { return false; }
  // What takes bytes between windows; traits().properties.path but where a link has two.
  virtual Path bulk_path() const { return traits().properties.path; }
  // Of `bytes` that have come by read() or the peer's write(), as many as we did not copy
  // although traits() says so. Asked once for each.
  virtual uint64_t uncopied_in(uint64_t /*bytes*/) { return 0; }
  // Of `bytes` that have left by write() or the peer's read(), as many as no kernel copied
  // although traits() says so. Asked once for each.
  virtual uint64_t uncopied_out(uint64_t /*bytes*/) { return 0; }

  // Lets the peer's device do `rights` on [data, data + out.length), from the next send()
  // on. out.length may be less than `length` where memory is registered in pieces, unless
  // `whole`. Errors: kTryAgain (no room now; writable() follows), kNoMemory (the
  // detail names the limit), kUnsupported.
  virtual Result<WindowId> open_window(std::byte* data, uint64_t length, Right rights,
                                       uint64_t cookie, bool whole, wire::Segment& out) = 0;
  // window_closed(its cookie) follows.
  virtual void close_window(WindowId window) = 0;
  // On return the peer's device cannot reach it; window_closed() does not follow.
  // Blocks: one system call. Errors: what the device says; then the connection must end.
  virtual Status revoke_window(WindowId window) = 0;
  // Moves bytes between the peer's memory and ours, one piece after the other; transfer_done()
  // follows. Requires: the pieces have `peer.length` bytes, at most chunk_bytes, in at most
  // kMaxPlaces pieces. False: no room now. With `notice` the peer gets arrived(*notice)
  // after the bytes. Errors: kNoMemory (our memory cannot be registered), kCorrupt.
  virtual Result<bool> read(const wire::Segment& peer, std::span<const MutableBytes> into,
                            uint64_t cookie) = 0;
  virtual Result<bool> write(std::span<const ConstBytes> from, const wire::Segment& peer,
                             uint64_t cookie, const uint32_t* notice) = 0;
  // Puts what was there into the 8 bytes at `result`. Asked only with Capability::kAtomics.
  virtual Result<bool> atomic(const wire::Segment& peer, const AtomicRequest& request,
                              std::byte* result, uint64_t cookie);
  // The device has nothing to do, as far as its completions say. What is posted now leaves with
  // flush(), and need not wait for the turn's others to go with it as one list.
  virtual bool nothing_under_way() const { return false; }
  // A read() or write() of one piece of peer.length bytes that leaves before this returns, or is
  // refused by the device: link_down() follows. False: nothing was done, since the device is at
  // work, or this is no way for it; read() and write() say more. Decorators need not know it.
  virtual bool read_at_once(const wire::Segment& /*peer*/, std::byte* /*into*/,
                            uint64_t /*cookie*/) {
    return false;
  }
  virtual bool write_at_once(const std::byte* /*from*/, const wire::Segment& /*peer*/,
                             uint64_t /*cookie*/) {
    return false;
  }
  // Ends what read() and write() have under way for `cookie`: on return nothing of it touches
  // our memory, and no transfer_done() follows. False: it cannot be called back.
  virtual bool cancel_moves(uint64_t /*cookie*/) { return false; }
  // Ends all access of both devices to the memory of either end, before it returns. What
  // was running is dropped: no transfer_done(), no window_closed() follows. Then only
  // quarantine() and close(). False: a device does not let go, now and at every later call.
  virtual bool stop() = 0;
};

inline Result<bool> DeviceLink::atomic(const wire::Segment&, const AtomicRequest&, std::byte*,
                                       uint64_t) {
  return Status(Code::kInternal, Scope::kEndpoint, "spi/link", "the path has no atomics");
}

// A link of whatever kind: which one is known where it is made, and decides the session's transfer.
using AnyLink = std::variant<std::unique_ptr<ViewLink>, std::unique_ptr<StreamLink>,
                             std::unique_ptr<DeviceLink>>;

}  // namespace sluice

#endif  // SLUICE_SPI_LINK_H_
