// Credits: how much each end may send before the other has posted a receive for it. Both limits,
// of messages and of eager bytes, are counted from the beginning of the connection and only grow.
//
// How much may be outstanding, the window, is what HELLO says. A window that is less than what the
// line holds lets the sender stand still for most of each round trip. The receiver sees that: the
// first message that needed a grant comes long after the one before it. Then it may widen().
#ifndef SLUICE_PROTO_CREDITS_H_
#define SLUICE_PROTO_CREDITS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <sluice/base/clock.h>
#include <sluice/wire/messages.h>

namespace sluice::proto {

class Credits {
 public:
  // What a window grows to: at 1 Gbit/s and a round trip of 20 ms half of it, which is granted at
  // a time, holds more than the line, of bytes and of messages of 1 KiB.
  static constexpr uint64_t kMostMessages = 8192, kMostBytes = uint64_t{8} << 20;

  // As both HELLOs say.
  Credits(const wire::Hello& ours, const wire::Hello& peer)
      : window_messages_(ours.credit_messages),
        window_bytes_(ours.credit_bytes),
        granted_messages_(ours.credit_messages),
        granted_bytes_(ours.credit_bytes),
        allowed_messages_(peer.credit_messages),
        allowed_bytes_(peer.credit_bytes) {}

  // Ours.

  // Whether one more message with so many eager bytes may leave; of a rendezvous, 0.
  bool may_send(uint64_t eager_bytes) const {
    return sent_messages_ < allowed_messages_ && may_send_bytes(eager_bytes);
  }
  bool may_send_bytes(uint64_t eager_bytes) const {
    return sent_bytes_ + eager_bytes <= allowed_bytes_;
  }
  void count_sent(uint64_t eager_bytes) {
    ++sent_messages_;
    sent_bytes_ += eager_bytes;
  }
  // A CREDIT may arrive twice or late.
  void allow(const wire::Credit& credit) {
    allowed_messages_ = std::max(allowed_messages_, credit.messages);
    allowed_bytes_ = std::max(allowed_bytes_, credit.bytes);
  }

  // The peer's.

  // A message of the peer has come. False: it had no credit for it.
  bool take(uint64_t eager_bytes) {
    ++taken_messages_;
    taken_bytes_ += eager_bytes;
    return taken_messages_ <= granted_messages_ && taken_bytes_ <= granted_bytes_;
  }
  // The same where the window may grow.
  bool take(uint64_t eager_bytes, Instant now) {
    const bool allowed = take(eager_bytes);
    if (taken_messages_ > before_messages_ || taken_bytes_ > before_bytes_) [[unlikely]]
      needed_grant(now);
    last_taken_ = now;
    return allowed;
  }
  // It has found its receive. True: the peer is to be sent grant(). Half a window at a time: a
  // CREDIT per message would double the traffic.
  bool consume(uint64_t eager_bytes) {
    ++consumed_messages_;
    consumed_bytes_ += eager_bytes;
    return consumed_messages_ + window_messages_ - granted_messages_ > window_messages_ / 2 ||
           consumed_bytes_ + window_bytes_ - granted_bytes_ > window_bytes_ / 2;
  }
  // By how much the window is to grow since the peer waited for credit: none, or as much again of
  // what it lacked.
  struct Growth {
    uint64_t messages = 0, bytes = 0;
    explicit operator bool() const { return messages + bytes > 0; }
  };
  Growth wanted() const {
    Growth growth;
    if (lacked_messages_) growth.messages = more(window_messages_, kMostMessages);
    if (lacked_bytes_) growth.bytes = more(window_bytes_, kMostBytes);
    return growth;
  }
  // What was wanted is over: granted from the next grant() on, or refused (nothing).
  void widen(const Growth& growth) {
    window_messages_ += growth.messages;
    window_bytes_ += growth.bytes;
    lacked_messages_ = lacked_bytes_ = false;
  }
  // The whole window from here on.
  wire::Credit grant() {
    before_messages_ = granted_messages_;
    before_bytes_ = granted_bytes_;
    granted_messages_ = consumed_messages_ + window_messages_;
    granted_bytes_ = consumed_bytes_ + window_bytes_;
    return {.messages = granted_messages_, .bytes = granted_bytes_};
  }

 private:
  // Shorter pauses are turns of the programs and not the line.
  static constexpr Duration kLeastPause = std::chrono::milliseconds(1);
  // A pause of less than this part of the time that the credit lasted is not worth more credit. A
  // peer that sends now and then pauses as long between all its messages.
  static constexpr int kWorthwhilePart = 16;

  static uint64_t more(uint64_t window, uint64_t most) {
    return std::min(window, most - std::min(window, most));
  }
  // The first message that the peer could not have sent before the latest grant.
  void needed_grant(Instant now) {
    const Duration pause = now - last_taken_, lasted = last_taken_ - first_taken_;
    if (pause >= kLeastPause && pause > lasted / kWorthwhilePart) {
      lacked_messages_ = taken_messages_ > before_messages_;
      lacked_bytes_ = taken_bytes_ > before_bytes_;
    }
    before_messages_ = before_bytes_ = ~uint64_t{0};
    first_taken_ = now;
  }

  uint64_t window_messages_, window_bytes_;
  uint64_t taken_messages_ = 0, taken_bytes_ = 0;        // arrived here
  uint64_t consumed_messages_ = 0, consumed_bytes_ = 0;  // of those, matched
  uint64_t granted_messages_, granted_bytes_;            // what the peer may send in all
  // Granted before the latest grant, until the first message that needed it; then without limit.
  uint64_t before_messages_ = ~uint64_t{0}, before_bytes_ = ~uint64_t{0};
  Instant last_taken_{}, first_taken_{};  // the latest message; the first since the grant before
  bool lacked_messages_ = false, lacked_bytes_ = false;
  uint64_t sent_messages_ = 0, sent_bytes_ = 0;  // by us
  uint64_t allowed_messages_, allowed_bytes_;    // what we may send in all
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_CREDITS_H_
