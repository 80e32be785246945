// The operations of one session: slots that are reused, ids that are not. No
// allocation once the table has grown to what is outstanding at once.
#ifndef SLUICE_PROTO_OPERATION_TABLE_H_
#define SLUICE_PROTO_OPERATION_TABLE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include <sluice/api/completion.h>
#include <sluice/base/id_index.h>
#include <sluice/base/inline_vector.h>
#include <sluice/proto/room.h>
#include <sluice/spi/link.h>

namespace sluice::proto {

enum class OperationState : uint8_t {
  kFree,
  kQueued,   // not sent: waits for credit or room
  kPosted,   // a receive without a message, a want or read without an answer
  kOffered,  // the peer was told and has not answered
  kPulling,  // copies from the peer's memory, or our device reads it
  kPlacing,  // DATA arrives into its memory
  kPushing,  // DATA leaves, or our device writes it
  kFencing,  // its end is decided; a device may still reach its memory
  kReady,    // ended; the completion is delivered by the next progress
  kZombie,   // completed, but the peer or the link may still read the source
};

struct Operation {
  OperationId id = kNoOperation;
  OperationKind kind = OperationKind::kSend;
  OperationState state = OperationState::kFree;
  Level level = Level::kSourceReusable;
  bool loaned = false;    // the peer may read our tensors in place until RELEASE or DONE
  bool answered = false;  // the peer has it all; the link has yet to let go of our memory
  bool internal = false;  // made for a peer's one-sided request; nobody is told
  bool engaged = false;   // the transfer has an OperationStates entry for it
  CompletionSink* sink = nullptr;
  uint64_t user_data = 0;
  Instant deadline{};
  TagMatch match;
  uint64_t peer_id = 0;    // the peer's operation this one talks to
  uint64_t total = 0;      // payload bytes
  uint64_t moved = 0;      // bytes pulled, placed or given to the link so far
  uint64_t in_flight = 0;  // given to the link, still in our memory or on its way there
  uint64_t incoming = 0;   // bytes of a fresh tensor, charged to the peer until it is whole
  uint64_t grant = 0;      // one-sided
  uint64_t grant_offset = 0;
  uint32_t grant_epoch = 0;
  InlineVector<Tensor, 1> tensors;  // sources
  Completion completion;            // its buffers are the destinations
  std::unique_ptr<Room> room;       // until the destination is there
  IndexLink<Operation> index;       // by peer_id, while the peer may cancel it
  // Place in one list of the session.
  Operation* next = nullptr;
  Operation* previous = nullptr;
  struct OperationList* list = nullptr;
};

// Intrusive, in order; an operation is in one list at most.
struct OperationList {
  Operation* first = nullptr;
  Operation* last = nullptr;

  bool empty() const { return first == nullptr; }
  void push_back(Operation* op) {
    op->list = this;
    op->next = nullptr;
    op->previous = last;
    (last != nullptr ? last->next : first) = op;
    last = op;
  }
  void remove(Operation* op) {
    (op->previous != nullptr ? op->previous->next : first) = op->next;
    (op->next != nullptr ? op->next->previous : last) = op->previous;
    op->next = op->previous = nullptr;
    op->list = nullptr;
  }
};

class OperationTable {
 public:
  // At most `limit` operations at once.
  explicit OperationTable(uint32_t limit) : limit_(limit) {}

  // Null when the limit is reached.
  Operation* take() {
    if (used_ >= limit_) return nullptr;
    if (free_ == nullptr) grow();
    Operation* op = free_;
    free_ = op->next;
    op->next = nullptr;
    // The generation is in the upper half: an id that was answered late finds nothing.
    op->id += uint64_t{1} << 32;
    ++used_;
    ++changes_;
    return op;
  }
  void give_back(Operation* op) {
    retire(op);
    reuse(op);
  }
  // The first half of it: no id finds the operation and it does not count, but its slot
  // stays as it is.
  void retire(Operation* op) {
    op->state = OperationState::kFree;
    --used_;
    ++changes_;
  }
  void reuse(Operation* op) {
    op->next = free_;
    free_ = op;
  }
  // Null if `id` is not outstanding. Safe for any value a peer may send.
  Operation* find(OperationId id) const {
    uint32_t slot = static_cast<uint32_t>(id);
    if (slot == 0 || slot > chunks_.size() * kChunk) return nullptr;
    Operation* op = &(*chunks_[(slot - 1) / kChunk])[(slot - 1) % kChunk];
    return op->id == id && op->state != OperationState::kFree ? op : nullptr;
  }
  // 32 bits for an id, where a path carries no more: the slot and half of the generation.
  static uint32_t notice_of(OperationId id) {
    return static_cast<uint32_t>(id >> 32 << 16) | (static_cast<uint32_t>(id) & 0xFFFF);
  }
  // Null if no outstanding operation has this notice. Safe for any value.
  Operation* find_notice(uint32_t notice) const {
    uint32_t slot = notice & 0xFFFF;
    if (slot == 0 || slot > chunks_.size() * kChunk) return nullptr;
    Operation* op = &(*chunks_[(slot - 1) / kChunk])[(slot - 1) % kChunk];
    return notice_of(op->id) == notice && op->state != OperationState::kFree ? op : nullptr;
  }
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (auto& chunk : chunks_) {
      for (Operation& op : *chunk) {
        if (op.state != OperationState::kFree) visit(op);
      }
    }
  }
  uint32_t used() const { return used_; }
  // Operations that began, and operations that ended, since the table was made.
  uint64_t changes() const { return changes_; }
  uint32_t limit() const { return limit_; }

 private:
  static constexpr uint32_t kChunk = 8;  // small: an idle connection has one at most

  void grow() {
    uint32_t first = static_cast<uint32_t>(chunks_.size()) * kChunk;
    chunks_.push_back(std::make_unique<std::array<Operation, kChunk>>());
    for (uint32_t i = kChunk; i-- > 0;) {
      Operation& op = (*chunks_.back())[i];
      op.id = first + i + 1;
      op.next = free_;
      free_ = &op;
    }
  }

  std::vector<std::unique_ptr<std::array<Operation, kChunk>>> chunks_;
  Operation* free_ = nullptr;
  uint32_t limit_;
  uint32_t used_ = 0;
  uint64_t changes_ = 0;
};

// What a transfer keeps for operations beside the table, by slot. No allocation once it has grown
// to the highest slot that was asked for. References stay valid.
template <typename State>
class OperationStates {
 public:
  State& of(const Operation& op) {
    const uint32_t slot = static_cast<uint32_t>(op.id) - 1;
    while (slot >= chunks_.size() * kChunk)
      chunks_.push_back(std::make_unique<std::array<State, kChunk>>());
    return (*chunks_[slot / kChunk])[slot % kChunk];
  }

 private:
  static constexpr uint32_t kChunk = 8;

  std::vector<std::unique_ptr<std::array<State, kChunk>>> chunks_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_OPERATION_TABLE_H_
