#include <sluice/l2/connection.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/l2/counted.h>
#include <sluice/l2/port.h>
#include <sluice/proto/payload_checksums.h>
#include <sluice/runtime/identity.h>

#include "kernel_compat/slp/slp.h"

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/connection";
// On this path nothing but the peer's progress answers: a computation that does not call it
// looks like a pulled cable. Longer than Session's time to call a peer silent (4 s).
constexpr Duration kDeadAfter = std::chrono::seconds(10);
constexpr size_t kRoundsPerPump = 4;
// Bytes of messages that come before the connection is accepted, with the cost to keep each, since
// a peer may send empty ones. SLP holds further ones back.
constexpr size_t kMostEarlyBytes = 16 << 10;
constexpr size_t kEarlyMessageBytes = 64;  // a vector and what an allocator adds
static_assert(kLargestMessage <= SLP_MAX_MESSAGE && kWindows == SLP_HANDLES &&
              kMoves == 2 * SLP_TRANSFERS);

Counter messages_held_back("l2.messages_held_back");
Counter connects("l2.connects");
Counter accepts("l2.accepts");

uint64_t nanoseconds(Instant t) { return static_cast<uint64_t>(t.time_since_epoch().count()); }
const uint8_t* octets(ConstBytes bytes) { return reinterpret_cast<const uint8_t*>(bytes.data()); }

Status ended(Code code, std::string why) {
  return Status(code, Scope::kEndpoint, kOrigin, std::move(why));
}

}  // namespace

// SLP's calls. Only message() goes on to the client at once: its bytes last for the call.
struct Connection::Ops {
  static Connection& self(void* user) { return *static_cast<Connection*>(user); }
  static void place(void* user, uint64_t cookie, uint64_t offset, const slp_frame* frame,
                    uint32_t at, uint32_t bytes) {
    std::array<MutableBytes, kMaxPlaces> pieces;
    Connection& c = self(user);
    const auto* rest = static_cast<const uint8_t*>(frame->context);
    const uint8_t* from = rest == nullptr ? frame->data + at : rest + (at - kDataHeader);
    for (size_t i = 0, count = c.find_pieces(cookie, offset, bytes, pieces); i < count; ++i) {
      if (octets(pieces[i]) != from) {
        std::memmove(pieces[i].data(), from, pieces[i].size());
        c.copied_in_ += pieces[i].size();
      }
      from += pieces[i].size();
    }
    if (cookie >= kWindows) c.note_front(cookie - kWindows, offset + bytes, *frame, at + bytes);
    fault_point("l2.partly_placed");
  }
  static bool message(void* user, const slp_rts*, const uint8_t* data, uint32_t bytes) {
    return self(user).take_message({reinterpret_cast<const std::byte*>(data), bytes});
  }
  static void ended(void* user, uint64_t cookie, slp_status status) {
    self(user).on_ended(cookie, status);
  }
  static void written(void* user, uint64_t, bool noticed, uint32_t notice) {
    Connection& c = self(user);
    if (noticed && !c.stopped_)
      c.events_.push_back({.kind = Event::Kind::kNotice, .notice = notice});
  }
  static void state(void* user, slp_state state, slp_status why) {
    self(user).on_state(state == SLP_UP, why);
  }
  static void wake(void* user) { self(user).host_.activate(self(user)); }
  static uint32_t source_crc(void* user, uint64_t cookie, uint64_t offset, uint32_t bytes) {
    std::array<MutableBytes, kMaxPlaces> pieces;
    uint32_t crc = 0;
    for (size_t i = 0, count = self(user).find_pieces(cookie, offset, bytes, pieces); i < count;
         ++i) {
      crc = slp_crc32c(crc, pieces[i].data(), pieces[i].size());
    }
    return crc;
  }
  static void* borrow(void* user) {
    Connection& c = self(user);
    c.work_ = c.host_.work().take();
    return c.work_.get();
  }
  static void give_back(void* user, void*) {
    Connection& c = self(user);
    c.host_.work().give_back(std::move(c.work_));
  }
  static const slp_ops kTable;
};

const slp_ops Connection::Ops::kTable = {
    .place = place,
    .message = message,
    .ended = ended,
    .written = written,
    .state = state,
    .wake = wake,
    .source_crc = source_crc,
    .frame_crc = nullptr,
    .borrow = borrow,
    .give_back = give_back,
};

// `at`: of the frame, the byte that would belong at `end` of the memory.
void Connection::note_front(size_t slot, uint64_t end, const slp_frame& frame, uint32_t at) {
  Move& move = moves_[slot];
  if (end <= move.front) return;
  move.front = end;
  const uint8_t* extension = frame.data + SLP_BASE_BYTES;
  next_move_ = slot;
  next_ = {.payload = slp_load16(frame.data + 6),
           .connection = number_,
           .transfer = slp_load32(extension + 8),
           .offset = slp_load64(extension) + at - kDataHeader};
  place_.port->expect(*this);
}

// The kernel's copies are counted by operation, ours by connection: they go to those that end
// first.
uint64_t Connection::uncopied_in(uint64_t bytes) {
  uint64_t copied = std::min(bytes, copied_in_);
  copied_in_ -= copied;
  return bytes - copied;
}

SendingRoom::SendingRoom(size_t batch)
    : tx_(std::make_unique_for_overwrite<slp_tx[]>(kBatch)),
      batch_(std::clamp<size_t>(batch, 1, kBatch)) {}
SendingRoom::~SendingRoom() = default;
slp_tx& SendingRoom::tx(size_t i) { return tx_[i]; }

Connection::Connection(ConnectionHost& host, const Place& place, const wire::Hello& ours,
                       bool active)
    : host_(host),
      place_(place),
      ours_(ours),
      machine_(host.machine_at(place.peer)),
      active_(active),
      now_(now()) {
  host_.remember(*this);
}

Connection::~Connection() {
  if (session_ != nullptr) stop();
  if (number_ != 0) place_.port->remove(number_);
  host_.forget(*this);
}

Status Connection::configure(slp_config& config) {
  slp_config_init(&config);
  config.ops = &Ops::kTable;
  config.user = this;
  config.node = &host_.node();
  config.share = machine_->share();
  fill_random(std::as_writable_bytes(std::span(&config.nonce, 1)));
  config.nonce |= 1;
  fill_random(std::as_writable_bytes(std::span(config.generations)));
  SLUICE_TRY(number_, place_.port->add(*this));
  config.connection = number_;
  config.source_port = place_.port->number();
  config.destination_port = place_.peer_port;
  config.mtu = std::min(place_.port->carrier().mtu_to(place_.peer), host_.most_frame_bytes());
  if (config.mtu < kLeastFrame) {
    return ended(Code::kUnsupported, "the way to " + peer_name() + " takes frames of " +
                                         std::to_string(config.mtu) +
                                         " bytes; use tcp:// there: SLP needs " +
                                         std::to_string(kLeastFrame) + ", an MTU of 1280");
  }
  config.dead_ns = static_cast<uint64_t>(kDeadAfter.count());
  config.payload_crc = proto::payload_checksums_wanted();
  if (place_.secret != nullptr) {
    SLUICE_TRY(cipher_, Cipher::open(place_.secret->bytes()));
    config.cipher = Cipher::calls();
    config.cipher_user = cipher_.get();
    fill_random(std::as_writable_bytes(std::span(config.salt)));
    host_.sending_room().reserve(config.mtu);
  }
  memory_ = std::make_unique_for_overwrite<uint64_t[]>((slp_state_bytes() + 7) / 8);
  return Status();
}

Result<std::unique_ptr<Connection>> Connection::connect(ConnectionHost& host, const Place& place,
                                                        const wire::Hello& ours) {
  std::unique_ptr<Connection> made(new Connection(host, place, ours, true));
  slp_config config;
  SLUICE_RETURN_IF_ERROR(made->configure(config));
  made->session_ = slp_connect(made->memory_.get(), &config, nanoseconds(made->now_));
  connects.add();
  host.activate(*made);
  return made;
}

Result<std::unique_ptr<Connection>> Connection::accept(ConnectionHost& host, const Place& place,
                                                       const slp_hello& hello,
                                                       const wire::Hello& ours) {
  std::unique_ptr<Connection> made(new Connection(host, place, ours, false));
  made->peer_nonce_ = hello.nonce;  // by which the port finds it
  slp_config config;
  SLUICE_RETURN_IF_ERROR(made->configure(config));
  slp_status status =
      slp_accept(made->memory_.get(), &config, &hello, nanoseconds(made->now_), &made->session_);
  if (status != SLP_OK) return status_of(status);
  made->state_ = State::kGreeting;
  accepts.add();
  host.activate(*made);
  return made;
}

Status Connection::charge(PeerResource resource) {
  SLUICE_RETURN_IF_ERROR(machine_->account()->charge(resource));
  hold(PeerCharge(machine_->account(), resource));
  return Status();
}

bool Connection::was_heard() const { return slp_was_heard(session_); }

Status Connection::hint() const {
  slp_status why = slp_state_of(session_) == SLP_CONNECTING ? slp_why_of(session_) : SLP_OK;
  return why == SLP_OK ? Status() : status_of(why);
}

bool Connection::became_confirmed() {
  if (confirmed_ || !slp_confirmed(session_)) return false;
  return confirmed_ = true;
}

Path Connection::path() const { return place_.port->carrier().path(); }
std::string Connection::local_name() const { return place_.port->name(); }
std::string Connection::peer_name() const {
  return place_.port->carrier().address_text(place_.peer, place_.peer_port);
}

// ---- the end

void Connection::on_state(bool up, int why) {
  if (!up) return note_ended(status_of(why));
  state_ = State::kGreeting;
  send_hello();
}

void Connection::note_ended(Status why) {
  if (failed_) return;
  failed_ = true;
  host_.activate(*this);
  failure_ = std::move(why);
  if (state_ != State::kReady) state_ = State::kEnded;
}

void Connection::fail(Status why) {
  note_ended(std::move(why));
  stop();
}

void Connection::restarted() {
  slp_restarted(session_);
  host_.activate(*this);
}

void Connection::stop() {
  if (stopped_) return;
  stopped_ = true;
  slp_abort(session_);
  fault_point("l2.bye");
  // Now: the caller may never call again.
  (void)pump(now());
}

bool Connection::drained() const {
  return stopped_ || slp_state_of(session_) != SLP_UP || slp_drained(session_);
}

// ---- frames and time

bool Connection::on_frame(const slp_frame& frame, const slp_base& base, Instant now) {
  now_ = now;
  slp_drop drop = slp_on_decoded_frame(session_, nanoseconds(now), &frame, &base);
  if (drop != SLP_TAKEN && drop != SLP_DROP_SESSION)
    count_drop(drop);  // the port counts those of nobody
  host_.activate(*this);
  return drop != SLP_DROP_SESSION;
}

void Connection::on_timer(Instant now) {
  now_ = now;
  slp_on_timer(session_, nanoseconds(now));
  host_.activate(*this);
}

void Connection::limit_frames(uint16_t mtu) {
  const uint32_t least = slp_least_frame_bytes(session_);
  if (mtu < least && !failed()) {
    return fail(ended(Code::kUnreachable, local_name() + " now takes frames of " +
                                              std::to_string(mtu) + " bytes, and this session of " +
                                              std::to_string(least) + "; connect again"));
  }
  slp_limit_frame(session_, mtu);
}

Instant Connection::next_timeout() const {
  uint64_t next = slp_next_timeout(session_);
  return next >= static_cast<uint64_t>(INT64_MAX) ? kNever
                                                  : Instant(Duration(static_cast<int64_t>(next)));
}

bool Connection::pump(Instant now) {
  SendingRoom& room = host_.sending_room();
  counts_.update(*slp_counters_of(session_));
  for (size_t round = 0; round < kRoundsPerPump; ++round) {
    size_t count = 0;
    while (count < room.batch() && slp_poll_tx(session_, nanoseconds(now), &room.tx(count))) {
      gather(room.tx(count), room.frames[count]);
      // What cannot be sealed is lost, and its content is sent again.
      if (!room.tx(count).sealed || seal(room.tx(count), room.frames[count], room.slot(count)))
        ++count;
    }
    if (count > 0) {
      place_.port->carrier().send({room.frames.data(), count});
      fault_point("l2.sent");
    }
    if (count < room.batch()) return false;
  }
  return true;
}

void Connection::gather(const slp_tx& tx, FrameOut& frame) {
  frame.to = &place_.peer;
  frame.count = 0;
  auto add = [&](const void* data, size_t bytes) {
    if (bytes > 0) frame.pieces[frame.count++] = {const_cast<void*>(data), bytes};
  };
  add(tx.header, tx.header_bytes);
  if (!tx.from_memory) {
    add(tx.piece[0], tx.piece_bytes[0]);
    add(tx.piece[1], tx.piece_bytes[1]);
    return;
  }
  std::array<MutableBytes, kMaxPlaces> pieces;
  size_t count = find_pieces(tx.cookie, tx.offset, tx.bytes, pieces);
  for (size_t i = 0; i < count; ++i) add(pieces[i].data(), pieces[i].size());
}

// The gathered frame becomes one piece.
bool Connection::seal(const slp_tx& tx, FrameOut& frame, uint8_t* room) {
  std::array<slp_piece, kMostPieces> memory;
  uint32_t count = 0;
  for (size_t i = 1; tx.from_memory && i < frame.count; ++i) {
    memory[count++] = {.data = static_cast<const uint8_t*>(frame.pieces[i].iov_base),
                       .bytes = static_cast<uint32_t>(frame.pieces[i].iov_len)};
  }
  uint32_t bytes = slp_seal_tx(session_, &tx, memory.data(), count, room);
  frame.pieces[0] = {room, bytes};
  frame.count = 1;
  return bytes > 0;
}

// ---- what comes

bool Connection::take_message(ConstBytes message) {
  if (stopped_ || leaving_) return true;
  if (state_ == State::kGreeting) {
    take_hello(message);
    return true;
  }
  if (client_ != nullptr && early_.empty()) {
    held_back_ = !client_->takes_messages(now_);
    if (held_back_) {
      messages_held_back.add();
      return false;
    }
    client_->on_message(message, now_);
    return true;
  }
  size_t cost = kEarlyMessageBytes + message.size();
  if (early_bytes_ + cost > kMostEarlyBytes) return false;
  early_.emplace_back(message.begin(), message.end());
  early_bytes_ += cost;
  return true;
}

void Connection::set_client(proto::DirectClient* client) {
  client_ = client;
  leaving_ = client == nullptr;
  host_.activate(*this);
  if (!leaving_) return;
  events_.clear();
  early_.clear();
  held_back_ = false;
  if (!stopped_) slp_resume(session_);
}

// Grants end with the connection, not with its last message.
void Connection::leave() {
  for (Window& window : windows_) {
    if (window.handle != 0) close_window(window.handle, false);
  }
  set_client(nullptr);
}

size_t Connection::turn(Instant now) {
  now_ = now;
  size_t work = 0;
  for (; client_ != nullptr && work < early_.size(); ++work) {
    std::vector<std::byte> message = std::move(early_[work]);
    client_->on_message(message, now);
  }
  if (work > 0) {
    early_.clear();
    early_bytes_ = 0;
    if (!stopped_) slp_resume(session_);
    host_.activate(*this);
  }
  if (held_back_ && (client_ == nullptr || client_->takes_messages(now))) {
    held_back_ = false;
    if (!stopped_) slp_resume(session_);
    host_.activate(*this);
  }
  // The client may do what adds to them.
  size_t i = 0;
  for (; client_ != nullptr && i < events_.size(); ++i) {
    Event event = events_[i];
    switch (event.kind) {
      case Event::Kind::kNone: break;
      case Event::Kind::kMoved: client_->on_moved(event.cookie, event.length, now); break;
      case Event::Kind::kRefused:
        client_->on_refused(event.cookie, event.length, status_of(event.refused, Scope::kOperation),
                            now);
        break;
      case Event::Kind::kWindowClosed: client_->on_window_closed(event.cookie, now); break;
      case Event::Kind::kNotice: client_->on_notice(event.notice, now); break;
    }
  }
  events_.clear();
  if (i > 0) push_waiting();
  return work + i;
}

// ---- what the client posts

bool Connection::send(ConstBytes header, std::span<const ConstBytes> payload) {
  std::array<uint8_t, kLargestMessage> joined;
  const uint8_t* body = payload.size() == 1 ? octets(payload[0]) : joined.data();
  size_t bytes = 0;
  for (const ConstBytes& piece : payload) {
    if (payload.size() > 1 && !piece.empty() && bytes + piece.size() <= joined.size())
      std::memcpy(joined.data() + bytes, piece.data(), piece.size());
    bytes += piece.size();
  }
  if (failed_ || stopped_) return true;  // and it is told next
  if (slp_send(session_, nullptr, octets(header), static_cast<uint32_t>(header.size()), body,
               static_cast<uint32_t>(bytes))) {
    host_.posted(*this);
    return true;
  }
  want_room_ = true;
  return false;
}

}  // namespace sluice::l2
