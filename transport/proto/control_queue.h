// Control messages to the peer, in order: given to the link, or kept until it has room. Knows what
// the link has room for, and what is still to be flushed.
#ifndef SLUICE_PROTO_CONTROL_QUEUE_H_
#define SLUICE_PROTO_CONTROL_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <sluice/proto/connection.h>
#include <sluice/proto/peer_view.h>
#include <sluice/wire/messages.h>

namespace sluice::proto {

// Thread: the context's. Blocks: never.
class ControlQueue final : public ViewOwner {
 public:
  explicit ControlQueue(Connection& connection) : connection_(connection) { releases_.count = 0; }

  // Encodes the message, and sends or keeps it. Once the connection is over it is dropped. A peer
  // that does not read what is kept for it ends the connection: look at it after this.
  template <typename Message>
  void send(const Message& message);
  void send_done(uint64_t id, Code code, uint64_t bytes);
  // Sends a message with its payload now, behind what is kept here. False: no room.
  bool send_now(ConstBytes header, std::span<const ConstBytes> payload) {
    if (waiting()) return false;
    if (connection_.link.send(header, payload)) return true;
    blocked_ = true;
    return false;
  }
  // A view of the peer's memory has ended: RELEASE goes out, together with others.
  void view_ended(uint64_t offer_id) noexcept override;
  void send_releases();
  // In a round that did `work` else: releases that can wait travel together.
  void send_releases_after(size_t work) {
    if (releases_.count > 0 && (work == 0 || releases_.count >= kReleasesTogether)) send_releases();
  }
  // True when nothing is kept any more.
  bool send_kept();

  // Room. The link said no: nothing leaves until its writable().
  bool blocked() const { return blocked_; }
  void set_blocked() { blocked_ = true; }
  // The same of DATA alone, for which the link may have room where it has none for messages, and
  // the other way about.
  bool takes_bulk() const { return !blocked_ && !bulk_blocked_; }
  void set_bulk_blocked() { bulk_blocked_ = true; }
  // The path can name no more memory to the peer: nothing is offered, but all else goes on, since
  // the peer's answers make room.
  bool offers_held() const { return offers_held_; }
  void hold_offers() { offers_held_ = true; }
  void release_offers() {
    if (std::exchange(offers_held_, false)) connection_.activate();
  }
  void writable() { blocked_ = bulk_blocked_ = offers_held_ = false; }

  // What the link took goes out with the flush() that ends this round.
  void flush_later() { needs_flush_ = true; }
  // The same of a message, which may have left at once. May be called outside a round.
  void flush_message() {
    if (connection_.traits.sends_at_once || needs_flush_) return;
    needs_flush_ = true;
    connection_.activate();
  }
  void flush() {
    if (std::exchange(needs_flush_, false)) connection_.link.flush();
  }

  // Messages are kept here for want of room.
  bool waiting() const { return start_ < kept_.size(); }
  // Releases or a flush are due, room or not.
  bool due() const { return releases_.count > 0 || needs_flush_; }
  // What is kept is charged to the peer no more.
  void refund();

 private:
  static constexpr uint32_t kReleasesTogether = 8;

  void keep(ConstBytes message);

  Connection& connection_;
  std::vector<std::byte> kept_;  // encoded messages; those before start_ have gone
  size_t start_ = 0;
  uint64_t charged_ = 0;  // bytes of it, to the peer's account
  wire::Release releases_;
  bool blocked_ = false;
  bool bulk_blocked_ = false;
  bool offers_held_ = false;
  bool needs_flush_ = false;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_CONTROL_QUEUE_H_
