#include <sluice/fault/link.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/wire/messages.h>

namespace sluice::fault {
namespace {

constexpr const char* kOrigin = "fault/link";

uint16_t header_bytes_of(ConstBytes header) {
  uint16_t length;
  std::memcpy(&length, header.data() + 2, 2);
  return length;
}
uint32_t payload_bytes_of(ConstBytes header) {
  uint32_t length;
  std::memcpy(&length, header.data() + 4, 4);
  return length;
}

// The lengths in the common part are made to fit, so that it is a whole message of a peer
// that says too little.
template <typename Arrival>
void truncate(Arrival& arrival, Action action) {
  if (action == Action::kTruncateHeader && arrival.header.size() > wire::kHeaderBytes) {
    auto length =
        static_cast<uint16_t>(std::max<size_t>(wire::kHeaderBytes, arrival.header.size() / 16 * 8));
    arrival.header.resize(length);
    std::memcpy(arrival.header.data() + 2, &length, 2);
  }
  if (action == Action::kTruncatePayload) {
    auto length = static_cast<uint32_t>(arrival.payload.size() / 2);
    arrival.payload.resize(length);
    std::memcpy(arrival.header.data() + 4, &length, 4);
  }
}

}  // namespace

FaultyLink::FaultyLink(std::shared_ptr<Injector> injector, sluice::Link& inner, uint32_t connection)
    : injector_(std::move(injector)), connection_(connection), inner_(inner) {}

bool FaultyLink::waiting() const {
  if (over()) return false;
  return broken() || writable_in_ > 0 || !arrivals_.empty() || has_reports();
}

size_t FaultyLink::turn(Instant now) {
  if (over() || !waiting()) return 0;
  now_ = now;
  size_t work = deliver_arrivals(now, broken());
  if (!over()) work += deliver_reports(now, broken());
  if (over()) return work;
  if (broken()) {
    end(breaking_, now);
    return work + 1;
  }
  if (writable_in_ > 0 && --writable_in_ == 0) say_writable(now);
  // Also a countdown is work: whoever waits for quiet must wait for its end.
  return work + 1;
}

// Out.

void FaultyLink::break_path(Call call) {
  breaking_ = Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                     "the path broke in " + to_string(call) + ", as planned");
}

// Says no, by itself or for the inner link's sake, until writable().
bool FaultyLink::no_room() {
  if (has_rest()) return refusing_ = true;
  if (refusing_) return true;
  if (!injector_->refuse()) return false;
  refusing_ = true;
  writable_in_ = injector_->turns();
  return true;
}

bool FaultyLink::send_message(ConstBytes header, std::span<const ConstBytes> payload) {
  if (over() || broken()) return true;
  switch (strike(Call::kSend)) {
    case Action::kFail: break_path(Call::kSend); return true;
    case Action::kDrop: return true;
    default: break;
  }
  if (no_room()) return false;
  maybe_wake();
  return inner_.send(header, payload);
}

void FaultyLink::flush_messages() {
  if (over() || broken()) return;
  if (strike(Call::kFlush) == Action::kFail) return break_path(Call::kFlush);
  inner_.flush();
}

void FaultyLink::close_path() {
  if (closed_) return;
  closed_ = true;
  injector_->forget(*this);
  arrivals_.clear();
  overtaken_.clear();
  drop_data();
  inner_.close();
}

// In.

FaultyLink::Arrival FaultyLink::copy(ConstBytes header, PayloadReader& payload) {
  Arrival arrival;
  arrival.header.assign(header.begin(), header.begin() + header_bytes_of(header));
  arrival.payload.resize(payload_bytes_of(header));
  if (!arrival.payload.empty()) payload.read(arrival.payload);
  return arrival;
}

// As a backend does: what is not a message ends the connection before the session sees it.
Status FaultyLink::hand_over(const Arrival& arrival, Instant now) {
  Result<wire::Header> common = wire::decode_header(arrival.header);
  SLUICE_RETURN_IF_ERROR(common.status());
  BytesPayload payload(arrival.payload);
  return client_->handle_message(arrival.header, payload, now);
}

Status FaultyLink::handle_message(ConstBytes header, PayloadReader& payload, Instant now) {
  if (over() || broken()) return Status();
  now_ = now;
  maybe_wake();
  Action action = strike(Call::kMessage);
  switch (action) {
    case Action::kFail: break_path(Call::kMessage); return Status();
    case Action::kDrop: return Status();
    case Action::kReorder: overtaken_.push_back(copy(header, payload)); return Status();
    case Action::kTruncateHeader:
    case Action::kTruncatePayload: {
      deliver_arrivals(now, true);
      if (over()) return Status();
      Arrival arrival = copy(header, payload);
      truncate(arrival, action);
      return hand_over(arrival, now);
    }
    case Action::kNothing: break;
  }
  bool late = injector_->hold_back();
  if (!late && arrivals_.empty() && overtaken_.empty())
    return client_->handle_message(header, payload, now);
  arrivals_.push_back(copy(header, payload));
  arrivals_.back().turns = late ? injector_->turns() : 0;
  if (!overtaken_.empty()) {
    arrivals_.push_back(std::move(overtaken_[0]));
    overtaken_.clear();
  }
  return Status();
}

// One more message to hold back or cut: its bytes are those of the offer.
Status FaultyLink::handle_tagged_inline(const wire::TaggedInline& message, PayloadReader& payload,
                                        Instant now) {
  std::byte header[wire::kTaggedInlineBytes];
  return handle_message(ConstBytes(header, wire::encode(message, header)), payload, now);
}

size_t FaultyLink::deliver_arrivals(Instant now, bool all) {
  size_t delivered = 0;
  while (!over() && !arrivals_.empty()) {
    if (!all && arrivals_.front().turns > 0) {
      --arrivals_.front().turns;
      break;
    }
    Arrival arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    ++delivered;
    Status status = hand_over(arrival, now);
    if (!status.ok()) end(status, now);
  }
  return delivered;
}

void FaultyLink::writable(Instant now) {
  if (over() || broken() || !push_rest()) return;
  if (injector_->hold_back()) {
    writable_in_ = std::max(writable_in_, injector_->turns());
    return;
  }
  say_writable(now);
}

void FaultyLink::say_writable(Instant now) {
  writable_in_ = 0;
  switch (strike(Call::kWritable)) {
    case Action::kFail: break_path(Call::kWritable); return;
    case Action::kDrop: return;
    default: break;
  }
  refusing_ = false;
  client_->writable(now);
}

void FaultyLink::maybe_wake() {
  if (writable_in_ == 0 && !refusing_ && injector_->wake_spuriously()) writable_in_ = 1;
}

// What came before the end still counts.
void FaultyLink::link_down(const Status& why, Instant now) {
  if (over()) return;
  deliver_arrivals(now, true);
  if (!over()) deliver_reports(now, true);
  if (!over()) end(broken() ? breaking_ : why, now);
}

void FaultyLink::end(const Status& why, Instant now) {
  if (over()) return;
  down_ = true;
  arrivals_.clear();
  overtaken_.clear();
  drop_data();
  client_->link_down(why, now);
}

}  // namespace sluice::fault
