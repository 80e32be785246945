#include "tools/proxy/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace sluice::tools::proxy {
namespace {

constexpr const char* kOrigin = "tools/proxy";
constexpr Tag kTag = kMagic;
constexpr std::string_view kKey = "sluice.proxy";
constexpr size_t kMessageBytes = kFrameBytes + kMostInline;
// Pieces asked for at once: a half of what may wait at the peer, whose table of operations has
// 4,096 places (proto/session.h).
constexpr size_t kMostAsked = 1024;
// Frames that wait because the peer does not read. Sockets are not read meanwhile, so they are
// credits and ends: a few for each connection.
constexpr size_t kMostOutbox = 65'536;
constexpr Duration kHelloTime = std::chrono::seconds(5);
// How long an end waits for the peer to take what was sent before.
constexpr Duration kFlushTime = std::chrono::seconds(1);
// Memory that was short is asked for again after this.
constexpr Duration kRetry = std::chrono::milliseconds(5);

Status lie(const std::string& what) {
  return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, what);
}

}  // namespace

Link::Link(Context& context, Endpoint endpoint, Totals& totals, const LinkOptions& options)
    : context_(context),
      endpoint_(std::move(endpoint)),
      totals_(totals),
      options_(options),
      hello_by_(after(context.refresh_now(), kHelloTime)) {
  ++totals_.links;
}

Link::~Link() = default;

Status Link::start() {
  endpoint_.core().set_want_handler(this);
  for (uint64_t slot = 0; slot < kReceives; ++slot) {
    SLUICE_TRY(Buffer buffer, context_.allocate({static_cast<int64_t>(kMessageBytes)}, uint8,
                                                {.for_receive = true}));
    SLUICE_RETURN_IF_ERROR(post_receive(slot, std::move(buffer)));
  }
  send({.kind = FrameKind::kHello, .detail = kVersion, .stream = kMagic, .value = options_.window});
  return failure_;
}

// Later calls come from within progress(), so this only notes it.
void Link::fail(const Status& why) {
  if (failed()) return;
  failure_ = why;
  if (why == Code::kCorrupt) ++totals_.lies;
}

Status Link::post_receive(uint64_t slot, Buffer buffer) {
  return internal::status_of(endpoint_.receive(
      {.tag = kTag}, std::move(buffer), {.sink = this, .user_data = slot, .deadline = kNever}));
}

Stream* Link::find(uint64_t stream) {
  auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second.get();
}

void Link::open(Descriptor socket) {
  const uint64_t id = ++last_stream_;
  auto stream = std::make_unique<Stream>(static_cast<Carrier&>(*this), id, windows());
  Stream& made = *stream;
  streams_.emplace(id, std::move(stream));
  send({.kind = FrameKind::kOpen, .stream = id});
  made.take(std::move(socket));
}

void Link::send(const Frame& frame) {
  Result<Buffer> buffer =
      context_.allocate({static_cast<int64_t>(kFrameBytes)}, uint8, {.for_receive = true});
  if (!buffer.ok()) return fail(buffer.status());
  encode(frame, buffer->data());
  transmit(std::move(*buffer).freeze());
}

void Link::send_data(uint64_t stream, Tensor message) {
  const auto length = static_cast<uint32_t>(message.size_bytes() - kFrameBytes);
  // Nobody else has it yet.
  encode({.kind = FrameKind::kData, .length = length, .stream = stream},
         const_cast<std::byte*>(message.data()));
  transmit(std::move(message));
}

void Link::transmit(Tensor message) {
  if (failed()) return;
  if (outbox_.empty()) {
    Status sent = internal::status_of(endpoint_.send(kTag, message, {.deadline = kNever}));
    if (sent.ok()) return;
    if (!(sent == Code::kTryAgain)) return fail(sent);
  }
  if (outbox_.size() >= kMostOutbox)
    return fail(Status(Code::kTimedOut, Scope::kEndpoint, kOrigin,
                       "the other proxy does not read what it is told"));
  outbox_.push_back(std::move(message));
}

void Link::announce(uint64_t stream, Tensor piece) {
  const uint64_t id = ++last_piece_;
  const auto length = static_cast<uint32_t>(piece.size_bytes());
  pieces_.emplace(id, Piece{.stream = stream, .tensor = std::move(piece)});
  send({.kind = FrameKind::kPiece, .length = length, .stream = stream, .value = id});
}

void Link::ask(uint64_t stream, uint64_t piece) {
  to_ask_.push_back({stream, piece});
  post_wants();
}

void Link::post_wants() {
  while (!to_ask_.empty() && asked_.size() < kMostAsked && !failed()) {
    const Asked next = to_ask_.front();
    if (Stream* stream = find(next.stream); stream == nullptr || stream->is_over()) {
      to_ask_.pop_front();
      continue;
    }
    WantOptions want;
    if (!key_named_) want.key = kKey;
    want.step = next.piece;
    Status posted = internal::status_of(endpoint_.core().post_want(
        want, {.sink = this, .user_data = next.piece, .deadline = kNever}));
    if (posted == Code::kTryAgain) return;  // the next turn
    if (!posted.ok()) return fail(posted);
    key_named_ = true;
    asked_.emplace(next.piece, next.stream);
    to_ask_.pop_front();
  }
}

void Link::over(uint64_t stream) {
  over_.push_back(stream);
  std::erase_if(pieces_, [&](const auto& each) {
    return each.second.stream == stream && !each.second.supplied;
  });
}

void Link::call_after(uint64_t stream, Duration delay) {
  calls_.push_back({after(context_.now(), delay), stream});
}

void Link::unreachable(const Status& why) {
  ++totals_.refused_service;
  unreachable_ = why.detail();
}

// When the next is to be called.
Instant Link::call_streams(Instant now) {
  Instant next = kNever;
  for (const Call& call : std::exchange(calls_, {})) {
    Stream* stream = find(call.stream);
    if (stream == nullptr || stream->is_over()) continue;
    now < call.at ? calls_.push_back(call) : stream->on_time();
  }
  for (const Call& call : calls_) next = std::min(next, call.at);
  return next;
}

void Link::on_completion(Completion&& completion) noexcept {
  switch (completion.kind) {
    case OperationKind::kReceive: return on_message(std::move(completion));
    case OperationKind::kWant: return on_piece_here(std::move(completion));
    case OperationKind::kSupply: return on_piece_gone(completion);
    default: return;
  }
}

// Receives may end in another order than they were matched in, which is the order in which the
// messages were sent.
void Link::on_message(Completion&& completion) {
  if (failed()) return;
  if (completion.status == Code::kInvalidArgument)
    return fail(lie("a message longer than any frame"));
  if (!completion.status.ok()) return fail(completion.status);
  Received& slot = received_[completion.user_data];
  slot.buffer = std::move(completion.buffers[0]);
  slot.bytes = completion.receipt.bytes;
  slot.here = true;
  while (received_[next_message_ % kReceives].here) {
    const uint64_t index = next_message_++ % kReceives;
    Received& next = received_[index];
    next.here = false;
    Status status = handle(next.buffer.bytes().first(next.bytes));
    if (status.ok()) status = post_receive(index, std::move(next.buffer));
    if (!status.ok()) return fail(status);
    if (failed()) return;
  }
}

Status Link::handle(std::span<const std::byte> message) {
  SLUICE_TRY(Frame frame, decode(message));
  if (frame.kind == FrameKind::kHello) {
    if (peer_window_ != 0) return lie("a second HELLO");
    peer_window_ = frame.value;
    return Status();
  }
  if (peer_window_ == 0) return lie("another frame before HELLO");
  if (frame.kind == FrameKind::kOpen) return on_open(frame.stream);
  return handle_stream(frame, message.subspan(kFrameBytes));
}

Status Link::on_open(uint64_t id) {
  if (options_.service.empty()) return lie("a stream opened towards a proxy without a service");
  if (id != last_stream_ + 1) return lie("a stream out of its turn");
  last_stream_ = id;
  if (ending_ || totals_.open >= options_.most_connections) {
    ++(ending_ ? totals_.refused_ending : totals_.refused_many);
    const ResetReason why = ending_ ? ResetReason::kEnding : ResetReason::kTooMany;
    send({.kind = FrameKind::kReset, .detail = static_cast<uint8_t>(why), .stream = id});
    return Status();
  }
  auto stream = std::make_unique<Stream>(static_cast<Carrier&>(*this), id, windows());
  Stream& made = *stream;
  streams_.emplace(id, std::move(stream));
  made.dial(options_.service);
  return Status();
}

Status Link::handle_stream(const Frame& frame, std::span<const std::byte> data) {
  if (frame.stream > last_stream_) return lie("a frame of a stream that was not opened");
  if (frame.kind == FrameKind::kPiece && frame.value != ++last_peer_piece_)
    return lie("a piece out of its turn");
  Stream* stream = find(frame.stream);
  // Sent before the peer knew that the stream is over.
  if (stream == nullptr || stream->is_over()) return Status();
  if (frame.kind == FrameKind::kReset) {
    const auto reason = static_cast<ResetReason>(frame.detail);
    if (reason == ResetReason::kRefused && options_.service.empty()) ++totals_.refused_service;
    if (reason == ResetReason::kTooMany) ++totals_.refused_many;
    if (reason != ResetReason::kSocket) refusal_ = to_string(reason);
  }
  return stream->on_frame(frame, data);
}

void Link::on_piece_here(Completion&& completion) {
  auto asked = asked_.find(completion.user_data);
  if (asked == asked_.end()) return;
  const Asked which{asked->second, asked->first};
  asked_.erase(asked);
  Stream* stream = find(which.stream);
  if (stream == nullptr || stream->is_over() || failed()) return;
  const Code code = completion.status.code();
  if (code == Code::kNoMemory || code == Code::kTryAgain) {
    to_ask_.push_back(which);
    return;
  }
  if (code == Code::kCancelled) return;  // a RESET of its stream is on its way
  if (!completion.status.ok()) return fail(completion.status);
  ++totals_.pieces;
  totals_.piece_bytes += completion.receipt.bytes;
  totals_.copied_bytes += completion.receipt.copied_bytes;
  totals_.kernel_copied_bytes += completion.receipt.kernel_copied_bytes;
  if (!stream->deliver(which.piece, std::move(completion.tensor)))
    fail(lie("a piece of another length than was announced"));
}

// The peer asks for a piece that it was told of.
void Link::on_want(EndpointCore& endpoint, const WantRequest& request) noexcept {
  auto piece = pieces_.find(request.step);
  const bool known = piece != pieces_.end() && !piece->second.supplied;
  if (request.into || request.key_id != 0 || request.step == 0 || request.step > last_piece_)
    fail(lie("a piece asked for that was not announced"));
  if (!known || failed()) {
    (void)endpoint.refuse_want(request.token, Code::kCancelled);
    return;
  }
  Status posted = internal::status_of(
      endpoint.post_supply(request.token, piece->second.tensor,
                           {.sink = this, .user_data = request.step, .deadline = kNever}));
  if (posted.ok()) {
    piece->second.supplied = true;
    return;
  }
  (void)endpoint.refuse_want(request.token, posted.code());
}

bool Link::on_want_cancelled(EndpointCore&, uint64_t) noexcept { return false; }

void Link::on_piece_gone(const Completion& completion) {
  auto piece = pieces_.find(completion.user_data);
  if (piece == pieces_.end()) return;
  Stream* stream = find(piece->second.stream);
  if (stream != nullptr && stream->is_over()) stream = nullptr;
  if (stream != nullptr && !completion.status.ok()) {
    piece->second.supplied = false;  // the peer had no room, and asks again
    return;
  }
  pieces_.erase(piece);
  if (stream != nullptr) stream->piece_released();
}

void Link::on_endpoint_closed(EndpointCore&, const Status& why) noexcept {
  fail(Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, std::string(why.detail())));
}

Instant Link::turn(Instant now) {
  if (failed()) return now;
  while (!outbox_.empty()) {
    Status sent = internal::status_of(endpoint_.send(kTag, outbox_.front(), {.deadline = kNever}));
    if (sent == Code::kTryAgain) break;
    if (!sent.ok()) {
      fail(sent);
      return now;
    }
    outbox_.pop_front();
  }
  post_wants();
  if (outbox_.empty()) {
    for (uint64_t id : std::exchange(waiting_, {})) {
      if (Stream* stream = find(id)) stream->resume();
    }
  }
  const Instant next_call = call_streams(now);
  for (uint64_t id : std::exchange(over_, {})) streams_.erase(id);
  if (peer_window_ == 0) {
    if (now >= hello_by_)
      fail(lie("what listens there says no HELLO of a proxy within 5 s; is it `sluice proxy`?"));
    return hello_by_;
  }
  const bool again = !waiting_.empty() || !to_ask_.empty() || !outbox_.empty();
  return again ? std::min(next_call, after(now, kRetry)) : next_call;
}

void Link::end_streams(ResetReason reason) {
  for (auto& [id, stream] : streams_) stream->end(reason, true);
}

// What was sent for streams that are over is still on its way to the peer.
bool Link::is_flushed() {
  (void)turn(context_.now());
  const EndpointCore& core = endpoint_.core();
  const EndpointCounters counters = core.counters();
  return failed() || core.state() != EndpointState::kConnected ||
         (outbox_.empty() && pieces_.empty() &&
          counters.posted - counters.completed <= kReceives + asked_.size());
}

void Link::start_close() {
  const bool orderly = !failed() || failure_ == Code::kCorrupt;
  EndpointCore& core = endpoint_.core();
  fail(Status(Code::kCancelled, Scope::kEndpoint, kOrigin, "this proxy ends"));
  core.set_want_handler(nullptr);
  orderly ? core.start_close() : core.abort(failure_);
}

void Link::abort() { endpoint_.core().abort(failure_); }

bool Link::is_settled() const {
  const EndpointCore& core = endpoint_.core();
  const EndpointCounters counters = core.counters();
  return core.state() == EndpointState::kClosed && counters.posted == counters.completed;
}

void finish(Context& context, std::span<Link* const> links, ResetReason reason, Instant deadline) {
  for (Link* link : links) link->end_streams(reason);
  // Each has its turn, also behind one whose peer does not read.
  auto flushed = [&] {
    return std::count_if(links.begin(), links.end(),
                         [](Link* link) { return link->is_flushed(); }) == std::ssize(links);
  };
  (void)context.wait_until(flushed, std::min(deadline, after(context.refresh_now(), kFlushTime)));
  for (Link* link : links) link->start_close();
  auto settled = [&] {
    return std::all_of(links.begin(), links.end(), [](Link* link) { return link->is_settled(); });
  };
  if (context.wait_until(settled, deadline).ok()) return;
  for (Link* link : links) {
    if (!link->is_settled()) link->abort();
  }
  (void)context.wait_until(settled, after(context.refresh_now(), std::chrono::seconds(1)));
}

}  // namespace sluice::tools::proxy
