#include <sluice/proto/session.h>

#include <algorithm>
#include <utility>
#include <variant>

#include <sluice/proto/device_transfer.h>
#include <sluice/proto/stream_transfer.h>
#include <sluice/proto/view_transfer.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

// Messages for which the begin or the end of an operation accounts: a WANT, an OFFER, DONE,
// RELEASE, CREDIT and what else an operation needs are fewer.
constexpr uint64_t kMessagesPerChange = 16;

uint64_t random_number(const RandomSource& random) {
  uint64_t number;
  random(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

// Sessions that fall silent together ask one after the other.
SessionOptions with_own_interval(SessionOptions options, const RandomSource& random) {
  if (const auto half = static_cast<uint64_t>((options.ping_interval / 2).count()); half > 0)
    options.ping_interval -= Duration(random_number(random) % half);
  return options;
}

Link& base_of(const AnyLink& link) {
  return std::visit([](const auto& kind) -> Link& { return *kind; }, link);
}

// Each kind of link has its transfer.
std::unique_ptr<Transfer> transfer_over(ViewLink& link, LinkClient& session, TransferParts parts) {
  return std::make_unique<ViewTransfer>(link, session, parts);
}
std::unique_ptr<Transfer> transfer_over(StreamLink& link, LinkClient& session,
                                        TransferParts parts) {
  return std::make_unique<StreamTransfer>(link, session, parts);
}
std::unique_ptr<Transfer> transfer_over(DeviceLink& link, LinkClient& session,
                                        TransferParts parts) {
  return std::make_unique<DeviceTransfer>(link, session, parts);
}

}  // namespace

Session::Session(SessionParts parts)
    : owned_link_(std::move(parts.link)),
      ours_(parts.ours),
      peer_(parts.peer),
      reason_(std::move(parts.reason)),
      connection_{.link = base_of(owned_link_),
                  .host = *parts.host,
                  .session = *this,
                  .end = *this,
                  .traits = base_of(owned_link_).traits(),
                  .arena = std::move(parts.arena),
                  .population = parts.population,
                  .account = parts.account ? std::move(parts.account) : unlimited_peer_account(),
                  .options = with_own_interval(parts.options, parts.random),
                  .peer_features = parts.peer.features},
      credits_(ours_, peer_),
      control_(connection_),
      operations_(connection_, random_number(parts.random)),
      views_(ViewPool::create(&control_, std::move(parts.mailbox))),
      transfer_(std::visit(
          [this](auto& link) {
            return transfer_over(*link, *this,
                                 {connection_, operations_, control_, incoming_, *views_});
          },
          owned_link_)),
      incoming_(connection_, operations_, control_, *transfer_),
      sends_(connection_, operations_, control_, credits_, *transfer_),
      matching_(connection_, operations_, control_, credits_, incoming_,
                random_number(parts.random)),
      requests_(connection_, operations_, control_, sends_, incoming_, *transfer_),
      granted_(connection_, operations_, control_, sends_, incoming_, *transfer_,
               std::move(parts.random)),
      wants_(*this, connection_, operations_, control_, sends_, *transfer_),
      bounce_(connection_, operations_, *transfer_, sends_, matching_, requests_, wants_),
      ends_(connection_, operations_, control_, sends_, incoming_, *transfer_),
      farewell_(connection_, operations_, ends_, control_, sends_),
      liveness_(connection_, control_) {
  operations_.set_keeper(*transfer_);
  liveness_.start();
}

Session::~Session() {
  detach();
  views_->abandon();
}

void Session::detach() {
  // What came before an orderly close can be received until the host goes.
  matching_.clear();
  if (connection_.finished) return;
  connection_.link_dead = true;
  finish_close();
}

// Turns.

size_t Session::progress(Instant) {
  RunningCall call(connection_);
  size_t work = operations_.deliver_ready();
  if (incoming_.has_work() && !connection_.over()) work += incoming_.progress();
  if (liveness_.take_news()) ++work;
  if (!connection_.over()) {
    if (!control_.blocked() && control_.send_kept() && sends_.waiting() && !control_.offers_held())
      sends_.run();
    farewell_.go_on();
    if (transfer_->moving()) work += transfer_->progress();
    // A round without other work sends what was held back to travel together.
    control_.send_releases_after(work);
    control_.flush();
  }
  if (ready_to_finish()) {
    finish_close();
    ++work;
  }
  return work;
}

bool Session::has_work() const {
  if (operations_.any_ready() || ready_to_finish()) return true;
  if (connection_.over()) return false;
  if (control_.due() || incoming_.has_work()) return true;
  if (transfer_->moving() && transfer_->has_work()) return true;
  if (control_.blocked()) return false;
  bool may_start = connection_.state == EndpointState::kConnected && sends_.may_start();
  return may_start || connection_.draining || control_.waiting();
}

bool Session::has_unsent() const {
  if (connection_.over()) return false;
  return control_.waiting() || control_.due() || sends_.may_start() ||
         connection_.link.has_unsent();
}

void Session::handle_timeout(Instant now) {
  RunningCall call(connection_);
  // What ends below may arm a later time, for its fence: that counts like the others.
  connection_.next_timeout = kNever;
  if (connection_.finished) return;
  const OperationEnds::Overdue left =
      ends_.end_overdue(now, matching_.unexpected(), liveness_.peer_silent());
  Instant next = left.next;
  next = std::min(next, farewell_.check(now));
  next = std::min(next, liveness_.check_silence(now, left.waiting));
  next = std::min(next, granted_.expire(now));
  const bool in_use = operations_.table().used() > 0 || views_->outstanding() > 0;
  next = std::min(next, liveness_.check_idle(now, in_use));
  connection_.next_timeout = std::min(connection_.next_timeout, next);
}

// Messages: every value in them was chosen by the peer.

Status Session::handle_tagged_inline(const wire::TaggedInline& message, PayloadReader& payload,
                                     Instant now) {
  RunningCall call(connection_);
  connection_.last_heard = now;
  ++connection_.counters.messages_received;
  if (connection_.over()) [[unlikely]]
    return Status();
  return matching_.on_message(message, payload);
}

Status Session::handle_message(ConstBytes header, PayloadReader& payload, Instant now) {
  wire::TaggedInline tagged;
  if (wire::decode_fast(header, tagged)) return handle_tagged_inline(tagged, payload, now);
  RunningCall call(connection_);
  connection_.last_heard = now;
  ++connection_.counters.messages_received;
  if (connection_.over()) [[unlikely]]
    return Status();
  return dispatch(header, payload);
}

Status Session::dispatch(ConstBytes header, PayloadReader& payload) {
  switch (static_cast<wire::MessageType>(header[0])) {
    case wire::MessageType::kOffer: {
      wire::Offer offer;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, offer));
      return on_offer(offer, payload);
    }
    case wire::MessageType::kWant: {
      wire::Want want;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, want));
      return on_want(want);
    }
    case wire::MessageType::kDone: {
      wire::Done done;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, done));
      return ends_.on_done(done);
    }
    case wire::MessageType::kRelease: {
      wire::Release release;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, release));
      ends_.on_release(release);
      return Status();
    }
    case wire::MessageType::kCancel: {
      wire::Cancel cancel;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, cancel));
      on_cancel(cancel);
      return Status();
    }
    case wire::MessageType::kCredit: {
      wire::Credit credit;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, credit));
      sends_.allow(credit);
      return Status();
    }
    case wire::MessageType::kPing: {
      wire::Ping ping;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, ping));
      liveness_.on_ping(ping);
      return Status();
    }
    case wire::MessageType::kBye: {
      wire::Bye bye;
      SLUICE_RETURN_IF_ERROR(wire::decode(header, bye));
      farewell_.on_bye(bye);
      return Status();
    }
    case wire::MessageType::kHello: return corrupt("HELLO after the handshake");
    case wire::MessageType::kData: return corrupt("DATA on a path that has none");
  }
  return corrupt("unknown message type");
}

Status Session::on_offer(wire::Offer& offer, PayloadReader& payload) {
  SLUICE_RETURN_IF_ERROR(transfer_->check_offer(offer));
  switch (offer.about.kind()) {
    case wire::OfferKind::kTagged: return matching_.on_offer(offer, payload);
    case wire::OfferKind::kSupply:
    case wire::OfferKind::kRead: return requests_.on_answer(offer, payload);
    case wire::OfferKind::kWrite: return granted_.on_write(offer, payload);
  }
  return corrupt("OFFER of unknown kind");
}

Status Session::on_want(const wire::Want& want) {
  if (want.about.kind() == wire::WantKind::kOffer) return transfer_->on_pull(want);
  if (connection_.state != EndpointState::kConnected) {
    control_.send_done(want.id, Code::kUnreachable, 0);
    return Status();
  }
  return want.about.kind() == wire::WantKind::kRead ? granted_.on_read(want) : wants_.on_want(want);
}

void Session::on_cancel(const wire::Cancel& cancel) {
  if (!cancel.offer) return wants_.on_given_up(cancel.id);
  transfer_->offer_withdrawn();
  if (!matching_.withdraw(cancel.id)) ends_.on_offer_withdrawn(cancel.id);
}

bool Session::note_messages(uint32_t messages, Duration took, Instant now) {
  const uint64_t changes = operations_.table().changes();
  const uint64_t of_use = (changes - std::exchange(changes_seen_, changes)) * kMessagesPerChange;
  if (of_use >= messages) return false;
  connection_.account->note_idle_talk(took, now);
  return true;
}

void Session::writable(Instant) {
  control_.writable();
  connection_.activate();
}

void Session::link_down(const Status& why, Instant) {
  RunningCall call(connection_);
  fail_connection(why);
}

Status Session::cancel(OperationId id) {
  SLUICE_RETURN_IF_ERROR(owner_.check());  // also asked for by what a child lets go of
  return ends_.cancel(id);
}

// The end of the connection.

void Session::start_close() {
  if (connection_.state != EndpointState::kConnected) return;
  // The peer hears of views that were dropped a moment ago before the BYE, behind which it reads
  // nothing.
  views_->end_dropped();
  farewell_.start();
}

// An orderly close, so that the peer has read why before the path goes; but it is not waited for
// as long as one that we took.
void Session::turn_away(const Status& why, bool patient) {
  if (connection_.state != EndpointState::kConnected || connection_.link_dead) return;
  connection_.close_reason = why;
  unwanted_ = true;
  if (patient) return farewell_.refuse(why.code());
  farewell_.refuse_at_once(why.code());
  if (!connection_.link_dead) connection_.link.flush();
  abort(why);
}

void Session::abort(const Status& why) {
  if (connection_.state == EndpointState::kClosed || connection_.link_dead) return;
  fail_connection(why);
  // The peer must not wait for our next progress(), which may never come; but a link that
  // is calling us, or is being called, is let go by that.
  if (connection_.depth == 0) drop_link();
}

void Session::fail_connection(const Status& why) {
  if (connection_.link_dead) return;
  connection_.link_dead = true;
  if (connection_.close_reason.ok()) connection_.close_reason = why;
  if (connection_.state == EndpointState::kConnected) connection_.state = EndpointState::kClosing;
  // Before anybody gets memory back. The program gets its own as always, but when it lets go of it
  // nobody else has it.
  if (!transfer_->stop()) {
    ends_.quarantine_reachable();
    granted_.quarantine();
  }
  ends_.fail_all(why);
  connection_.activate();
}

bool Session::ready_to_finish() const {
  if (connection_.finished || operations_.any_ready()) return false;
  if (connection_.link_dead) return true;
  return farewell_.said_by_both() && !control_.waiting() && transfer_->all_fenced();
}

void Session::finish_close() {
  connection_.finished = true;
  connection_.state = EndpointState::kClosed;
  if (connection_.close_reason.ok())
    connection_.close_reason =
        Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the connection was closed");
  drop_link();
  // What lingered was only waiting for the link to let go.
  operations_.for_each([&](Operation& op) { operations_.release(&op); });
  bounce_.clear();
  granted_.clear();
  matching_.drop_offers();
  if (unwanted_) matching_.clear();
  wants_.clear();
  control_.refund();
  transfer_->clear();
  wants_.tell_closed(connection_.close_reason);
}

// Loans go to the link, which knows when the peer cannot read any more.
void Session::drop_link() {
  if (std::exchange(link_dropped_, true)) return;
  ends_.quarantine_loans();
  if (!connection_.link_dead) connection_.link.flush();
  connection_.link.close();
  ticket_.end();
}

// After detach() there is no host to activate it for.
void Session::drop_unexpected() {
  unwanted_ = true;
  if (connection_.state != EndpointState::kClosed || !matching_.has_unexpected()) return;
  matching_.clear();
  connection_.activate();
}

EndpointInfo Session::info() const {
  EndpointInfo info;
  info.path = connection_.traits.properties;
  info.bulk_path = transfer_->bulk_path();
  info.local = connection_.link.local_name();
  info.peer = connection_.link.peer_name();
  info.reason = reason_;
  info.peer_incarnation = peer_.incarnation;
  info.peer_pid = peer_.host == ours_.host ? peer_.pid : 0;
  info.peer_tells_latest = (peer_.features & wire::kFeatureLatest) != 0;
  info.peer_silent = liveness_.peer_silent();
  info.streams = connection_.link.streams();
  return info;
}

EndpointCounters Session::counters() const {
  EndpointCounters counters = connection_.counters;
  counters.views_outstanding = views_->outstanding();
  counters.loans_outstanding = operations_.count_loans();
  return counters;
}

}  // namespace sluice::proto
