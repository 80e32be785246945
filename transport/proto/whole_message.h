// A control message that a path keeps in one piece, from its carrier to the session.
#ifndef SLUICE_PROTO_WHOLE_MESSAGE_H_
#define SLUICE_PROTO_WHOLE_MESSAGE_H_

#include <sluice/spi/link.h>

namespace sluice::proto {

// Errors: kCorrupt (no message, or not of this length), and what the client says.
Status hand_on(LinkClient& client, ConstBytes message, Instant now);

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_WHOLE_MESSAGE_H_
