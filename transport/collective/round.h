// One round of messages of a collective: what is sent to and received from other ranks at once.
// Every message begins with a header, by which the ranks find that they disagree.
#ifndef SLUICE_COLLECTIVE_ROUND_H_
#define SLUICE_COLLECTIVE_ROUND_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "transport/collective/mesh.h"
#include <sluice/collective/reduce.h>
#include <sluice/collective/region.h>

namespace sluice::internal {

// A payload up to this travels with its header; a larger one by itself, straight into its place.
// The "one shot into slots up to 32 KiB" is the same number.
inline constexpr size_t kSlotBytes = size_t{32} << 10;

enum class Kind : uint8_t {
  kBarrier,
  kAllreduce,
  kReduce,
  kBroadcast,
  kAllgather,
  kAlltoall,
  kAlltoallv,
};
std::string_view to_string(Kind kind);

// What one rank's program asked for. Equal on all ranks, apart from the deadline.
struct Call {
  Kind kind = Kind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DataType dtype = uint8;
  int root = 0;
  uint64_t bytes = 0;    // of each rank's argument; kAlltoallv: 0, they may differ
  uint64_t number = 0;   // of the collective within the group
  uint32_t history = 0;  // 24 bits of a digest of the collectives before it
  Instant deadline = kNever;

  std::string name() const { return std::string(to_string(kind)) + " " + std::to_string(number); }
};

// The digest of the collectives up to `call`, by that of those before it. Ranks that disagree on a
// root may all be senders: nobody has a header to compare then, and the next collective finds it.
uint64_t digest_with(uint64_t before, const Call& call);
inline uint32_t history_of(uint64_t digest) { return static_cast<uint32_t>(digest >> 40); }

// In front of every payload, little-endian: magic u32, kind u8, op u8, dtype code u8, dtype bits
// u8, root u32, flags u8, history 24 bits, bytes u64, payload bytes u64.
inline constexpr size_t kHeaderBytes = 32;
inline constexpr uint32_t kLendable = 1;  // flag: the argument lies in memory that peers can map
inline constexpr int kFlagBits = 8;

struct Message {
  int peer = 0;
  Region payload;  // receives: the place, or none: left in the slot
  uint64_t payload_bytes = 0;
  bool receives = false;
  uint32_t flags = 0;  // sent, or as it came
  Buffer slot;         // receives: header and payload as they came
  int pending = 0;     // operations under way
  std::array<OperationId, 2> operations{};
  bool control_posted = false, bulk_posted = false;

  bool bulk() const { return payload_bytes > kSlotBytes; }
};

// Outlives its Round if operations are still under way then.
class RoundState final : public CompletionSink {
 public:
  RoundState(Mesh& mesh, const Call& call) : mesh_(mesh), call_(call) { mesh.enlist(this); }
  ~RoundState() { mesh_.dismiss(this); }
  void on_completion(Completion&& completion) noexcept override;
  // Posts what was refused for want of room. Returns how much it posted.
  size_t post();
  void cancel();
  bool finished() const { return pending_ == 0 && unposted_ == 0; }
  bool wants_turn() const { return unposted_ > 0; }

 private:
  friend class Round;
  bool post(size_t index, Message& message);
  Result<OperationId> post_part(size_t index, Message& message, bool bulk);
  Result<Tensor> header(const Message& message);
  Status check_header(Message& message);
  void failed(const Message& message, bool bulk, const Status& why);
  Status other_size(const Message& message, bool bulk, const Status& why) const;

  Mesh& mesh_;
  Call call_;
  std::deque<Message> messages_;
  int pending_ = 0;
  int unposted_ = 0;
  bool cancelled_ = false;
  Status failure_;
  Receipt receipt_;
  Tensor header_;  // of the last message sent, for the next if it says the same
  uint64_t header_payload_ = ~uint64_t{0};
  uint32_t header_flags_ = 0;
};

// Lives in a collective's coroutine: send() and receive() what belongs together, then
// `co_await round`. Messages between two ranks of one collective are told apart by their order, so
// a rank that runs another algorithm is found out by its first header.
class Round {
 public:
  Round(Mesh& mesh, const Call& call)
      : mesh_(mesh), state_(std::make_unique<RoundState>(mesh, call)) {}
  // A round that did not end breaks the group: the other ranks wait for this one.
  ~Round();
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  void send(int peer, const Region& payload, uint32_t flags = 0);
  void receive(int peer, const Region& into);
  // `bytes` at most kSlotBytes. The message stays in its slot: payload() gives it.
  size_t receive_in_slot(int peer, uint64_t bytes);
  // Requires: the round ended well.
  const std::byte* payload(size_t index) const {
    return state_->messages_[index].slot.data() + kHeaderBytes;
  }
  uint32_t flags(size_t index) const { return state_->messages_[index].flags; }

  bool await_ready();
  void await_suspend(std::coroutine_handle<> waiter);
  // Errors: why the group is broken.
  Status await_resume();
  // Adds what the round moved.
  void add_to(Receipt& receipt) const;

 private:
  Mesh& mesh_;
  std::unique_ptr<RoundState> state_;
  Waiter waiting_;
};

}  // namespace sluice::internal

#endif  // SLUICE_COLLECTIVE_ROUND_H_
