// What a device or a protocol engine says to its link: the part that the direct paths
// share. Called from progress, on the context's thread.
#ifndef SLUICE_PROTO_DIRECT_CLIENT_H_
#define SLUICE_PROTO_DIRECT_CLIENT_H_

#include <sluice/spi/link.h>

namespace sluice::proto {

class DirectClient {
 public:
  // One control message with its payload; the bytes are valid during the call.
  virtual void on_message(ConstBytes message, Instant now) = 0;
  // False: messages are to wait. Of engines that can hold them back; they ask again in a later
  // turn.
  virtual bool takes_messages(Instant) { return true; }
  virtual void on_notice(uint32_t notice, Instant now) = 0;
  virtual void on_moved(uint64_t cookie, uint64_t length, Instant now) = 0;
  // The peer refused this one; of engines that go on after that.
  virtual void on_refused(uint64_t /*cookie*/, uint64_t /*length*/, const Status& /*why*/,
                          Instant) {}
  virtual void on_window_closed(uint64_t cookie, Instant now) = 0;

 protected:
  ~DirectClient() = default;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_DIRECT_CLIENT_H_
