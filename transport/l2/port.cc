#include <sluice/l2/port.h>

#include <sys/epoll.h>

#include <array>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/l2/carrier/guard_filter.h>
#include <sluice/l2/counted.h>
#include <sluice/runtime/identity.h>

#include "kernel_compat/slp/slp.h"

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/port";
// What one port takes in a turn: more would keep what is to be acknowledged waiting. One batch, or
// so many of what is received where it belongs, which comes slot by slot.
constexpr int kSlotsPerTurn = 4;
// Frames of all ports together. At 1 us each, the most expensive (acknowledgements with 32 ranges),
// they take half a millisecond.
constexpr uint32_t kFramesPerTurn = 512;
// HELLOs of one port: each makes a session of 40 KiB.
constexpr uint32_t kHellosPerTurn = 16;
// Receives after one in which a frame was not what was expected: losses and new sizes come
// together.
constexpr uint32_t kDistrust = 4;
// What nobody can send through for so long is unplugged. It takes several looks, so that a
// process that was itself asleep does not judge by its first.
constexpr Duration kUnusableLimit = std::chrono::seconds(3);
constexpr Duration kLookInterval = std::chrono::milliseconds(500);
constexpr uint32_t kLeastBadLooks = 3;

Counter interfaces_lost("l2.interfaces_lost");
Counter frames_received("l2.frames_received");
Counter frames_in_place("l2.frames_received_in_place");
Counter receives_astray("l2.receives_astray");  // in which a frame was not what was expected
Counter frames_of_nobody("l2.frames_of_nobody");
Counter refusals_held_back("l2.refusals_held_back");
Counter hellos_unproven("l2.hellos_unproven");
Counter hellos_put_off("l2.hellos_put_off");
Counter turns_cut_short("l2.turns_cut_short");  // frames were left for the next one
Counter predecessors_looked_at("l2.predecessors_looked_at");
Counter hellos_without_secret("l2.hellos_without_secret");
Counter floods("l2.floods");  // against which most frames of strangers are dropped

size_t whole_bytes(const slp_base& base) {
  return SLP_BASE_BYTES + slp_extension_bytes(base.type) + base.payload_bytes +
         ((base.flags & SLP_FLAG_SEALED) != 0 ? SLP_TAG_BYTES : 0);
}

PeerPlace place_of(const Connection& connection) {
  return {connection.place().peer, connection.place().peer_port};
}

uint64_t nanoseconds(Instant t) { return static_cast<uint64_t>(t.time_since_epoch().count()); }

}  // namespace

Result<std::unique_ptr<Port>> Port::open(ContextCore& context, PortOwner& owner,
                                         OpenedCarrier opened) {
  std::unique_ptr<Port> made(new Port(context, owner, std::move(opened)));
  SLUICE_RETURN_IF_ERROR(made->watch());
  return made;
}

Status Port::watch() {
  if (watched_) return Status();
  SLUICE_RETURN_IF_ERROR(context_.watch(carrier_->fd(), EPOLLIN, this));
  watched_ = true;
  return Status();
}

void Port::unwatch() {
  if (std::exchange(watched_, false)) context_.unwatch(carrier_->fd(), this);
}

Port::Port(ContextCore& context, PortOwner& owner, OpenedCarrier opened)
    : context_(context),
      owner_(owner),
      carrier_(std::move(opened.carrier)),
      number_(opened.port),
      last_mtu_(carrier_->mtu()) {}

// progress() looks what has come.
void Port::on_event(uint32_t epoll_events) noexcept {
  if ((epoll_events & EPOLLERR) != 0) carrier_->take_error();
  owner_.heat(*this);
}

Port::~Port() { unwatch(); }

Result<uint32_t> Port::add(Connection& connection) {
  if (connections_.size() == kMostConnections) {
    return Status(Code::kTryAgain, Scope::kOperation, kOrigin,
                  "16384 connections at one port; close some");
  }
  uint32_t number = 0;
  while (number == 0 || connections_.count(number) != 0)
    fill_random(std::as_writable_bytes(std::span(&number, 1)));
  connections_[number] = &connection;
  // One that was there before is over: nobody lives twice in one place. (With a secret: is over
  // as soon as this one is confirmed.)
  places_.add(place_of(connection), connection.peer_nonce(), number);
  guard_is_old_ = true;
  return number;
}

void Port::remove(uint32_t connection) {
  auto gone = connections_.find(connection);
  places_.remove(place_of(*gone->second), gone->second->peer_nonce(), connection);
  if (expecting_ == gone->second) expecting_ = nullptr;
  last_number_ = 0;
  connections_.erase(gone);
}

Connection* Port::find(uint32_t number) const {
  if (number == last_number_ && number != 0) return last_;
  auto found = connections_.find(number);
  if (found == connections_.end()) return nullptr;
  last_number_ = number;
  return last_ = found->second;
}

Connection* Port::find_living(uint32_t number) const {
  Connection* connection = find(number);
  return connection != nullptr && !connection->failed() && !connection->stopped() ? connection
                                                                                  : nullptr;
}

// Sealed: its peer lives, and what it was before at this place does not.
void Port::end_predecessors(const Connection& connection) {
  for (uint32_t number : places_.at(place_of(connection))) {
    predecessors_looked_at.add();
    Connection* other = find_living(number);
    if (other != nullptr && other != &connection) other->restarted();
  }
}

Status Port::set_listener(PortListener* listener, std::shared_ptr<const Secret> secret) {
  listener_ = listener;
  listening_ = std::make_unique<slp_listener>();
  if (secret != nullptr) {
    SLUICE_TRY(cipher_, Cipher::open(secret->bytes()));
    listening_->cipher = Cipher::calls();
    listening_->cipher_user = cipher_.get();
  }
  fill_random(std::as_writable_bytes(std::span(listening_->secret)));
  listening_->port = number_;
  listening_->mtu = carrier_->mtu();
  return Status();
}

// Those who know the number of a connection here are its peers.
void Port::guard() {
  guard_is_old_ = false;
  bool taken = false;
  if (connections_.size() <= kMostGuarded) {
    std::vector<uint32_t> numbers;
    numbers.reserve(connections_.size());
    for (const auto& [number, connection] : connections_) numbers.push_back(number);
    taken = carrier_->guard(numbers, floods_.keeps_one_of());
  }
  if (taken) return;
  floods_.give_up();
  carrier_->unguard();
}

void Port::mind_floods(Instant now) {
  const bool open = floods_.keeps_one_of() == 1;
  if (!open && guard_is_old_) guard();  // once for all connections that began in this turn
  if (!floods_.look(now)) return;
  if (floods_.keeps_one_of() == 1) return carrier_->unguard();
  guard();
  if (!open || floods_.keeps_one_of() == 1) return;
  floods.add();
  floods_told_.log(LogLevel::kWarning,
                   name() +
                       " gets more than 100,000 frames a second that belong to no connection; "
                       "until fewer come most of them are dropped, and new peers get in late");
}

void Port::check(Instant now) {
  mind_floods(now);
  if (connections_.empty() || now - looked_ < kLookInterval) return;
  looked_ = now;
  uint16_t mtu = carrier_->mtu();
  if (mtu < last_mtu_) {
    for (const auto& [number, connection] : connections_) connection->limit_frames(mtu);
  }
  last_mtu_ = mtu;
  Status usable = carrier_->look();
  if (usable.ok()) {
    bad_looks_ = 0;
    return;
  }
  if (bad_looks_++ == 0) unusable_since_ = now;
  if (bad_looks_ < kLeastBadLooks || now - unusable_since_ < kUnusableLimit) return;
  bad_looks_ = 0;
  interfaces_lost.add();
  for (const auto& [number, connection] : connections_) {
    if (!connection->failed()) connection->fail(usable);
  }
}

// Returns how many of them.
size_t Port::hand_out(ReceiveRoom& room, Instant now, proto::TurnBudget& budget) {
  // What lies where it belongs cannot wait: its place is lent for this turn.
  const bool may_wait = room.expected.to == nullptr;
  const size_t first = room.next;
  room.owner = nullptr;
  hellos_left_ = kHellosPerTurn;
  while (room.next < room.frames.size()) {
    if ((!budget.spend() || budget.messages() > kFramesPerTurn) && may_wait) {
      room.owner = this;
      turns_cut_short.add();
      return room.next - first;
    }
    take(room.frames[room.next++], now);
  }
  carrier_->release();
  return room.next - first;
}

size_t Port::resume(ReceiveRoom& room, Instant& now, proto::TurnBudget& budget) {
  now = sluice::now();
  return hand_out(room, now, budget);
}

size_t Port::receive(ReceiveRoom& room, Instant& now, proto::TurnBudget& budget) {
  size_t work = 0;
  for (int slot = 0; slot < kSlotsPerTurn; ++slot) {
    const bool trusting = expecting_ != nullptr && (distrust_ == 0 || --distrust_ == 0);
    room.expected = trusting ? expecting_->expected() : Expected();
    std::span<const FrameIn> frames = carrier_->receive(room);
    if (room.expected.to != nullptr) put_strays_aside(room);
    if (!frames.empty()) now = sluice::now();
    frames_received.add(frames.size());
    room.next = 0;
    work += hand_out(room, now, budget);
    if (room.owner != nullptr || room.drained || room.expected.to == nullptr) break;
  }
  if (work > 0) mind_floods(now);
  return work;
}

// Before any of them is looked at: what is placed could lie over those that have not been yet.
void Port::put_strays_aside(ReceiveRoom& room) {
  bool aside = false;
  size_t in_place = 0;
  for (FrameIn& frame : room.frames) {
    if (frame.rest == nullptr) continue;
    aside = aside || !room.expected.is(frame);
    if (!aside) {
      ++in_place;
      continue;
    }
    const std::array<iovec, 2> parts = {
        {{const_cast<uint8_t*>(frame.data), kDataHeader},
         {const_cast<uint8_t*>(frame.rest), frame.bytes - kDataHeader}}};
    const uint8_t* joined = room.join(parts, frame.bytes);
    frame.rest = nullptr;
    if (joined != nullptr) frame.data = joined;
    if (joined == nullptr) frame.bytes = 0;  // dropped as a runt
  }
  frames_in_place.add(in_place);
  if (!aside && !room.astray) return;
  distrust_ = kDistrust;
  receives_astray.add();
}

void Port::take(const FrameIn& in, Instant now) {
  slp_frame frame{.data = in.data,
                  .present = in.present(),
                  .bytes = in.bytes,
                  .ce = in.ce,
                  .context = const_cast<uint8_t*>(in.rest)};
  slp_base base;
  // What the bytes alone tell.
  slp_drop drop = slp_decode_base(in.data, in.present(), in.bytes, &base);
  if (drop == SLP_TAKEN && !carrier_->pads() && in.bytes != whole_bytes(base))
    drop = SLP_DROP_LENGTH;
  if (drop != SLP_TAKEN) {
    floods_.note_stranger();
    return count_drop(drop);
  }
  if (base.type == SLP_HELLO) return take_hello(in, frame, base, now);
  // A NACK to a numbered frame names the connection of the one who sends it.
  bool by_place = base.type == SLP_NACK && base.connection == 0;
  Connection* connection =
      by_place ? find_living(places_.latest({*in.from, base.source_port})) : find(base.connection);
  if (connection != nullptr && connection->place().peer == *in.from &&
      connection->on_frame(frame, base, now)) {
    if (connection->place().secret != nullptr && connection->became_confirmed())
      end_predecessors(*connection);
    return;
  }
  floods_.note_stranger();
  frames_of_nobody.add();
  refuse(in, frame, now);
}

void Port::take_hello(const FrameIn& in, const slp_frame& frame, const slp_base& base,
                      Instant now) {
  const PeerPlace place{*in.from, base.source_port};
  slp_hello hello;
  slp_decode_hello(in.data + SLP_BASE_BYTES, &hello);
  // Its answer was lost.
  if (Connection* same = find_living(places_.find(place, hello.nonce)))
    return (void)same->on_frame(frame, base, now);
  if (listener_ == nullptr) return refuse(in, frame, now);
  slp_meeting met;
  switch (slp_listen(listening_.get(), nanoseconds(now), in.from->bytes.data(), in.from->size,
                     &frame, &met)) {
    case SLP_LISTEN_DROP: floods_.note_stranger(); return count_drop(met.why);
    case SLP_LISTEN_REPLY:
      floods_.note_stranger();
      (met.why == SLP_TAKEN ? hellos_unproven : hellos_without_secret).add();
      return reply(in, met.reply, met.reply_bytes);
    case SLP_LISTEN_ACCEPT: break;
  }
  // A connection costs more than most frames; a caller that is not served asks again.
  if (hellos_left_ == 0) return hellos_put_off.add();
  --hellos_left_;
  // With a secret this may be an old HELLO: the new connection must be confirmed first, and
  // until then there may be several.
  Connection* known = cipher_ == nullptr ? find_living(places_.latest(place)) : nullptr;
  if (known != nullptr) known->restarted();
  if (listener_->on_hello(*in.from, met.peer_port, met.hello)) return;
  uint8_t bytes[SLP_MAX_HEADER];
  reply(in, bytes, slp_refuse(&frame, SLP_REFUSED, bytes));
}

void Port::refuse(const FrameIn& in, const slp_frame& frame, Instant now) {
  uint8_t bytes[SLP_MAX_HEADER];
  uint32_t count = slp_no_session(&frame, bytes);
  if (count == 0) return;
  if (!refusals_.take(now)) return refusals_held_back.add();
  reply(in, bytes, count);
}

void Port::reply(const FrameIn& in, const uint8_t* bytes, size_t count) {
  FrameOut frame;
  frame.to = in.from;
  frame.pieces[0] = {const_cast<uint8_t*>(bytes), count};
  frame.count = 1;
  carrier_->send({&frame, 1});
}

}  // namespace sluice::l2
