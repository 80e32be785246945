// Credits: how much each end may send before the other has posted a receive for it. Both limits,
// of messages and of eager bytes, are counted from the beginning of the connection and only grow.
#ifndef SLUICE_PROTO_CREDITS_H_
#define SLUICE_PROTO_CREDITS_H_

#include <algorithm>
#include <cstdint>

#include <sluice/wire/messages.h>

namespace sluice::proto {

class Credits {
 public:
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
  // It has found its receive. True: the peer is to be sent grant(). Half a window at a time: a
  // CREDIT per message would double the traffic.
  bool consume(uint64_t eager_bytes) {
    ++consumed_messages_;
    consumed_bytes_ += eager_bytes;
    return consumed_messages_ + window_messages_ - granted_messages_ > window_messages_ / 2 ||
           consumed_bytes_ + window_bytes_ - granted_bytes_ > window_bytes_ / 2;
  }
  // The whole window from here on.
  wire::Credit grant() {
    granted_messages_ = consumed_messages_ + window_messages_;
    granted_bytes_ = consumed_bytes_ + window_bytes_;
    return {.messages = granted_messages_, .bytes = granted_bytes_};
  }

 private:
  const uint64_t window_messages_, window_bytes_;
  uint64_t taken_messages_ = 0, taken_bytes_ = 0;        // arrived here
  uint64_t consumed_messages_ = 0, consumed_bytes_ = 0;  // of those, matched
  uint64_t granted_messages_, granted_bytes_;            // what the peer may send in all
  uint64_t sent_messages_ = 0, sent_bytes_ = 0;          // by us
  uint64_t allowed_messages_, allowed_bytes_;            // what we may send in all
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_CREDITS_H_
