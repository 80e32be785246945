#include <sluice/grpc/connection.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>

namespace sluice::grpc {
namespace {

constexpr const char* kOrigin = "grpc/connection";
constexpr Tag kFrames = 1;
constexpr char kPayloadKey[] = "sluice.grpc";
// Receives posted at once, so 1 MiB for each connection: while a packet is handled, others come.
constexpr int kReceives = 16;

Counter frames_refused("grpc.frames_refused");
Counter payloads_lent("grpc.payloads_lent");
Counter payloads_fetched("grpc.payloads_fetched");

// In user_data: what ended, and its number; of a send its bytes.
enum class Ended : uint64_t { kSend = 0, kSupply = 1, kReceive = 2, kFetch = 3 };
uint64_t marked(Ended what, uint64_t number) { return number << 2 | static_cast<uint64_t>(what); }

}  // namespace

Connection::Connection(Context& context, Endpoint endpoint, Owner& owner)
    : context_(context), endpoint_(std::move(endpoint)), owner_(owner) {
  context_.add_hook(this);
  endpoint_.core().set_want_handler(this);
  for (int i = 0; i < kReceives && open_; ++i) {
    Result<Buffer> room = context_.arena().allocate(kPacketBytes, {.for_receive = true});
    if (room.ok()) {
      post_receive(std::move(*room));
    } else {
      end(room.status());
    }
  }
}

Connection::~Connection() {
  context_.remove_hook(this);
  endpoint_.core().set_want_handler(nullptr);
}

void Connection::send(const Frame& frame) {
  if (!open_) return;
  append(unsent_, frame);
  frame_ends_.push_back(unsent_.size());
}

uint64_t Connection::lend(Tensor tensor) {
  payloads_lent.add();
  lent_.emplace(next_payload_, std::move(tensor));
  return next_payload_++;
}

void Connection::fetch(uint64_t payload, Fetched done) {
  WantOptions want;
  want.key_id = 0;
  want.key = kPayloadKey;
  want.step = payload;
  PostOptions options;
  options.sink = this;
  options.user_data = marked(Ended::kFetch, next_fetch_);
  options.deadline = kNever;
  Result<OperationId> posted = endpoint_.core().post_want(want, options);
  if (!posted.ok()) return done(posted.status());
  ++operations_;
  fetches_.emplace(next_fetch_++, std::move(done));
}

void Connection::refuse(const char* why) {
  frames_refused.add();
  end(Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, why));
}

void Connection::end(const Status& why) {
  if (!open_) return;
  open_ = false;
  why_ = why;
}

void Connection::post_receive(Buffer&& buffer) {
  PostOptions options;
  options.sink = this;
  options.user_data = marked(Ended::kReceive, receives_posted_);
  options.deadline = kNever;
  Result<OperationId> posted = endpoint_.receive({.tag = kFrames}, std::move(buffer), options);
  if (!posted.ok()) return end(posted.status());
  ++operations_;
  ++receives_posted_;
}

void Connection::on_completion(Completion&& completion) noexcept {
  const uint64_t number = completion.user_data >> 2;
  --operations_;
  switch (static_cast<Ended>(completion.user_data & 3)) {
    case Ended::kSend:
      --sends_out_;
      blocked_ = false;
      under_way_ -= number;
      if (!completion.status.ok()) end(completion.status);
      while (open_ && !paused_.empty() && may_read()) {
        Buffer room = std::move(paused_.back());
        paused_.pop_back();
        post_receive(std::move(room));
      }
      return;
    case Ended::kSupply: return;
    case Ended::kFetch: {
      auto fetch = fetches_.extract(number);
      if (fetch.empty()) return;
      payloads_fetched.add();
      if (completion.status.ok()) {
        fetch.mapped()(std::move(completion.tensor));
      } else {
        fetch.mapped()(completion.status);
      }
      return;
    }
    case Ended::kReceive: break;
  }
  if (!open_) return;
  early_.emplace(number, std::move(completion));
  for (auto next = early_.begin();
       open_ && next != early_.end() && next->first == receives_handled_; next = early_.begin()) {
    Completion packet = std::move(next->second);
    early_.erase(next);
    ++receives_handled_;
    on_packet(std::move(packet));
  }
}

void Connection::on_packet(Completion&& completion) {
  if (!completion.status.ok()) return end(completion.status);
  Buffer buffer = std::move(completion.buffers[0]);
  std::span<const std::byte> rest =
      buffer.bytes().first(std::min<uint64_t>(completion.receipt.bytes, buffer.size_bytes()));
  while (open_ && !rest.empty()) {
    std::optional<Frame> frame = take_frame(rest);
    if (!frame) return refuse("the peer sent a frame that breaks the format of the gRPC bridge");
    owner_.on_frame(*frame);
  }
  if (open_) owner_.on_packet_end();
  if (!open_) return;
  if (!may_read()) return paused_.push_back(std::move(buffer));
  post_receive(std::move(buffer));
}

void Connection::on_want(EndpointCore& endpoint, const WantRequest& request) noexcept {
  auto lent = lent_.extract(request.step);
  if (lent.empty() || request.into) {
    (void)endpoint.refuse_want(request.token, Code::kInvalidArgument);
    return;
  }
  PostOptions options;
  options.sink = this;
  options.user_data = marked(Ended::kSupply, 0);
  options.deadline = kNever;
  if (endpoint.post_supply(request.token, lent.mapped(), options).ok()) {
    ++operations_;
  } else {
    (void)endpoint.refuse_want(request.token, Code::kTryAgain);
  }
}

bool Connection::on_want_cancelled(EndpointCore&, uint64_t) noexcept { return false; }

void Connection::on_endpoint_closed(EndpointCore&, const Status& why) noexcept { end(why); }

size_t Connection::progress(Instant) {
  if (open_ && !blocked_ && !frame_ends_.empty()) {
    flush();
    return 1;
  }
  if (open_ || told_) return 0;
  if (!std::exchange(aborted_, true)) {
    lent_.clear();
    endpoint_.core().abort(why_.ok() ? Status(Code::kCancelled, Scope::kEndpoint, kOrigin) : why_);
    return 1;
  }
  // Every operation ends into *this: the owner may destroy it only after the last.
  if (operations_ > 0) return 0;
  told_ = true;
  owner_.on_closed(why_);  // may end *this
  return 1;
}

Instant Connection::next_timeout() { return open_ || aborted_ ? kNever : context_.now(); }

void Connection::flush() {
  size_t from = 0;
  while (!frame_ends_.empty()) {
    size_t frames = 0, end_of_packet = from;
    while (frames < frame_ends_.size() && frame_ends_[frames] - from <= kPacketBytes)
      end_of_packet = frame_ends_[frames++];
    Result<Buffer> room = context_.arena().allocate(end_of_packet - from);
    if (!room.ok()) return end(room.status());
    std::memcpy(room->data(), unsent_.data() + from, end_of_packet - from);
    PostOptions options;
    options.sink = this;
    options.user_data = marked(Ended::kSend, end_of_packet - from);
    options.deadline = kNever;
    Result<OperationId> posted = endpoint_.send(kFrames, std::move(*room).freeze(), options);
    if (!posted.ok() && posted.code() == Code::kTryAgain && sends_out_ > 0) {
      blocked_ = true;
      break;
    }
    if (!posted.ok()) return end(posted.status());
    ++operations_;
    ++sends_out_;
    under_way_ += end_of_packet - from;
    frame_ends_.erase(frame_ends_.begin(), frame_ends_.begin() + static_cast<ptrdiff_t>(frames));
    from = end_of_packet;
  }
  unsent_.erase(0, from);
  for (size_t& end_of_frame : frame_ends_) end_of_frame -= from;
}

}  // namespace sluice::grpc
