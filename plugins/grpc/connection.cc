#include <sluice/grpc/connection.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>

namespace sluice::grpc {
namespace {

constexpr const char* kOrigin = "grpc/connection";
constexpr Tag kFrames = 1;
// What is asked of a lent payload: its bytes, or that it is kept no longer. The second is refused
// when it is done. It is no frame: a peer that reads no frames for now has to hear it.
constexpr uint32_t kTakes = 0, kDrops = 1;
constexpr const char* kKeys[] = {"sluice.grpc", "sluice.grpc.drop"};
// Receives posted at once, so 1 MiB for each connection: while a packet is handled, others come.
constexpr int kReceives = 16;
// Between two tries to have payloads dropped while a table of operations is full, and how many may
// wait for that. An honest peer's answers make room.
constexpr Duration kDropPause = std::chrono::milliseconds(1);
constexpr size_t kMostToDrop = 1 << 16;

Counter frames_refused("grpc.frames_refused");
Counter payloads_lent("grpc.payloads_lent");
Counter payloads_dropped("grpc.payloads_dropped");
Counter payloads_fetched("grpc.payloads_fetched");

// In user_data: what ended, and its number; of a send its bytes.
enum class Ended : uint64_t { kSend = 0, kSupply = 1, kReceive = 2, kFetch = 3, kDrop = 4 };
constexpr uint64_t kKindBits = 3;
uint64_t marked(Ended what, uint64_t number) {
  return number << kKindBits | static_cast<uint64_t>(what);
}

WantOptions want_of(uint32_t what, uint64_t payload) {
  WantOptions want;
  want.key_id = what;
  want.key = kKeys[what];
  want.step = payload;
  return want;
}

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
  lent_bytes_ += tensor.size_bytes();
  lent_.emplace(next_payload_, std::move(tensor));
  return next_payload_++;
}

void Connection::fetch(uint64_t payload, Fetched done) {
  WantOptions want = want_of(kTakes, payload);
  PostOptions options;
  options.sink = this;
  options.user_data = marked(Ended::kFetch, next_fetch_);
  options.deadline = kNever;
  Result<OperationId> posted = endpoint_.core().post_want(want, options);
  if (!posted.ok()) {
    to_drop_.push_back(payload);
    return done(posted.status());
  }
  ++operations_;
  fetches_.emplace(next_fetch_++, std::move(done));
}

void Connection::drop_parts(const Frame& message) {
  for (const MessagePart& part : message.parts) {
    if (part.payload != 0) to_drop_.push_back(part.payload);
  }
  send_drops();
  if (to_drop_.size() > kMostToDrop)
    refuse("the peer sends messages of calls that are over, and takes none back");
}

void Connection::send_drops() {
  while (open_ && !to_drop_.empty()) {
    WantOptions want = want_of(kDrops, to_drop_.back());
    PostOptions options;
    options.sink = this;
    options.user_data = marked(Ended::kDrop, to_drop_.back());
    options.deadline = kNever;
    if (!endpoint_.core().post_want(want, options).ok()) return;
    ++operations_;
    to_drop_.pop_back();
  }
}

Tensor Connection::take_lent(uint64_t payload) {
  auto lent = lent_.extract(payload);
  if (lent.empty()) return Tensor();
  lent_bytes_ -= lent.mapped().size_bytes();
  read_on();
  return std::move(lent.mapped());
}

void Connection::read_on() {
  while (open_ && !paused_.empty() && may_read()) {
    Buffer room = std::move(paused_.back());
    paused_.pop_back();
    post_receive(std::move(room));
  }
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
  const uint64_t number = completion.user_data >> kKindBits;
  --operations_;
  switch (static_cast<Ended>(completion.user_data & ((1 << kKindBits) - 1))) {
    case Ended::kSend:
      --sends_out_;
      blocked_ = false;
      under_way_ -= number;
      if (!completion.status.ok()) end(completion.status);
      return read_on();
    case Ended::kSupply: return;
    case Ended::kDrop:
      if (completion.status == Code::kTryAgain) to_drop_.push_back(number);
      return;
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
  const Tensor lent = take_lent(request.step);
  if (lent && request.key_id == kDrops) payloads_dropped.add();
  if (!lent || request.into || request.key_id != kTakes) {
    (void)endpoint.refuse_want(request.token, Code::kInvalidArgument);
    return;
  }
  PostOptions options;
  options.sink = this;
  options.user_data = marked(Ended::kSupply, 0);
  options.deadline = kNever;
  if (endpoint.post_supply(request.token, lent, options).ok()) {
    ++operations_;
  } else {
    (void)endpoint.refuse_want(request.token, Code::kTryAgain);
  }
}

bool Connection::on_want_cancelled(EndpointCore&, uint64_t) noexcept { return false; }

void Connection::on_endpoint_closed(EndpointCore&, const Status& why) noexcept { end(why); }

size_t Connection::progress(Instant) {
  send_drops();
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

Instant Connection::next_timeout() {
  if (open_ && !to_drop_.empty()) return context_.now() + kDropPause;
  return open_ || aborted_ ? kNever : context_.now();
}

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
