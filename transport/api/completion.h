// How operations are posted and how they end: once, with a Completion.
#ifndef SLUICE_API_COMPLETION_H_
#define SLUICE_API_COMPLETION_H_

#include <cstdint>
#include <vector>

#include <sluice/allocator/buffer.h>
#include <sluice/api/receipt.h>
#include <sluice/base/inline_vector.h>
#include <sluice/base/status.h>

namespace sluice {

// Names a posted operation of one endpoint until it completed; never reused.
using OperationId = uint64_t;
inline constexpr OperationId kNoOperation = 0;

using Tag = uint64_t;
struct TagMatch {
  Tag tag = 0;
  Tag mask = ~Tag{0};  // bits of the tag that must be equal; ~0: exact
  bool matches(Tag other) const { return ((tag ^ other) & mask) == 0; }
};

enum class OperationKind : uint8_t { kSend, kReceive, kRead, kWrite, kWant, kSupply, kAtomic };

// What a completion proves. docs/design.md says for each path what each proves
// and which crash still loses it.
enum class Level : uint8_t {
  kSourceReusable,  // the source may be written again
  kPlaced,          // the bytes are in the receiver's memory
  kConsumed,        // the receiver has released them
};

struct Completion {
  OperationId id = kNoOperation;
  uint64_t user_data = 0;
  OperationKind kind = OperationKind::kSend;
  Tag tag = 0;  // receives: the tag that arrived
  Status status;
  Receipt receipt;
  // Receives, reads and fetches into a buffer: the buffers, back in the order given, also on
  // failure. What lies in them is then unspecified.
  InlineVector<Buffer, 1> buffers;
  Tensor tensor;  // kWant without a destination: the value
};

// Where completions go. Called from Context::progress() only, never inside a post. It may post,
// cancel, start to close or drop endpoints, and call progress(). It may also wait, as close() and
// the blocking twins do; but nothing moves on l2 and kmod until their completions have returned,
// and in these waiting is refused with kWrongState.
class CompletionSink {
 public:
  virtual void on_completion(Completion&& completion) noexcept = 0;

 protected:
  ~CompletionSink() = default;
};

// Completions kept until polled, in order of arrival. Bounded by what is posted.
class CompletionQueue final : public CompletionSink {
 public:
  void on_completion(Completion&& completion) noexcept override;
  // Oldest first; false if there is none.
  bool poll(Completion& out);
  bool empty() const { return head_ == tail_; }

 private:
  std::vector<Completion> ring_;  // power-of-two ring, grows to the most outstanding at once
  size_t head_ = 0;
  size_t tail_ = 0;
};

struct PostOptions {
  CompletionSink* sink = nullptr;  // null: nobody is told of the end
  uint64_t user_data = 0;
  // Default (epoch): the endpoint's default timeout from now. kNever: no deadline,
  // the operation ends with the endpoint at the latest.
  Instant deadline{};
  Level level = Level::kSourceReusable;
};

}  // namespace sluice

#endif  // SLUICE_API_COMPLETION_H_
