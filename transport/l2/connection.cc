#include <sluice/l2/connection.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/api/identity.h>
#include <sluice/base/counters.h>
#include <sluice/l2/port.h>

#include "kernel_compat/slp/slp.h"

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/connection";
// On this path nothing but the peer's progress answers: a computation that does not call it
// looks like a pulled cable. Longer than Session's time to call a peer silent (4 s).
constexpr Duration kDeadAfter = std::chrono::seconds(10);
// Addresses of windows begin here: no key of this path is all zeros, and what lies before a
// window is outside for the one who asks. What a handle covers is checked by its owner's SLP.
constexpr uint64_t kAddressBase = uint64_t{1} << 32;
constexpr size_t kRoundsPerPump = 4;
// Of messages that come before somebody accepts the connection; SLP holds what follows.
constexpr size_t kMostEarlyBytes = 16 << 10;
constexpr uint32_t kLargestMessage = 4096 + wire::kMaxHeaderBytes;
static_assert(kLargestMessage <= SLP_MAX_MESSAGE && kWindows == SLP_HANDLES && kMoves == 2 * SLP_TRANSFERS);

Counter connects("l2.connects");
Counter accepts("l2.accepts");
Counter refused_to_peer("l2.access_refused");

uint64_t nanoseconds(Instant t) { return static_cast<uint64_t>(t.time_since_epoch().count()); }
const uint8_t* octets(proto::ConstBytes bytes) { return reinterpret_cast<const uint8_t*>(bytes.data()); }

Status ended(Code code, std::string why) { return Status(code, Scope::kEndpoint, kOrigin, std::move(why)); }

Status status_of(int status) {
  std::string text = slp_status_text(static_cast<slp_status>(status));
  switch (status) {
    case SLP_BAD_HANDLE:
    case SLP_BAD_RANGE:
    case SLP_NO_RIGHT: return ended(Code::kAccessDenied, "the peer refused an access: " + text);
    case SLP_NO_LISTENER: return ended(Code::kUnreachable, "nobody listens there over l2; start the listener first");
    case SLP_SILENT: return ended(Code::kUnreachable, text + ": its process ended, its progress stopped, or the network is cut; connect again");
    case SLP_BAD_VERSION: return ended(Code::kUnsupported, text);
    case SLP_NOT_AUTHENTIC: return ended(Code::kAccessDenied, text);
    case SLP_BROKEN: return ended(Code::kCorrupt, text);
    case SLP_LOCAL: return ended(Code::kCancelled, text);
    default: return ended(Code::kUnreachable, text);
  }
}

}  // namespace

// SLP's calls. Only message() goes on to the client at once: its bytes last for the call.
struct Connection::Ops {
  static Connection& self(void* user) { return *static_cast<Connection*>(user); }
  static void place(void* user, uint64_t cookie, uint64_t offset, const slp_frame* frame, uint32_t at, uint32_t bytes) {
    std::array<proto::MutableBytes, proto::kMaxPlaces> pieces;
    const uint8_t* from = frame->data + at;
    for (size_t i = 0, count = self(user).find_pieces(cookie, offset, bytes, pieces); i < count; ++i) {
      std::memcpy(pieces[i].data(), from, pieces[i].size());
      from += pieces[i].size();
    }
  }
  static bool message(void* user, const slp_rts*, const uint8_t* data, uint32_t bytes) {
    return self(user).take_message({reinterpret_cast<const std::byte*>(data), bytes});
  }
  static void ended(void* user, uint64_t cookie, slp_status status) { self(user).on_ended(cookie, status); }
  static void written(void* user, uint64_t, bool noticed, uint32_t notice) {
    Connection& c = self(user);
    if (noticed && !c.stopped_) c.events_.push_back({.kind = Event::Kind::kNotice, .notice = notice});
  }
  static void state(void* user, slp_state state, slp_status why) { self(user).on_state(state == SLP_UP, why); }
  static void wake(void* user) { self(user).host_.activate(self(user)); }
  static const slp_ops kTable;
};

const slp_ops Connection::Ops::kTable = {
    .place = place,
    .message = message,
    .ended = ended,
    .written = written,
    .state = state,
    .wake = wake,
    .source_crc = nullptr,
    .frame_crc = nullptr,
};

Connection::Connection(ConnectionHost& host, const Place& place, const wire::Hello& ours, bool active)
    : host_(host), place_(place), ours_(ours), active_(active), now_(now()) {
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
  fill_random(std::as_writable_bytes(std::span(&config.nonce, 1)));
  config.nonce |= 1;
  SLUICE_TRY(number_, place_.port->add(*this));
  config.connection = number_;
  config.source_port = place_.port->number();
  config.destination_port = place_.peer_port;
  config.mtu = place_.port->carrier().mtu_to(place_.peer);
  if (config.mtu < kLeastFrame) {
    return ended(Code::kUnsupported, "the way to " + peer_name() + " takes frames of " + std::to_string(config.mtu) + " bytes; SLP needs 1452, an MTU of 1500");
  }
  config.dead_ns = static_cast<uint64_t>(kDeadAfter.count());
  memory_ = std::make_unique<uint64_t[]>((slp_session_bytes() + 7) / 8);
  return Status();
}

Result<std::unique_ptr<Connection>> Connection::connect(ConnectionHost& host, const Place& place, const wire::Hello& ours) {
  std::unique_ptr<Connection> made(new Connection(host, place, ours, true));
  slp_config config;
  SLUICE_RETURN_IF_ERROR(made->configure(config));
  made->session_ = slp_connect(made->memory_.get(), &config, nanoseconds(made->now_));
  connects.add();
  host.activate(*made);
  return made;
}

Result<std::unique_ptr<Connection>> Connection::accept(ConnectionHost& host, const Place& place, const slp_hello& hello, const wire::Hello& ours) {
  std::unique_ptr<Connection> made(new Connection(host, place, ours, false));
  slp_config config;
  SLUICE_RETURN_IF_ERROR(made->configure(config));
  made->peer_nonce_ = hello.nonce;
  slp_status status = slp_accept(made->memory_.get(), &config, &hello, nanoseconds(made->now_), &made->session_);
  if (status != SLP_OK) return status_of(status);
  made->state_ = State::kGreeting;
  accepts.add();
  host.activate(*made);
  return made;
}

Path Connection::path() const { return place_.port->carrier().path(); }
std::string Connection::local_name() const { return place_.port->name(); }
std::string Connection::peer_name() const { return place_.port->carrier().address_text(place_.peer, place_.peer_port); }

// ---- the greeting and the end

void Connection::send_hello() {
  std::byte header[wire::kMaxHeaderBytes];
  size_t length = wire::encode(ours_, header);
  (void)send(proto::ConstBytes(header, length), {});  // the first message: there is room
}

void Connection::take_hello(proto::ConstBytes message) {
  Result<wire::Header> common = wire::decode_header(message);
  Status status = common.status();
  if (status.ok() && (common->type != wire::MessageType::kHello || common->header_bytes != message.size())) {
    status = ended(Code::kCorrupt, "a message before HELLO");
  }
  if (status.ok()) status = wire::decode(message, peer_);
  if (status.ok()) status = wire::negotiate(ours_, peer_).status();
  if (!status.ok()) return fail(std::move(status));
  if (!active_) send_hello();
  state_ = State::kReady;
}

void Connection::on_state(bool up, int why) {
  if (!up) return note_ended(status_of(why));
  state_ = State::kGreeting;
  send_hello();
}

void Connection::note_ended(Status why) {
  if (failed_) return;
  failed_ = true;
  failure_.why = std::move(why);
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
  // Whoever stops may never come back.
  (void)pump(now());
}

bool Connection::drained() const { return stopped_ || slp_state_of(session_) != SLP_UP || slp_drained(session_); }

// ---- frames and time

bool Connection::on_frame(const slp_frame& frame, Instant now) {
  now_ = now;
  slp_drop drop = slp_on_frame(session_, nanoseconds(now), &frame);
  host_.activate(*this);
  return drop != SLP_DROP_SESSION;
}

void Connection::on_timer(Instant now) {
  now_ = now;
  slp_on_timer(session_, nanoseconds(now));
  host_.activate(*this);
}

Instant Connection::next_timeout() const {
  uint64_t next = slp_next_timeout(session_);
  return next >= static_cast<uint64_t>(INT64_MAX) ? kNever : Instant(Duration(static_cast<int64_t>(next)));
}

bool Connection::pump(Instant now) {
  std::array<slp_tx, kBatch> out;
  std::array<FrameOut, kBatch> frames;
  for (size_t round = 0; round < kRoundsPerPump; ++round) {
    size_t count = 0;
    while (count < kBatch && slp_poll_tx(session_, nanoseconds(now), &out[count])) {
      gather(out[count], frames[count]);
      ++count;
    }
    if (count > 0) place_.port->carrier().send({frames.data(), count});
    if (count < kBatch) return false;
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
  std::array<proto::MutableBytes, proto::kMaxPlaces> pieces;
  size_t count = find_pieces(tx.cookie, tx.offset, tx.bytes, pieces);
  for (size_t i = 0; i < count; ++i) add(pieces[i].data(), pieces[i].size());
}

// Where bytes [offset, offset + bytes) of what a cookie of SLP names are: of a window, or of
// the pieces of a move.
size_t Connection::find_pieces(uint64_t cookie, uint64_t offset, uint64_t bytes, std::span<proto::MutableBytes> out) {
  if (cookie < kWindows) {
    out[0] = {windows_[cookie].data + offset, bytes};
    return 1;
  }
  const Move& move = moves_[cookie - kWindows];
  size_t count = 0;
  for (size_t i = 0; i < move.count && bytes > 0; ++i) {
    proto::MutableBytes piece = move.pieces[i];
    if (offset >= piece.size()) {
      offset -= piece.size();
      continue;
    }
    out[count] = piece.subspan(offset, std::min<uint64_t>(bytes, piece.size() - offset));
    offset = 0;
    bytes -= out[count++].size();
  }
  return count;
}

// ---- what comes

bool Connection::take_message(proto::ConstBytes message) {
  if (stopped_ || leaving_) return true;
  if (state_ == State::kGreeting) {
    take_hello(message);
    return true;
  }
  if (client_ != nullptr && early_.empty()) {
    client_->on_message(message, now_);
    return true;
  }
  if (early_bytes_ + message.size() > kMostEarlyBytes) return false;
  early_.emplace_back(message.begin(), message.end());
  early_bytes_ += message.size();
  return true;
}

void Connection::on_ended(uint64_t cookie, int status) {
  Move& move = moves_[cookie - kWindows];
  move.count = 0;
  if (stopped_ || failed_) return;
  if (status == SLP_OK) {
    events_.push_back({.kind = Event::Kind::kMoved, .cookie = move.cookie, .length = move.length});
    return;
  }
  // The session has ended, and says so next; or this was refused, which ends it as a device would.
  if (slp_state_of(session_) != SLP_UP) return;
  refused_to_peer.add();
  failure_ = {.why = {}, .moving = true, .cookie = move.cookie, .length = move.length};
  fail(status_of(status));
}

void Connection::set_client(proto::DirectClient* client) {
  client_ = client;
  leaving_ = client == nullptr;
  if (!leaving_) return;
  events_.clear();
  early_.clear();
  if (!stopped_) slp_resume(session_);
}

size_t Connection::deliver(Instant now) {
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
  // The client may do what adds to them.
  size_t i = 0;
  for (; client_ != nullptr && i < events_.size(); ++i) {
    Event event = events_[i];
    switch (event.kind) {
      case Event::Kind::kNone: break;
      case Event::Kind::kMoved: client_->on_moved(event.cookie, event.length, now); break;
      case Event::Kind::kWindowClosed: client_->on_window_closed(event.cookie, now); break;
      case Event::Kind::kNotice: client_->on_notice(event.notice, now); break;
    }
  }
  events_.clear();
  if (i > 0) push_waiting();
  return work + i;
}

// ---- what the client posts

bool Connection::send(proto::ConstBytes header, std::span<const proto::ConstBytes> payload) {
  std::array<uint8_t, kLargestMessage> joined;
  const uint8_t* body = payload.size() == 1 ? octets(payload[0]) : joined.data();
  size_t bytes = 0;
  for (const proto::ConstBytes& piece : payload) {
    if (payload.size() > 1 && !piece.empty() && bytes + piece.size() <= joined.size()) std::memcpy(joined.data() + bytes, piece.data(), piece.size());
    bytes += piece.size();
  }
  if (failed_ || stopped_) return true;  // and it is told next
  if (slp_send(session_, nullptr, octets(header), static_cast<uint32_t>(header.size()), body, static_cast<uint32_t>(bytes))) {
    host_.posted(*this);
    return true;
  }
  want_room_ = true;
  return false;
}

Result<proto::WindowId> Connection::open_window(std::byte* data, uint64_t length, Right rights, uint64_t cookie, wire::Segment& out) {
  if (failed_ || stopped_) return ended(Code::kUnreachable, "the connection has ended");
  auto window = std::find_if(windows_.begin(), windows_.end(), [](const Window& w) { return w.handle == 0; });
  uint32_t handle = 0, slp_rights = 0;
  if (has_right(rights, Right::kRead)) slp_rights |= SLP_READ;
  if (has_right(rights, Right::kWrite)) slp_rights |= SLP_WRITE;
  auto index = static_cast<uint64_t>(window - windows_.begin());
  if (window == windows_.end() || !slp_open_handle(session_, index, length, slp_rights, &handle)) {
    want_window_ = true;
    return Status(Code::kTryAgain, Scope::kOperation, kOrigin, "64 windows are open to this peer over l2: wait until some operations have ended, or revoke grants");
  }
  *window = {.data = data, .length = length, .cookie = cookie, .handle = handle};
  out = {.extent = handle, .offset = kAddressBase, .length = length};
  return handle;
}

void Connection::close_window(proto::WindowId window, bool tell) {
  auto found = std::find_if(windows_.begin(), windows_.end(), [&](const Window& w) { return w.handle == window; });
  if (found == windows_.end()) return;
  found->handle = 0;
  if (!stopped_) slp_close_handle(session_, window);
  if (tell && !stopped_) events_.push_back({.kind = Event::Kind::kWindowClosed, .cookie = found->cookie});
  host_.activate(*this);
}

void Connection::close_windows() {
  for (Window& window : windows_) {
    if (window.handle != 0) close_window(window.handle, false);
  }
}

namespace {
// Of the handle; before its beginning is beyond every end.
uint64_t offset_of(const wire::Segment& peer) { return peer.offset >= kAddressBase ? peer.offset - kAddressBase : UINT64_MAX; }
}  // namespace

// A slot for a transfer, or moves_.size(). As many as SLP has of each kind: pulls, then pushes.
size_t Connection::start_move(bool pull, const wire::Segment& peer, uint64_t cookie) {
  auto first = moves_.begin() + (pull ? 0 : kMoves / 2);
  auto free = std::find_if(first, first + kMoves / 2, [](const Move& m) { return m.count == 0; });
  if (free == first + kMoves / 2) {
    (pull ? want_pull_ : want_push_) = true;
    return moves_.size();
  }
  *free = {.length = peer.length, .cookie = cookie, .handle = peer.extent, .offset = offset_of(peer)};
  return static_cast<size_t>(free - moves_.begin());
}

// What SLP said to a transfer that was to be of moves_[slot].
void Connection::posted(size_t slot, int status) {
  if (status == SLP_OK) {
    host_.posted(*this);
    return;
  }
  Move& move = moves_[slot];
  move.count = 0;
  if (slp_state_of(session_) != SLP_UP) return;  // it has ended, which is told next
  // A range that no handle has: what the peer would say.
  refused_to_peer.add();
  failure_ = {.why = {}, .moving = true, .cookie = move.cookie, .length = move.length};
  fail(status_of(status));
}

bool Connection::read(const wire::Segment& peer, std::span<const proto::MutableBytes> into, uint64_t cookie) {
  if (failed_ || stopped_) return true;
  size_t slot = start_move(true, peer, cookie);
  if (slot == moves_.size()) return false;
  Move& move = moves_[slot];
  move.count = into.size();
  std::copy(into.begin(), into.end(), move.pieces.begin());
  posted(slot, slp_pull(session_, move.handle, move.offset, move.length, kWindows + slot));
  return true;
}

bool Connection::write(std::span<const proto::ConstBytes> from, const wire::Segment& peer, uint64_t cookie, const uint32_t* notice) {
  if (failed_ || stopped_) return true;
  size_t slot = start_move(false, peer, cookie);
  if (slot == moves_.size()) return false;
  Move& move = moves_[slot];
  move.count = from.size();
  for (size_t i = 0; i < from.size(); ++i) move.pieces[i] = {const_cast<std::byte*>(from[i].data()), from[i].size()};
  if (notice != nullptr) move.notice = *notice;
  if (notice != nullptr && !last_of_its_cookie(move)) {
    move.waiting = true;
    return true;
  }
  posted(slot, slp_push(session_, move.handle, move.offset, move.length, kWindows + slot, notice));
  return true;
}

bool Connection::last_of_its_cookie(const Move& push) const {
  return std::none_of(moves_.begin() + kMoves / 2, moves_.end(), [&](const Move& m) { return &m != &push && m.count > 0 && m.cookie == push.cookie; });
}

// SLP's pushes overtake each other, and a notice says that all bytes of its operation are there.
void Connection::push_waiting() {
  for (size_t slot = kMoves / 2; slot < kMoves; ++slot) {
    Move& move = moves_[slot];
    if (failed_ || stopped_) return;
    if (move.count == 0 || !move.waiting || !last_of_its_cookie(move)) continue;
    move.waiting = false;
    posted(slot, slp_push(session_, move.handle, move.offset, move.length, kWindows + slot, &move.notice));
  }
}

void Connection::cancel_moves(uint64_t cookie) {
  for (size_t slot = 0; slot < kMoves; ++slot) {
    Move& move = moves_[slot];
    if (move.count == 0 || move.cookie != cookie) continue;
    if (!stopped_ && !move.waiting) (void)slp_cancel(session_, kWindows + slot);
    move.count = 0;
  }
  // They may be being delivered: their places stay.
  for (Event& event : events_) {
    if (event.kind == Event::Kind::kMoved && event.cookie == cookie) event.kind = Event::Kind::kNone;
  }
  host_.activate(*this);
}

bool Connection::became_writable() {
  if (failed_ || stopped_ || !(want_room_ || want_window_ || want_pull_ || want_push_)) return false;
  auto idle = [](const Move& m) { return m.count == 0; };
  auto pushes = moves_.begin() + kMoves / 2;
  if (want_room_ && !slp_can_send(session_, kLargestMessage)) return false;
  if (want_window_ && std::none_of(windows_.begin(), windows_.end(), [](const Window& w) { return w.handle == 0; })) return false;
  if (want_pull_ && std::none_of(moves_.begin(), pushes, idle)) return false;
  if (want_push_ && std::none_of(pushes, moves_.end(), idle)) return false;
  want_room_ = want_window_ = want_pull_ = want_push_ = false;
  return true;
}

}  // namespace sluice::l2
