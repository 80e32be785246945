// What the oracle sees of the wire: credits, requests that are waiting, reads that are
// under way.
#include <algorithm>

#include "tests/sim/oracle.h"

namespace sluice::sim {

void Oracle::offer_sent(int from, const wire::Offer& offer) {
  const wire::OfferKind kind = offer.about.kind();
  if (kind == wire::OfferKind::kSupply) asked_[from].erase(offer.about.supply().want);
  if (kind == wire::OfferKind::kRead) {
    const uint64_t want = offer.about.read().want;
    if (void_reads_[from].contains(want))
      trace_.wrong("a read was answered after its grant was revoked");
    reads_[from].erase(want);
  }
  if (kind != wire::OfferKind::kTagged) return;
  if (!on_wire_[from].insert(offer.about.tagged().tag).second)
    trace_.wrong("a message was offered twice");
  ++sent_messages_[from];
  if ((offer.flags & wire::Offer::kInline) != 0) sent_bytes_[from] += offer.total;
  if (sent_messages_[from] > credit_messages_[from] || sent_bytes_[from] > credit_bytes_[from]) {
    trace_.wrong("more was sent than there was credit for");
  }
}

void Oracle::message_sent(int from, ConstBytes header) {
  switch (static_cast<wire::MessageType>(header[0])) {
    case wire::MessageType::kOffer: {
      wire::Offer offer;
      if (!wire::decode(header, offer).ok())
        return trace_.wrong("an OFFER that does not decode was sent");
      return offer_sent(from, offer);
    }
    case wire::MessageType::kDone: {
      wire::Done done;
      if (!wire::decode(header, done).ok())
        return trace_.wrong("a DONE that does not decode was sent");
      if (done.code == Code::kTryAgain && had_room_[from].contains(done.id))
        trace_.wrong("a request was refused though there was room for it");
      asked_[from].erase(done.id);
      reads_[from].erase(done.id);
      return;
    }
    default: return;
  }
}

void Oracle::want_handled(int at, const wire::Want& want) {
  const wire::WantKind kind = want.about.kind();
  if (kind == wire::WantKind::kRead) reads_[at][want.id] = want.about.read().grant;
  if (kind != wire::WantKind::kKey) return;
  for (size_t i = 0; i <= want.following.size(); ++i) {
    const uint64_t id = i == 0 ? want.id : want.following[i - 1];
    if (asked_[at].size() < want_limit_[at]) had_room_[at].insert(id);
    asked_[at].insert(id);
  }
}

void Oracle::message_handled(int at, ConstBytes header) {
  switch (static_cast<wire::MessageType>(header[0])) {
    case wire::MessageType::kCredit: {
      wire::Credit credit;
      if (!wire::decode(header, credit).ok()) return;
      credit_messages_[at] = std::max(credit_messages_[at], credit.messages);
      credit_bytes_[at] = std::max(credit_bytes_[at], credit.bytes);
      return;
    }
    case wire::MessageType::kWant: {
      wire::Want want;
      if (wire::decode(header, want).ok()) want_handled(at, want);
      return;
    }
    case wire::MessageType::kCancel: {
      wire::Cancel cancel;
      if (wire::decode(header, cancel).ok() && !cancel.offer) asked_[at].erase(cancel.id);
      return;
    }
    default: return;
  }
}

}  // namespace sluice::sim
