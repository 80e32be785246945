#include <sluice/proto/whole_message.h>

namespace sluice::proto {

Status hand_on(LinkClient& client, ConstBytes message, Instant now) {
  wire::TaggedInline tagged;
  if (wire::decode_fast(message, tagged) &&
      message.size() == wire::kTaggedInlineBytes + tagged.payload_bytes) {
    BytesPayload payload(message.subspan(wire::kTaggedInlineBytes));
    return client.handle_tagged_inline(tagged, payload, now);
  }
  SLUICE_TRY(wire::Header common, wire::decode_header(message));
  uint64_t whole = uint64_t{common.header_bytes} + common.payload_bytes;
  if (message.size() != whole) {
    return Status(
        Code::kCorrupt, Scope::kEndpoint, "proto/whole_message",
        std::to_string(message.size()) + " bytes around a message of " + std::to_string(whole));
  }
  BytesPayload payload(message.subspan(common.header_bytes));
  return client.handle_message(message.first(common.header_bytes), payload, now);
}

}  // namespace sluice::proto
