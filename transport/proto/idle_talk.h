// Whether a peer's messages on one link are of use: operations begin or end by them. If not, they
// have a part of the thread (PeerAccount), and the link leaves the rest where it is. Knows no link,
// and no operation: the session judges.
#ifndef SLUICE_PROTO_IDLE_TALK_H_
#define SLUICE_PROTO_IDLE_TALK_H_

#include <cstdint>
#include <utility>

#include <sluice/base/clock.h>
#include <sluice/spi/link.h>

namespace sluice::proto {

class IdleTalk {
 public:
  // A control message was handed on. DATA does not count: a transfer has many for one operation.
  void count() { ++messages_; }
  uint32_t messages() const { return messages_; }
  // The messages that came last were of no use: the link measures what the next ones take.
  bool found() const { return found_; }
  // Call look(). From the first finding on always, else after kMessagesPerLook messages.
  bool due() const { return found_ || messages_ >= kMessagesPerLook; }
  // Has the session judge the messages since the last look, which took `took`. Idle talk is found
  // afterwards, so the first time costs the peer nothing.
  void look(LinkClient& session, Duration took, Instant now) {
    found_ = session.note_messages(std::exchange(messages_, 0), found_ ? took : Duration(0), now);
  }
  // The link hands on nothing now, and asks again in a later turn.
  bool rests(const LinkClient& session, Instant now) const {
    return found_ && session.overdrawn(now);
  }

 private:
  static constexpr uint32_t kMessagesPerLook = 64;
  bool found_ = false;
  uint32_t messages_ = 0;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_IDLE_TALK_H_
