// The line between the coordinator and one server or worker: small messages of fixed
// size over a socket pair. Carries orders and figures, never tensors.
#ifndef SLUICE_TOOLS_DEMO_JOB_CONTROL_H_
#define SLUICE_TOOLS_DEMO_JOB_CONTROL_H_

#include <cstdint>
#include <string_view>
#include <utility>

#include <sluice/base/clock.h>
#include <sluice/base/result.h>

namespace sluice::tools::demo {

enum class Word : uint32_t {
  kListening,  // server: text is its address
  kReady,      // both: everything for `step` is prepared, verification of the last one done
  kGo,         // to the server: publish `step`
  kApplied,    // server: the gradients of `step` are averaged in
  kFinished,   // to workers: `step` is applied; verify
  kReport,     // both: figures of `step`, after verification
  kStop,       // to the server: the workers are gone
  kFailed,     // both: text says why; the process ends
};

struct Message {
  Word word = Word::kReady;
  int64_t step = 0;
  int64_t begin_ns = 0;       // server: publishing began
  int64_t end_ns = 0;         // server: averaged in; worker: all weights here
  int64_t cpu_ns = 0;         // while moving
  uint64_t copied_bytes = 0;  // since the last report
  uint64_t chunk_bytes = 0;
  uint64_t arena_bytes = 0;  // most so far
  uint64_t fetches = 0;      // since the last report
  uint64_t views = 0;
  char text[320] = {};  // an address, or what is wrong; empty: verified

  void set_text(std::string_view value);
};

// One end of the line. Thread: one at a time.
class ControlLine {
 public:
  ControlLine() = default;
  explicit ControlLine(int fd) : fd_(fd) {}
  ControlLine(ControlLine&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ControlLine& operator=(ControlLine&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ControlLine();

  // Both ends. Errors: kNoMemory (descriptors).
  static Result<std::pair<ControlLine, ControlLine>> open_pair();

  int fd() const { return fd_; }
  // Blocks: never for long, messages are few. Errors: kUnreachable.
  Status send(const Message& message);
  // Errors: kTryAgain (nothing there), kUnreachable (the other end is gone).
  Result<Message> try_receive();
  // Errors: kTimedOut, kUnreachable.
  Result<Message> receive(Instant deadline);

 private:
  int fd_ = -1;
};

}  // namespace sluice::tools::demo

#endif  // SLUICE_TOOLS_DEMO_JOB_CONTROL_H_
