#include <sluice/shm/link.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/shm/properties.h>

#include "transport/shm/packet.h"

namespace sluice::shm {
namespace {

constexpr const char* kOrigin = "shm/link";

Counter doorbells("shm.doorbells");
Counter doorbells_delayed("shm.doorbells_delayed");
Counter messages_corrupt("shm.messages_corrupt");
Counter extents_announced("shm.extents_announced");
Counter extents_mapped("shm.extents_mapped");
Counter rings_grown("shm.rings_grown");
Counter rings_not_grown("shm.rings_not_grown");  // no memory: tried again when it is full again

// Messages handled before other connections have their turn.
constexpr size_t kMessagesPerPoll = 32;
// Extents mapped before: each costs some 10 us.
constexpr uint32_t kExtentsPerPoll = 64;
// Packets read before other connections have their turn; what is left is told again.
constexpr int kPacketsPerEvent = 64;
// Packets that may lie before the announcement that a message needs: more than a sender's buffer
// holds.
constexpr int kPacketsBeforeAnnouncement = 1024;
constexpr uint32_t kNoExtent = 0;  // ids start at 1

constexpr std::byte kBell{1};
constexpr std::byte kEnd{2};

Status corrupt(const std::string& why) {
  return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, why);
}

// If more than this is unread, 7.5 KiB, use rendezvous. Less is a header or two. More is a stream:
// its answers come many to a wake, and it would fill the ring. When the ring is full, a sender that
// sleeps looks again only once in a millisecond (provider.cc).
constexpr uint32_t kMostUnreadSlots = 64;

uint32_t eager_bytes(uint64_t threshold) {
  return static_cast<uint32_t>(std::min<uint64_t>(threshold, wire::kMaxInlineBytes));
}

// Payloads up to Tuning::shm_eager_bytes are eager (copied into the ring and out); larger ones are
// read from the sender's arena, which costs one copy and an answer.
LinkTraits shm_traits(ContextCore& context) {
  LinkTraits traits;
  traits.properties = shm_properties();
  traits.sends_at_once = true;
  traits.inline_bytes = eager_bytes(context.tuning().shm_eager_bytes);
  traits.most_inline_bytes = eager_bytes(context.tuning().shm_eager_sleeping_bytes);
  traits.streaming = &context.streaming();
  traits.inline_out = {.user = 1, .kernel = 0};
  traits.inline_in = {.user = 1, .kernel = 0};
  return traits;
}

}  // namespace

static_assert(slots_for(wire::kTaggedInlineBytes + wire::kMaxInlineBytes) <= kSlotCount,
              "any inline message fits the ring");

// The payload of the message at the front of the ring.
class RingPayload final : public PayloadReader {
 public:
  RingPayload(const RingReader<std::atomic>& reader, uint64_t offset, uint64_t length)
      : reader_(reader), offset_(offset), left_(length) {}
  void read(MutableBytes out) override {
    if (out.size() > left_) out = out.first(left_);
    reader_.copy(offset_, out);
    offset_ += out.size();
    left_ -= out.size();
  }

 private:
  const RingReader<std::atomic>& reader_;
  uint64_t offset_;
  uint64_t left_;
};

ShmLink::ShmLink(ContextCore& context, LoanKeeper& keeper, LinkParts parts)
    : context_(context),
      keeper_(keeper),
      traits_(shm_traits(context)),
      socket_(std::move(parts.socket)),
      own_(std::move(parts.own)),
      peer_(std::move(parts.peer)),
      writer_(own_->get(), peer_->get()),
      reader_(own_->get(), peer_->get()),
      gate_(own_->get(), peer_->get()),
      account_(std::move(parts.account)),
      peer_arena_(new PeerArena(parts.peer_arena_bytes, socket_, account_)),
      local_name_(std::move(parts.local_name)),
      peer_name_(std::move(parts.peer_name)) {
  own_->close_fd();
}

ShmLink::~ShmLink() { close(); }

Status ShmLink::watch() { return context_.watch(socket_->fd(), EPOLLIN | EPOLLRDHUP, this); }

size_t ShmLink::poll_busy(Instant now, Turn& turn) {
  if (closed()) return 0;
  size_t work = drain_ring(now, turn);
  if ((pending_ & kEnding) != 0 && nothing_left()) {
    fail(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin,
                "the peer process ended or dropped the connection"));
    return work + 1;
  }
  if ((pending_ & kBellDue) != 0 && !closed()) {
    pending_ &= static_cast<uint8_t>(~kBellDue);
    wake_peer();
  }
  if ((pending_ & kBlocked) != 0 && !closed()) {
    // Whether there is room shows only when something is sent: the session tries again.
    pending_ &= static_cast<uint8_t>(~kBlocked);
    client_->writable(now);
    ++work;
  }
  return work;
}

// After a peer has ended, no more is read than it can have written before: a hostile one goes on.
bool ShmLink::may_drain() const {
  return (pending_ & kEnding) == 0 || reader_.position() < last_position_;
}

// For a peer that has ended.
bool ShmLink::nothing_left() const {
  return corrupt_ || ((!may_drain() || !reader_.ready()) && !transfer_->copies_pending());
}

size_t ShmLink::drain_ring(Instant now, Turn& turn) {
  size_t handled = 0;
  mapped_in_turn_ = 0;
  imported_ = false;
  while (handled < kMessagesPerPoll && mapped_in_turn_ < kExtentsPerPoll && !imported_ &&
         !closed() && !corrupt_ && may_drain() && reader_.ready()) {
    if (!turn.spend()) break;
    Status status = handle_front(now);
    ++handled;
    if (!status.ok()) {
      fail(status);
      break;
    }
  }
  // An import may have come upon the end of the peer's packets.
  if (ended_ && !closed() && !corrupt_ && (pending_ & kEnding) == 0) begin_ending();
  return handled;
}

Status ShmLink::handle_front(Instant now) {
  alignas(8) std::byte header[wire::kMaxHeaderBytes];
  reader_.copy_front<wire::kTaggedInlineBytes>(header);
  wire::TaggedInline tagged;
  if (wire::decode_fast(std::span<const std::byte>(header, wire::kTaggedInlineBytes), tagged))
      [[likely]] {
    RingPayload inlined(reader_, wire::kTaggedInlineBytes, tagged.payload_bytes);
    Status status = client_->handle_tagged_inline(tagged, inlined, now);
    reader_.pop(slots_for(wire::kTaggedInlineBytes + uint64_t{tagged.payload_bytes}));
    return status;
  }
  if (wire::is_short(header)) {
    RingPayload none(reader_, wire::kShortBytes, 0);
    Status status =
        client_->handle_message(std::span<const std::byte>(header, wire::kShortBytes), none, now);
    reader_.pop(1);
    return status;
  }
  // What was copied stays as it is: the header is read from the peer's memory once.
  Result<wire::Header> common =
      wire::decode_header(std::span<const std::byte>(header, wire::kTaggedInlineBytes));
  if (!common.ok()) return reader_.at_growth() ? follow_growth() : common.status();
  uint64_t total = uint64_t{common->header_bytes} + common->payload_bytes;
  uint32_t slots = slots_for(total);
  if (slots > reader_.most_slots()) return corrupt("a message longer than the ring");
  if (common->header_bytes > wire::kTaggedInlineBytes) {
    reader_.copy(wire::kTaggedInlineBytes,
                 std::span(header + wire::kTaggedInlineBytes,
                           common->header_bytes - wire::kTaggedInlineBytes));
  }
  RingPayload payload(reader_, common->header_bytes, common->payload_bytes);
  Status status = client_->handle_message(std::span<const std::byte>(header, common->header_bytes),
                                          payload, now);
  reader_.pop(slots);
  return status;
}

// The peer's ring goes on in its larger part.
Status ShmLink::follow_growth() {
  SLUICE_RETURN_IF_ERROR(peer_->populate_grown());
  reader_.follow_growth();
  return Status();
}

// Our ring is full: true if it is larger now.
bool ShmLink::grow() {
  if (writer_.grown()) return false;
  if (!own_->populate_grown()) {
    rings_not_grown.add();
    return false;
  }
  writer_.grow();
  wake_peer();
  rings_grown.add();
  return true;
}

bool ShmLink::begin_sleep() {
  return closed() || ((pending_ & kEnding) == 0 && reader_.begin_sleep());
}

bool ShmLink::rest() {
  if (closed() || pending_ != 0) return false;
  if (!reader_.begin_sleep()) {
    reader_.end_sleep();
    return false;
  }
  rests_ = true;
  return true;
}

void ShmLink::wake() {
  if (!std::exchange(rests_, false)) return;
  reader_.end_sleep();
  keeper_.poll_again(*this);
}

void ShmLink::need_poll(Pending what) {
  pending_ |= what;
  wake();
}

bool ShmLink::send(ConstBytes header, std::span<const ConstBytes> payload) {
  if (closed() || corrupt_) return true;  // the end is on its way
  const bool is_short = header.size() == wire::kShortBytes && payload.empty();
  auto outcome = is_short ? writer_.write_words<wire::kShortBytes>(header.data())
                          : writer_.write(header, payload);
  if (outcome == RingWriter<std::atomic>::Outcome::kFull && grow())
    outcome = writer_.write(header, payload);
  switch (outcome) {
    case RingWriter<std::atomic>::Outcome::kWritten: break;
    case RingWriter<std::atomic>::Outcome::kFull: need_poll(kBlocked); return false;
    case RingWriter<std::atomic>::Outcome::kCorrupt:
      // Told to the client from the next event, not from inside its own call.
      corrupt_ = true;
      ::shutdown(socket_->fd(), SHUT_RD);
      return true;
  }
  fault_point("shm.sent");
  wake_peer();
  return true;
}

// An answer wakes us where we sleep by then; of a peer that sleeps it comes a wake later, when we
// may.
bool ShmLink::prefer_eager() const {
  if (writer_.reader_sleep() == 0 && !context_.sleeps_when_idle()) return false;
  return writer_.unread_slots() <= kMostUnreadSlots;
}

void ShmLink::wake_peer() {
  uint64_t sleep = writer_.bell_due();
  if (sleep != 0) [[unlikely]]
    ring(sleep);
}

void ShmLink::ring(uint64_t sleep) {
  Status sent = send_packet(socket_->fd(), std::span(&kBell, 1), -1);
  if (sent == Code::kTryAgain) {
    // Also where bells that are waiting to be heard leave no room: poll() tries again.
    need_poll(kBellDue);
    doorbells_delayed.add();
    return;
  }
  writer_.rung(sleep);
  doorbells.add();
}

Result<bool> ShmLink::export_run(const std::byte* data, size_t length, wire::Segment& out) {
  std::optional<Arena::Place> place = context_.arena().locate(data, length);
  if (!place || place->first.audience != Audience::kSameUser) return false;
  out = {.extent = place->first.id, .offset = place->extent_offset, .length = length};
  bool one_extent = place->extent_offset + length <= place->first.length;
  bool known = place->first.id < announced_.size() && announced_[place->first.id];
  if (one_extent && known) [[likely]]
    return true;
  for (const ExtentInfo& extent : context_.arena().extents_over(place->arena_offset, length)) {
    Status announced = announce(extent);
    if (announced == Code::kTryAgain) need_poll(kBlocked);  // writable() follows
    SLUICE_RETURN_IF_ERROR(announced);
  }
  return true;
}

Status ShmLink::announce(const ExtentInfo& extent) {
  if (closed())
    return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the connection is closed");
  if (extent.id < announced_.size() && announced_[extent.id]) return Status();
  ExtentPacket packet{.kind = kExtentPacket,
                      .id = extent.id,
                      .arena_offset = extent.arena_offset,
                      .length = extent.length};
  SLUICE_RETURN_IF_ERROR(context_.arena().seal(extent));
  fault_point("shm.announce");
  SLUICE_RETURN_IF_ERROR(
      send_packet(socket_->fd(), std::as_bytes(std::span(&packet, 1)), extent.fd));
  if (announced_.size() <= extent.id) announced_.resize(extent.id + 1);
  announced_[extent.id] = true;
  extents_announced.add();
  return Status();
}

Result<ImportedRun> ShmLink::import_run(const wire::Segment& segment) {
  if (peer_arena_ == nullptr) return corrupt("an offer on a closed connection");
  imported_ = true;
  Result<ImportedRun> run = peer_arena_->import_run(segment);
  if (run.ok()) [[likely]]
    return run;
  // The announcement went out before the message that needs it: it lies in the socket.
  Result<bool> more = read_socket(kPacketsBeforeAnnouncement, segment.extent);
  if (!more.ok()) return more.status();
  run = peer_arena_->import_run(segment);
  if (run.ok() || !*more) return run;
  // A run that goes on into other extents, announced behind its first one.
  more = read_socket(kPacketsBeforeAnnouncement, kNoExtent);
  if (!more.ok()) return more.status();
  return peer_arena_->import_run(segment);
}

// Reads until `wanted` is announced, or all; true: something may be left.
Result<bool> ShmLink::read_socket(int most, uint32_t wanted) {
  std::array<std::byte, 256> room;
  for (int i = 0; i < most; ++i) {
    Result<Packet> packet = receive_packet(socket_->fd(), room);
    if (!packet.ok()) {
      if (packet.code() == Code::kTryAgain) return false;
      ended_ = true;
      // A peer that ended with our packets unread: said once, before what it sent itself.
      if (packet.status().os_error() == ECONNRESET) continue;
      if (packet.code() == Code::kUnreachable) return false;
      return packet.status();
    }
    bool plain = packet->length == 1 && !packet->fd;
    if (plain && room[0] == kBell) continue;
    if (packet->ended || (plain && room[0] == kEnd)) {
      ended_ = true;
      return false;
    }
    SLUICE_RETURN_IF_ERROR(
        take_extent(std::span<const std::byte>(room).first(packet->length), std::move(packet->fd)));
    if (wanted != kNoExtent && peer_arena_->has_extent(wanted)) return true;
  }
  return true;
}

Status ShmLink::take_extent(ConstBytes bytes, Descriptor memory) {
  ExtentPacket packet;
  bool whole = bytes.size() == sizeof(packet) && memory;
  if (whole) std::memcpy(&packet, bytes.data(), sizeof(packet));
  Status status;
  if (!whole || packet.kind != kExtentPacket) {
    status =
        corrupt("an unknown packet of " + std::to_string(bytes.size()) + " bytes on the socket");
  } else {
    fault_point("shm.map_extent");
    keeper_.settle();
    status = peer_arena_->add_extent(packet.id, packet.arena_offset, packet.length, memory.value());
  }
  if (status.ok()) {
    extents_mapped.add();
    ++mapped_in_turn_;
  } else if (memory) {
    close_refused(memory.release());
  }
  return status;
}

void ShmLink::on_event(uint32_t epoll_events) noexcept {
  if (closed()) return;
  wake();
  if (corrupt_) return fail(corrupt("the peer's ring position is impossible"));
  Result<bool> more = read_socket(kPacketsPerEvent, kNoExtent);
  if ((epoll_events & (EPOLLHUP | EPOLLRDHUP)) != 0) hung_up_ = true;
  if (!more.ok()) return fail(more.status());
  bool over = ended_ || (!*more && (epoll_events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0);
  if (over && (pending_ & kEnding) == 0) begin_ending();
}

// What it wrote before it ended still counts: a ring of it at most. poll() reads that.
void ShmLink::begin_ending() {
  need_poll(kEnding);
  last_position_ = reader_.position() + kSlotCount;
  context_.unwatch(socket_->fd(), this);
}

void ShmLink::fail(const Status& why) {
  if (why == Code::kCorrupt) messages_corrupt.add();
  corrupt_ = true;  // nothing is read or written from here on
  pending_ = 0;
  if (!closed()) context_.unwatch(socket_->fd(), this);
  client_->link_down(why, context_.now());
}

void ShmLink::close() {
  if (closed()) return;
  fault_point("shm.close");
  context_.unwatch(socket_->fd(), this);
  pending_ = 0;
  rests_ = false;
  Remains remains{.socket = std::exchange(socket_, nullptr),
                  .loans = std::move(loans_),
                  .end_due = false,
                  .account = std::move(account_)};
  // The peer hears it at once, even while our views hold the socket open.
  remains.end_due = send_end(remains.socket->fd()) == Code::kTryAgain;
  // Views have references of their own. A program that keeps the handle of a closed
  // endpoint must not keep the peer's loans.
  std::exchange(peer_arena_, nullptr)->drop();
  if (hung_up_) remains.loans.clear();
  keeper_.keep(std::move(remains));
}

Status send_end(int fd) { return send_packet(fd, std::span(&kEnd, 1), -1); }

}  // namespace sluice::shm
