#include <sluice/proto/control_queue.h>

#include <cstring>

#include <sluice/base/fault_point.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

// Control messages that wait for a peer which does not read. A peer that lets more
// than this pile up is not taking part.
constexpr size_t kMaxKeptBytes = 1u << 20;
// In such pieces its memory is charged to the peer's account.
constexpr uint64_t kKeptCharge = 16u << 10;

}  // namespace

template <typename Message>
void ControlQueue::send(const Message& message) {
  if (connection_.over()) return;
  std::byte header[wire::kMaxHeaderBytes];
  ConstBytes bytes(header, wire::encode(message, header));
  if (!blocked_ && !waiting() && connection_.link.send(bytes, {})) {
    ++connection_.counters.messages_sent;
    flush_message();
    return;
  }
  keep(bytes);
}

template void ControlQueue::send(const wire::Want&);
template void ControlQueue::send(const wire::Done&);
template void ControlQueue::send(const wire::Release&);
template void ControlQueue::send(const wire::Cancel&);
template void ControlQueue::send(const wire::Credit&);
template void ControlQueue::send(const wire::Ping&);
template void ControlQueue::send(const wire::Bye&);

void ControlQueue::keep(ConstBytes message) {
  if (kept_.size() - start_ + message.size() > kMaxKeptBytes) {
    connection_.fail(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                            "the peer does not read: 1 MiB of control messages waits for it"));
    return;
  }
  if (kept_.size() + message.size() > charged_) {
    Status charged = connection_.account->charge(PeerResource::kControlBytes, kKeptCharge);
    if (!charged.ok()) {
      connection_.fail(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                              "the peer does not read: " + std::string(charged.detail())));
      return;
    }
    charged_ += kKeptCharge;
  }
  // A peer that reads as slowly as it asks never lets it run empty: what went out is
  // dropped here, once it is more than what waits.
  if (start_ > kept_.size() / 2) {
    kept_.erase(kept_.begin(), kept_.begin() + static_cast<ptrdiff_t>(start_));
    start_ = 0;
  }
  kept_.insert(kept_.end(), message.begin(), message.end());
  connection_.activate();
}

bool ControlQueue::send_kept() {
  while (waiting()) {
    uint16_t length;
    std::memcpy(&length, kept_.data() + start_ + 2, 2);
    if (!connection_.link.send(ConstBytes(kept_.data() + start_, length), {})) {
      blocked_ = true;
      return false;
    }
    ++connection_.counters.messages_sent;
    needs_flush_ = true;
    start_ += length;
  }
  if (!kept_.empty()) {
    kept_.clear();
    start_ = 0;
    if (kept_.capacity() > 4096) kept_.shrink_to_fit();
    refund();
  }
  return true;
}

void ControlQueue::refund() {
  connection_.account->refund(PeerResource::kControlBytes, std::exchange(charged_, 0));
}

void ControlQueue::send_done(uint64_t id, Code code, uint64_t bytes) {
  fault_point("session.done");
  send(wire::Done{.id = id, .code = code, .bytes = bytes});
}

void ControlQueue::send_releases() {
  if (releases_.count == 0) return;
  fault_point("session.release");
  send(releases_);
  releases_.count = 0;
}

void ControlQueue::view_ended(uint64_t offer_id) noexcept {
  if (connection_.over()) return;
  releases_.ids[releases_.count++] = offer_id;
  if (releases_.count == wire::kMaxReleases) send_releases();
  connection_.activate();
}

}  // namespace sluice::proto
