// The receiving half of TcpLink: bytes to messages and into place.
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/tcp/link.h>

namespace sluice::tcp {
namespace {

constexpr const char* kOrigin = "tcp/link";

// Bytes one link may take before others get their turn; one read may reach beyond it by
// the length of a DATA message. proto::TurnBudget bounds messages and time.
constexpr size_t kBytesPerTurn = size_t{2} << 20;
// And this long with messages: a flood of them must not hold up others for long, who wait behind it
// once in each round trip.
constexpr Duration kLinkTime = std::chrono::microseconds(100);
// Read-ahead into staging: small while DATA flows, since what is read behind a DATA header
// must be copied to its place; it grows while messages fill it.
constexpr size_t kLeastReadAhead = 512;
constexpr size_t kFirstReadAhead = 4096;
constexpr size_t kMostReadAhead = 64u << 10;
// Read behind the end of a DATA payload: the next header, mostly another DATA.
constexpr size_t kTailBytes = 256;
// Most bytes dropped by one call.
constexpr size_t kDropBytes = size_t{1} << 20;

Counter turns_cut("tcp.turns_cut");  // messages were left for the next turn
Counter messages_held_back("tcp.messages_held_back");
Counter staged_bytes_copied("tcp.staged_bytes_copied");
Counter data_bytes_dropped("tcp.data_bytes_dropped");

}  // namespace

class StagedPayload final : public PayloadReader {
 public:
  explicit StagedPayload(const std::byte* at) : at_(at) {}
  void read(MutableBytes out) override {
    std::memcpy(out.data(), at_, out.size());
    at_ += out.size();
    copied += out.size();
  }
  uint64_t copied = 0;

 private:
  const std::byte* at_;
};

TcpLink::TcpLink(LinkGroup& group, Descriptor fd, const LinkTraits& traits)
    : group_(&group),
      traits_(&traits),
      fd_(std::move(fd)),
      local_name_("tcp://" + local_address(fd_.value()).to_string()),
      peer_name_("tcp://" + peer_address(fd_.value()).to_string()),
      read_ahead_(kFirstReadAhead) {}

// Reads until the socket is empty or the turn is over. Edges only: what is left, unread or not yet
// handled, is remembered in readable_, unparsed_ and on the group's list.
size_t TcpLink::receive(Instant now) {
  // Called from a completion that waits: the outer call reads what has come.
  if (receiving_) readable_ = true;
  if (receiving_ || held_) return 0;
  readable_ = true;
  waits_for_first_ = false;
  if (data_left_ == 0 && idle_talk_.rests(*client_, now)) {
    if (!std::exchange(held_back_, true)) messages_held_back.add();
    group_->add_todo(this);
    return 0;
  }
  held_back_ = false;
  const Instant began = idle_talk_.found() ? sluice::now() : now;
  receiving_ = true;
  proto::TurnBudget turn(kLinkTime);
  turn_ = &turn;
  size_t total = 0;
  if (unparsed_) {
    total += block_->size();
    parse(now);
    total -= block_ != nullptr ? block_->size() : 0;
  }
  // A read costs as much as a message, whatever it brings.
  while (readable_ && usable() && !unparsed_ && total < kBytesPerTurn) {
    if (!turn.spend()) {
      cut_in_ = group_->turn();
      break;
    }
    ssize_t got = data_left_ > 0 ? receive_data(now) : receive_staged(now);
    if (got <= 0) break;
    total += static_cast<size_t>(got);
  }
  turn_ = nullptr;
  receiving_ = false;
  if (total > 0) group_->note_handled(turn.messages());
  if (total > 0) (first_ != nullptr ? first_ : this)->note_progress(now);
  if (staged_copied_ > 0) {
    staged_bytes_copied.add(staged_copied_);
    staged_copied_ = 0;
  }
  if (!usable()) {
    return_block();
    return total;
  }
  if (idle_talk_.due()) {
    const Instant ended = idle_talk_.found() ? sluice::now() : now;
    idle_talk_.look(*client_, ended - began, ended);
  }
  if (further_ != nullptr) wake_further();
  if ((readable_ || unparsed_) && !held_ && !waits_for_first_) group_->add_todo(this);
  return total;
}

// What a read that gave nothing means. Always returns 0 or less.
ssize_t TcpLink::ended(ssize_t got, int os_error, Instant now) {
  if (got == 0) {
    readable_ = false;
    end_of_stream(broken_ == EPIPE ? 0 : broken_, now);
    return 0;
  }
  if (os_error == EINTR) return 0;  // readable_ stays: another turn
  readable_ = false;
  if (os_error != EAGAIN) end_of_stream(os_error, now);
  return -1;
}

void TcpLink::return_block() {
  if (block_ != nullptr) group_->return_block(std::move(block_));
  needed_ = 0;
  unparsed_ = false;
}

// Requires: needed_ bytes fit behind the beginning of the message.
void TcpLink::make_room(StagingBlock& block) {
  size_t space = StagingBlock::kBytes - block.end;
  if (block.begin == 0 || space >= std::max(needed_, kLeastReadAhead)) return;
  std::memmove(block.bytes.data(), block.data(), block.size());
  block.end = block.size();
  block.begin = 0;
}

ssize_t TcpLink::receive_staged(Instant now) {
  if (block_ == nullptr) block_ = group_->take_block();
  StagingBlock& block = *block_;
  make_room(block);
  size_t want = std::min(std::max(read_ahead_, needed_), StagingBlock::kBytes - block.end);
  ssize_t got = ::recv(fd_.value(), block.bytes.data() + block.end, want, MSG_DONTWAIT);
  if (got <= 0) {
    int os_error = errno;
    if (block.size() == 0) return_block();
    return ended(got, os_error, now);
  }
  block.end += static_cast<size_t>(got);
  bool filled = static_cast<size_t>(got) == want;
  readable_ = filled || peer_ended_;
  if (filled) read_ahead_ = std::min(read_ahead_ * 4, kMostReadAhead);
  parse(now);
  return got;
}

// Handles the whole messages in the block, as many as the turn has time for; then what is left is
// the beginning of one.
void TcpLink::parse(Instant now) {
  needed_ = 0;
  unparsed_ = false;
  if (data_left_ > 0 && !place_staged(now)) return;
  while (usable() && block_->size() > 0 && data_left_ == 0) {
    if (!turn_->spend()) {
      unparsed_ = true;
      cut_in_ = group_->turn();
      turns_cut.add();
      return;
    }
    if (!parse_message(now)) break;
  }
  if (usable() && block_->size() == 0) return_block();
}

// False: the message is not complete, or the link is no longer usable.
bool TcpLink::parse_message(Instant now) {
  StagingBlock& block = *block_;
  ConstBytes bytes(block.data(), block.size());
  if (bytes.size() < wire::kHeaderBytes) {
    needed_ = wire::kHeaderBytes - bytes.size();
    return false;
  }
  auto common = wire::decode_header(bytes.first(wire::kHeaderBytes));
  if (!common.ok()) {
    corrupt(common.status(), now);
    return false;
  }
  bool is_data = common->type == wire::MessageType::kData;
  if (first_ != nullptr && !is_data) {
    corrupt(Status(Code::kCorrupt, Scope::kEndpoint, kOrigin,
                   std::string(wire::to_string(common->type)) +
                       " on a further stream, which carries DATA alone"),
            now);
    return false;
  }
  if (common->type == wire::MessageType::kBye && !further_read_out()) {
    unparsed_ = true;
    hold(now);
    return false;
  }
  // The payload of DATA goes into place as it comes; that of others is read whole.
  size_t whole = common->header_bytes + (is_data ? size_t{0} : common->payload_bytes);
  if (bytes.size() < whole) {
    needed_ = whole - bytes.size();
    return false;
  }
  block.begin += whole;
  if (is_data) {
    wire::Data data;
    Status status = wire::decode(bytes.first(whole), data);
    if (!status.ok()) {
      corrupt(status, now);
      return false;
    }
    status = check_order(data);
    if (!status.ok()) {
      corrupt(status, now);
      return false;
    }
    data_id_ = data.id;
    data_offset_ = data.offset;
    data_after_ = data.after;
    return start_data(*common, now);
  }
  idle_talk_.count();
  StagedPayload payload(bytes.data() + common->header_bytes);
  Status status = client_->handle_message(bytes.first(common->header_bytes), payload, now);
  staged_copied_ += payload.copied;
  ++handled_;
  if (!usable()) return false;
  if (status.ok()) return true;
  if (status == Code::kCorrupt) {
    corrupt(status, now);
  } else {
    fail(status, now);
  }
  return false;
}

bool TcpLink::start_data(const wire::Header& common, Instant now) {
  uint64_t end;
  if (__builtin_add_overflow(data_offset_, uint64_t{common.payload_bytes}, &end)) {
    corrupt(Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, "DATA beyond the 64-bit range"), now);
    return false;
  }
  data_left_ = common.payload_bytes;
  read_ahead_ = kLeastReadAhead;
  if (data_left_ == 0) return data_arrived(0, now);
  return block_->size() == 0 || place_staged(now);
}

// The payload bytes that were read together with their header.
bool TcpLink::place_staged(Instant now) {
  StagingBlock& block = *block_;
  while (data_left_ > 0 && block.size() > 0) {
    if (early()) {
      waits_for_first_ = unparsed_ = true;
      return false;
    }
    uint64_t length = std::min<uint64_t>(data_left_, block.size());
    Placement placement = transfer_->place(data_id_, data_offset_, length);
    if (!usable()) return false;
    if (placement.wait) {
      unparsed_ = true;
      return false;
    }
    uint64_t placed = 0;
    for (size_t i = 0; i < placement.count && placed < length; ++i) {
      size_t part = std::min<size_t>(placement.runs[i].size(), length - placed);
      std::memcpy(placement.runs[i].data(), block.data() + placed, part);
      placed += part;
    }
    staged_copied_ += placed;
    if (placed == 0) {  // nobody wants them
      placed = length;
      data_bytes_dropped.add(length);
    }
    block.begin += placed;
    if (!data_arrived(placed, now)) return false;
  }
  return true;
}

bool TcpLink::data_arrived(uint64_t length, Instant now) {
  uint64_t offset = data_offset_;
  count_bulk(length);
  data_offset_ += length;
  data_left_ -= length;
  if (data_left_ > 0) fault_point("tcp.data_partly_placed");
  Status status = transfer_->placed(data_id_, offset, length, now);
  if (!usable()) return false;
  if (status.ok()) return true;
  fail(status, now);
  return false;
}

// Straight from the socket to the destination, and the next header behind it.
// Requires: no byte is staged.
ssize_t TcpLink::receive_data(Instant now) {
  if (early()) {
    waits_for_first_ = true;
    return -1;
  }
  Placement placement = transfer_->place(data_id_, data_offset_, data_left_);
  if (!usable() || placement.wait) return -1;
  std::array<iovec, kMaxPlaces + 1> pieces;
  size_t count = 0;
  uint64_t room = 0;
  for (size_t i = 0; i < placement.count && room < data_left_; ++i) {
    size_t part = std::min<uint64_t>(placement.runs[i].size(), data_left_ - room);
    if (part == 0) continue;
    pieces[count++] = {placement.runs[i].data(), part};
    room += part;
  }
  if (room == 0) return drop_data(now);
  bool with_tail = room == data_left_;
  size_t asked = room;
  if (with_tail) {
    if (block_ == nullptr) block_ = group_->take_block();
    pieces[count++] = {block_->bytes.data(), kTailBytes};
    asked += kTailBytes;
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  ssize_t got = ::recvmsg(fd_.value(), &message, MSG_DONTWAIT);
  int os_error = errno;
  size_t in_place = got > 0 ? std::min<size_t>(static_cast<size_t>(got), room) : 0;
  size_t behind = got > 0 ? static_cast<size_t>(got) - in_place : 0;
  if (behind == 0) return_block();
  if (got <= 0) return ended(got, os_error, now);
  readable_ = static_cast<size_t>(got) == asked || peer_ended_;
  if (behind > 0) block_->end = behind;
  if (data_arrived(in_place, now) && behind > 0) parse(now);
  return got;
}

ssize_t TcpLink::drop_data(Instant now) {
  size_t want = std::min<uint64_t>(data_left_, kDropBytes);
  // tcp(7): MSG_TRUNC discards without copying.
  ssize_t got = ::recv(fd_.value(), nullptr, want, MSG_TRUNC | MSG_DONTWAIT);
  if (got <= 0) return ended(got, errno, now);
  readable_ = static_cast<size_t>(got) == want || peer_ended_;
  data_bytes_dropped.add(static_cast<uint64_t>(got));
  data_arrived(static_cast<uint64_t>(got), now);
  return got;
}

}  // namespace sluice::tcp
