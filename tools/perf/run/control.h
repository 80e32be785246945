// The talk between the two sides of a run, off the clock: small JSON objects as tagged
// messages of the endpoint that is measured. Knows nothing of tests.
#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include <sluice/api/context.h>

namespace sluice::tools {

using Json = nlohmann::json;

// Tags below are for the tests' payload.
inline constexpr Tag kControlTag = uint64_t{1} << 63;

// An operation or a peer that shows no sign of life for this long has failed. A peer that touches a
// window of 512 MiB for the first time shows none: 16 s on a machine with six programs to a
// processor.
inline constexpr Duration kStallLimit = std::chrono::seconds(90);

// Bytes that CPUs have copied: ours, and the kernel's as known of the path.
struct Copies {
  uint64_t user = 0, kernel = 0;

  uint64_t all() const { return user + kernel; }
  Copies& operator+=(const Copies& other) {
    user += other.user;
    kernel += other.kernel;
    return *this;
  }
  friend Copies operator-(const Copies& a, const Copies& b) {
    return {a.user - b.user, a.kernel - b.kernel};
  }
};

class ControlChannel final : private CompletionSink {
 public:
  // Both outlive it.
  ControlChannel(Context& context, Endpoint& endpoint) : context_(context), endpoint_(endpoint) {}
  ~ControlChannel();

  // Returns when the peer has it.
  Status send(const Json& message);
  // Errors: kCorrupt (not a JSON object), kTimedOut (nothing within the limit).
  Result<Json> receive(Duration limit = kStallLimit);

  // Posts the receive for the next message, which receive() then takes: for a side that
  // waits for the peer's word while the peer accesses its memory.
  Status expect();
  // Expected and here, or failed.
  bool arrived() const { return done_; }
  // For this talk so far, on this side: no payload.
  const Copies& copies() const { return copies_; }

 private:
  void on_completion(Completion&& completion) noexcept override;

  static constexpr size_t kLargestMessageBytes = 4096;

  Context& context_;
  Endpoint& endpoint_;
  OperationId posted_ = kNoOperation;
  Completion completion_;
  bool done_ = false;
  Copies copies_;
};

// The peer's answer, or the error it reports.
Result<Json> ask(ControlChannel& control, const Json& request);

// A field of a peer's message; in a text each control character is a question mark. Errors:
// kCorrupt where it is missing or of another type.
Result<uint64_t> number_field(const Json& message, const char* name);
Result<std::string> text_field(const Json& message, const char* name);

}  // namespace sluice::tools
