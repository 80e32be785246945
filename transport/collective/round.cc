#include "transport/collective/round.h"

#include <algorithm>
#include <bit>

namespace sluice::internal {
namespace {

constexpr const char* kOrigin = "collective/round";
constexpr uint32_t kMagic = 0x47434C53;  // "SLCG"
static_assert(std::endian::native == std::endian::little, "headers are written as they lie here");

struct Header {
  uint32_t magic = kMagic;
  uint8_t kind = 0, op = 0, code = 0, bits = 0;
  uint32_t root = 0;
  uint32_t flags = 0;
  uint64_t bytes = 0;
  uint64_t payload_bytes = 0;
};
static_assert(sizeof(Header) == kHeaderBytes);

Header header_of(const Call& call, const Message& message) {
  return {.kind = static_cast<uint8_t>(call.kind),
          .op = static_cast<uint8_t>(call.op),
          .code = static_cast<uint8_t>(call.dtype.code),
          .bits = call.dtype.bits,
          .root = static_cast<uint32_t>(call.root),
          .flags = message.flags | call.history << kFlagBits,
          .bytes = call.bytes,
          .payload_bytes = message.payload_bytes};
}

// What a peer says and we do not, or nothing.
std::string difference(const Header& theirs, const Header& ours) {
  auto differ = [](const char* what, uint64_t their, uint64_t our) {
    return std::string(what) + " " + std::to_string(their) + " there, " + std::to_string(our) +
           " here";
  };
  if (theirs.magic != ours.magic) return "its message is no message of a group";
  if (theirs.kind != ours.kind)
    return "it calls " +
           (theirs.kind <= static_cast<uint8_t>(Kind::kAlltoallv)
                ? std::string(to_string(static_cast<Kind>(theirs.kind)))
                : "an unknown collective") +
           " there";
  if (theirs.code != ours.code || theirs.bits != ours.bits)
    return "dtype " + DataType{static_cast<TypeCode>(theirs.code), theirs.bits, 1}.to_string() +
           " there, " + DataType{static_cast<TypeCode>(ours.code), ours.bits, 1}.to_string() +
           " here";
  if (theirs.op != ours.op) return differ("reduction", theirs.op, ours.op);
  if (theirs.root != ours.root) return differ("root", theirs.root, ours.root);
  if (theirs.bytes != ours.bytes) return differ("bytes", theirs.bytes, ours.bytes);
  if (theirs.payload_bytes != ours.payload_bytes)
    return differ("bytes for this rank", theirs.payload_bytes, ours.payload_bytes);
  if (theirs.flags >> kFlagBits != ours.flags >> kFlagBits)
    return "an earlier collective had another kind, dtype, reduction, root or size there";
  return {};
}

constexpr uint64_t user_data_of(size_t index, bool bulk) { return index << 1 | (bulk ? 1 : 0); }

}  // namespace

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::kBarrier: return "barrier";
    case Kind::kAllreduce: return "allreduce";
    case Kind::kReduce: return "reduce";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kAllgather: return "allgather";
    case Kind::kAlltoall: return "alltoall";
    case Kind::kAlltoallv: return "alltoallv";
  }
  return "collective";
}

uint64_t digest_with(uint64_t before, const Call& call) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;  // 2^64 by the golden ratio
  uint64_t digest = before;
  for (uint64_t part : {static_cast<uint64_t>(call.kind), static_cast<uint64_t>(call.op),
                        static_cast<uint64_t>(call.dtype.code), uint64_t{call.dtype.bits},
                        static_cast<uint64_t>(call.root), call.bytes}) {
    digest = (digest ^ part) * kFactor;
    digest ^= digest >> 32;
  }
  return digest;
}

Result<Tensor> RoundState::header(const Message& message) {
  if (!header_ || header_payload_ != message.payload_bytes || header_flags_ != message.flags) {
    SLUICE_TRY(Buffer room, mesh_.context().arena().allocate(kHeaderBytes));
    const Header header = header_of(call_, message);
    std::memcpy(room.data(), &header, sizeof header);
    header_ = std::move(room).freeze();
    header_payload_ = message.payload_bytes;
    header_flags_ = message.flags;
  }
  return header_;
}

Result<OperationId> RoundState::post_part(size_t index, Message& message, bool bulk) {
  Endpoint& peer = mesh_.peer(message.peer);
  const PostOptions options{
      .sink = this, .user_data = user_data_of(index, bulk), .deadline = call_.deadline};
  const Tag tag =
      lane_tag(bulk ? Lane::kBulk : Lane::kControl, static_cast<uint32_t>(call_.number));
  if (bulk) {
    if (!message.receives) return peer.send(tag, message.payload.as_tensor(), options);
    return peer.receive({.tag = tag}, message.payload.as_buffer(), options);
  }
  if (message.receives) {
    if (!message.slot) {
      const size_t inlined = message.bulk() ? 0 : message.payload_bytes;
      SLUICE_TRY(message.slot, mesh_.context().arena().allocate(kHeaderBytes + inlined));
    }
    return peer.receive({.tag = tag}, std::move(message.slot), options);
  }
  SLUICE_TRY(Tensor header, this->header(message));
  if (message.bulk() || message.payload_bytes == 0)
    return peer.send(tag, std::move(header), options);
  const std::array<Tensor, 2> segments{std::move(header), message.payload.as_tensor()};
  return peer.send(tag, std::span<const Tensor>(segments), options);
}

// False: the path has no room now.
bool RoundState::post(size_t index, Message& message) {
  for (bool bulk : {false, true}) {
    bool& posted = bulk ? message.bulk_posted : message.control_posted;
    if (posted || (bulk && !message.bulk())) continue;
    if (cancelled_) {
      posted = true;
      continue;
    }
    Result<OperationId> operation = post_part(index, message, bulk);
    if (operation.code() == Code::kTryAgain) {
      // Nothing else ends by the deadline: the path knows nothing of this message.
      if (mesh_.context().now() < call_.deadline) return false;
      operation = Status(Code::kTimedOut, Scope::kOperation, kOrigin);
    }
    posted = true;
    if (!operation.ok()) {
      failed(message, bulk, operation.status());
      continue;
    }
    message.operations[bulk] = *operation;
    ++message.pending;
    ++pending_;
  }
  return true;
}

size_t RoundState::post() {
  size_t posted = 0;
  for (size_t i = 0; unposted_ > 0 && i < messages_.size(); ++i) {
    Message& message = messages_[i];
    if (message.control_posted && (message.bulk_posted || !message.bulk())) continue;
    if (!post(i, message)) continue;
    --unposted_;
    ++posted;
  }
  return posted;
}

void RoundState::cancel() {
  if (cancelled_) return;
  cancelled_ = true;
  post();
  for (Message& message : messages_) {
    if (message.pending == 0) continue;
    for (OperationId operation : message.operations) {
      // An operation that has ended is refused: its completion came or is on its way.
      if (operation != kNoOperation) (void)mesh_.peer(message.peer).cancel(operation);
    }
  }
}

// The message does not fit its place. A payload of more than kSlotBytes has a place of its own, so
// that a shorter one, which comes with its header, may not fit either.
Status RoundState::other_size(const Message& message, bool bulk, const Status& why) const {
  const std::string_view detail = why.detail();
  return Status(Code::kInvalidArgument, Scope::kContext, kOrigin,
                call_.name() + ": rank " + std::to_string(message.peer) +
                    " disagrees with this rank: it did not send the " +
                    std::to_string(message.payload_bytes) +
                    " bytes that this rank's arguments ask for: " +
                    std::string(detail.substr(0, detail.find(';'))) +
                    (bulk ? "" : ", with a header of " + std::to_string(kHeaderBytes)) +
                    "; give both ranks the same sizes");
}

void RoundState::failed(const Message& message, bool bulk, const Status& why) {
  if (!failure_.ok()) return;
  if (message.receives && why == Code::kInvalidArgument) {
    failure_ = other_size(message, bulk, why);
  } else {
    // Past the deadline a send that the peer may have begun to take ends kOutcomeUnknown.
    const bool late =
        why == Code::kOutcomeUnknown && mesh_.context().refresh_now() >= call_.deadline;
    failure_ =
        mesh_.blame(message.peer, late ? Status(Code::kTimedOut, Scope::kOperation, kOrigin) : why,
                    call_.name());
  }
  if (!cancelled_) mesh_.fail_soon(failure_);
}

Status RoundState::check_header(Message& message) {
  Header theirs;
  std::memcpy(&theirs, message.slot.data(), sizeof theirs);
  const std::string differs = difference(theirs, header_of(call_, message));
  message.flags = theirs.flags & ((1u << kFlagBits) - 1);
  if (differs.empty()) return Status();
  return Status(Code::kInvalidArgument, Scope::kContext, kOrigin,
                call_.name() + ": rank " + std::to_string(message.peer) +
                    " disagrees with this rank: " + differs +
                    "; all ranks make the same calls with arguments that agree");
}

void RoundState::on_completion(Completion&& completion) noexcept {
  Message& message = messages_[completion.user_data >> 1];
  const bool bulk = (completion.user_data & 1) != 0;
  --message.pending;
  --pending_;
  if (message.receives && !bulk && !completion.buffers.empty())
    message.slot = std::move(completion.buffers[0]);
  if (!completion.status.ok()) return failed(message, bulk, completion.status);
  receipt_.bytes += completion.receipt.bytes;
  receipt_.copied_bytes += completion.receipt.copied_bytes;
  receipt_.kernel_copied_bytes += completion.receipt.kernel_copied_bytes;
  receipt_.retries += completion.receipt.retries;
  if (!message.receives) return;
  const uint64_t expected =
      bulk ? message.payload_bytes : kHeaderBytes + (message.bulk() ? 0 : message.payload_bytes);
  Status agreed;
  if (!bulk && completion.receipt.bytes >= kHeaderBytes) agreed = check_header(message);
  if (agreed.ok() && completion.receipt.bytes != expected)
    agreed = Status(Code::kInvalidArgument, Scope::kContext, kOrigin,
                    call_.name() + ": rank " + std::to_string(message.peer) + " sent " +
                        std::to_string(completion.receipt.bytes) + " bytes, not " +
                        std::to_string(expected) + "; give both ranks the same sizes");
  if (agreed.ok()) return;
  if (failure_.ok()) failure_ = agreed;
  mesh_.fail_soon(agreed);
}

Round::~Round() {
  mesh_.remove_waiting(&waiting_);
  if (state_->finished()) return;
  mesh_.dropped(state_->call_);
  state_->cancel();
  mesh_.adopt(std::move(state_));
}

void Round::send(int peer, const Region& payload, uint32_t flags) {
  Message message{.peer = peer, .payload = payload, .flags = flags};
  message.payload_bytes = payload.bytes();
  state_->messages_.push_back(std::move(message));
  if (!state_->post(state_->messages_.size() - 1, state_->messages_.back())) ++state_->unposted_;
}

void Round::receive(int peer, const Region& into) {
  Message message{.peer = peer, .payload = into, .receives = true};
  message.payload_bytes = into.bytes();
  state_->messages_.push_back(std::move(message));
  if (!state_->post(state_->messages_.size() - 1, state_->messages_.back())) ++state_->unposted_;
}

size_t Round::receive_in_slot(int peer, uint64_t bytes) {
  Message message{.peer = peer, .payload_bytes = bytes, .receives = true};
  state_->messages_.push_back(std::move(message));
  if (!state_->post(state_->messages_.size() - 1, state_->messages_.back())) ++state_->unposted_;
  return state_->messages_.size() - 1;
}

bool Round::await_ready() { return state_->finished(); }

void Round::await_suspend(std::coroutine_handle<> waiter) {
  waiting_.ready = [](void* state) { return static_cast<RoundState*>(state)->finished(); };
  waiting_.state = state_.get();
  waiting_.ends_when_broken = false;  // until its operations have ended: they write to our memory
  waiting_.waiter = waiter;
  mesh_.add_waiting(&waiting_);
}

Status Round::await_resume() {
  if (!mesh_.broken().ok()) return mesh_.broken();
  if (!state_->failure_.ok()) {
    mesh_.fail(state_->failure_);
    return mesh_.broken();
  }
  for (Message& message : state_->messages_) {
    if (!message.receives || message.bulk() || message.payload.bytes() == 0) continue;
    std::memcpy(message.payload.data(), message.slot.data() + kHeaderBytes, message.payload_bytes);
    state_->receipt_.copied_bytes += message.payload_bytes;
  }
  return Status();
}

void Round::add_to(Receipt& receipt) const {
  receipt.bytes += state_->receipt_.bytes;
  receipt.copied_bytes += state_->receipt_.copied_bytes;
  receipt.kernel_copied_bytes += state_->receipt_.kernel_copied_bytes;
  receipt.retries += state_->receipt_.retries;
}

}  // namespace sluice::internal
