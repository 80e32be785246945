#include <sluice/verbs/link.h>

#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/proto/whole_message.h>
#include <sluice/spi/eager.h>

namespace sluice::verbs {
namespace {

constexpr const char* kOrigin = "verbs/link";
constexpr int kCompletionsPerPoll = 64;
// Each is a second without an answer (kProbeAfter). The device's repeats are over in two to eight
// seconds (queue_pair.cc, kRetries); one that says nothing by then has lost its way: soft-RoCE
// of 6.1 does, where packets are lost and reordered.
constexpr uint32_t kMostUnanswered = 9;

Counter queues_stuck("verbs.queues_stuck");
Counter peers_gone("verbs.peers_gone");
Counter access_refused_to_peer("verbs.access_refused_to_peer");

}  // namespace

LinkTraits verbs_traits(const DeviceLimits& limits, uint64_t chunk_bytes) {
  LinkTraits traits;
  traits.properties.path = Path::kVerbs;
  // Soft-RoCE copies into frames and out of them, in the kernel.
  uint8_t by_kernel = limits.software ? 1 : 0;
  traits.properties.copies_per_fetch = 2 * by_kernel;
  Capabilities capabilities{Capability::kPassiveTarget, Capability::kRdma};
  if (by_kernel == 0) capabilities = capabilities.with(Capability::kZeroCopyFetch);
  if (limits.atomics) capabilities = capabilities.with(Capability::kAtomics);
  // Behind iWARP's RDMAP the requester's device learns nothing but that the stream ended.
  if (!limits.iwarp) capabilities = capabilities.with(Capability::kRefusalsTold);
  if (limits.checks_reads()) capabilities = capabilities.with(Capability::kReadRights);
  if (limits.windows) capabilities = capabilities.with(Capability::kKeysOfConnection);
  traits.properties.capabilities = capabilities;
  traits.sends_at_once = true;
  traits.inline_bytes = kEagerBytes;
  traits.chunk_bytes = chunk_bytes;
  traits.inline_out = traits.inline_in = {.user = 1, .kernel = by_kernel};
  traits.bulk_out = traits.bulk_in = {.user = 0, .kernel = by_kernel};
  return traits;
}

VerbsLink::VerbsLink(Lingering& lingering, std::unique_ptr<Connection> connection)
    : lingering_(lingering),
      connection_(std::move(connection)),
      lanes_(connection_->queue(), connection_->reaching(), connection_->reached()),
      traits_(
          verbs_traits(connection_->queue().device().limits(), connection_->queue().chunk_limit())),
      quiet_since_(now()),
      local_name_(connection_->local_name()),
      peer_name_(connection_->peer_name()) {
  traits_.spread = lanes_.striped();
}

size_t VerbsLink::handle(Instant now) {
  ++polling_;
  QueuePair& queue = connection_->queue();
  size_t work = queue.poll(*this, now, kCompletionsPerPoll);
  if (lanes_.striped() && !queue.stopped() && !queue.failed())
    work += lanes_.poll(*this, now, kCompletionsPerPoll);
  if (work > 0) {
    quiet_since_ = now;
    unanswered_ = 0;
  } else if (now - quiet_since_ >= kProbeAfter) {
    quiet_since_ = now;
    ask_device(queue);
  }
  if (!queue.stopped() && !queue.failed() && work == 0 && connection_->peer_gone()) {
    peers_gone.add();
    queue.fail(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the peer has gone"));
  }
  if (queue.failed() && !close_due_) {
    go_down(now);
    ++work;
  }
  if (blocked_ && queue.writable() && lanes_.writable() && !close_due_) {
    blocked_ = false;
    client_->writable(now);
    ++work;
  }
  if (--polling_ == 0 && std::exchange(close_due_, false)) close();
  return work;
}

void VerbsLink::ask_device(QueuePair& queue) {
  if (unanswered_ == kMostUnanswered) {
    queues_stuck.add();
    queue.fail(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                      "the device has neither done nor refused what it was asked " +
                          std::to_string(kMostUnanswered) +
                          " s ago: its queue is stuck; connect again"));
  } else if (queue.probe()) {
    ++unanswered_;
  }
}

void VerbsLink::go_down(Instant now) {
  down_ = true;
  QueuePair& queue = connection_->queue();
  // What the device has to say of this queue pair goes with it.
  queue.device().on_event(0);
  lanes_.stop();
  // The flush may say more than the first completion did.
  queue.stop();
  const QueuePair::Failure failure = queue.failure();
  // A chunk of it; what else of the operation is under way may never be over.
  if (failure.moving && !queue.stuck() && !lanes_.stuck())
    transfer_->transfer_done(failure.cookie, failure.length, failure.why, now);
  client_->link_down(failure.why, now);
}

void VerbsLink::device_failed(const DeviceEvent& event, const Status& why) {
  if (closed() || !connection_->concerned_by(event)) return;
  if (why.code() == Code::kAccessDenied) access_refused_to_peer.add();
  unplugged(why);
}

void VerbsLink::unplugged(const Status& why) {
  if (!closed() && !down_ && !connection_->queue().stopped()) connection_->queue().fail(why);
}

void VerbsLink::on_message(ConstBytes message, Instant now) {
  Status status = proto::hand_on(*client_, message, now);
  if (!status.ok() && !closed()) connection_->queue().fail(status);
}

void VerbsLink::on_notice(uint32_t notice, Instant now) {
  Status status = transfer_->arrived(notice, now);
  if (!status.ok() && !closed()) connection_->queue().fail(status);
}

void VerbsLink::on_moved(uint64_t cookie, uint64_t length, Instant now) {
  transfer_->transfer_done(cookie, length, Status(), now);
}

void VerbsLink::on_window_closed(uint64_t cookie, Instant now) {
  transfer_->window_closed(cookie, now);
}

bool VerbsLink::send(ConstBytes header, std::span<const ConstBytes> payload) {
  if (closed() || connection_->queue().send(header, payload)) return true;
  blocked_ = true;
  return false;
}

Result<WindowId> VerbsLink::open_window(std::byte* data, uint64_t length, Right rights,
                                        uint64_t cookie, bool whole, wire::Segment& out) {
  if (closed())
    return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the connection has ended");
  Result<WindowId> opened = lanes_.open_window(data, length, rights, cookie, whole, out);
  if (opened.code() == Code::kTryAgain) blocked_ = true;
  return opened;
}

void VerbsLink::close_window(WindowId window) {
  if (!closed()) lanes_.close_window(window);
}

Status VerbsLink::revoke_window(WindowId window) {
  return closed() ? Status() : lanes_.revoke_window(window);
}

Result<bool> VerbsLink::read(const wire::Segment& peer, std::span<const MutableBytes> into,
                             uint64_t cookie) {
  if (closed()) return true;
  Result<bool> posted = lanes_.read(peer, into, cookie);
  blocked_ = blocked_ || (posted.ok() && !*posted);
  return posted;
}

Result<bool> VerbsLink::write(std::span<const ConstBytes> from, const wire::Segment& peer,
                              uint64_t cookie, const uint32_t* notice) {
  if (closed()) return true;
  Result<bool> posted = lanes_.write(from, peer, cookie, notice);
  blocked_ = blocked_ || (posted.ok() && !*posted);
  return posted;
}

Result<bool> VerbsLink::atomic(const wire::Segment& peer, const AtomicRequest& request,
                               std::byte* result, uint64_t cookie) {
  if (closed()) return true;
  Result<bool> posted = connection_->queue().atomic(peer, request, result, cookie);
  blocked_ = blocked_ || (posted.ok() && !*posted);
  return posted;
}

void VerbsLink::flush() {
  if (closed()) return;
  (void)connection_->queue().flush();
  if (lanes_.striped()) lanes_.flush();
}

bool VerbsLink::stop() {
  if (closed()) return true;
  lanes_.stop();
  connection_->queue().stop();
  return !connection_->queue().stuck() && !lanes_.stuck();
}

void VerbsLink::quarantine(StorageRef memory) {
  if (!closed()) connection_->queue().device().hold(std::move(memory));
}

void VerbsLink::close() {
  if (closed()) return;
  if (polling_ > 0) {
    close_due_ = true;  // the queue that is being polled goes when that is over
    return;
  }
  std::unique_ptr<Connection> connection = std::move(connection_);
  QueuePair& queue = connection->queue();
  if (queue.stopped() || queue.failed()) return;
  lanes_.revoke_windows();
  queue.revoke_windows();  // grants end with the connection, not with its last message
  lingering_.linger(std::move(connection));
}

}  // namespace sluice::verbs
