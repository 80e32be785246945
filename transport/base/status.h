// Outcome of a call or an operation: what the caller may do next, which part is
// ruined, what the operating system said. Knows nothing of transports.
#ifndef SLUICE_BASE_STATUS_H_
#define SLUICE_BASE_STATUS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace sluice {

// One code per thing that the caller does differently.
enum class Code : uint8_t {
  kOk = 0,
  kTryAgain,         // a queue or table is full: progress, then repeat
  kNoMemory,         // a memory limit was hit: the detail names it and how to raise it
  kUnsupported,      // this path or build cannot do it: choose another path
  kInvalidArgument,  // the call is wrong: nothing was done, nothing consumed
  kWrongState,       // closed, not connected, after fork: reconnect or fix the order of calls
  kUnreachable,      // the peer is dead or cannot be found: reconnect later
  kTimedOut,         // the deadline passed and the operation took no effect
  kOutcomeUnknown,   // the operation may or may not have taken effect
  kCancelled,        // the caller cancelled it
  kAccessDenied,     // missing right or wrong grant
  kCorrupt,          // the peer sent something that breaks the protocol
  kInternal,         // a bug in sluice
};
inline constexpr int kCodeCount = 13;

// How much is ruined when a Status is not ok.
enum class Scope : uint8_t {
  kOperation = 0,  // this operation only
  kEndpoint,       // every operation of the endpoint ends
  kContext,        // the whole context is unusable
};

std::string_view to_string(Code code);
std::string_view to_string(Scope scope);

// Cheap to make and copy when ok; an error may carry a text that names cause and
// remedy. The text is allocated, so errors are built off the data path only.
class [[nodiscard]] Status {
 public:
  Status() = default;
  // `origin` must have static storage: the place that classified the error.
  Status(Code code, Scope scope, const char* origin, int os_error = 0)
      : code_(code), scope_(scope), os_error_(os_error), origin_(origin) {}
  Status(Code code, Scope scope, const char* origin, std::string detail, int os_error = 0);

  bool ok() const { return code_ == Code::kOk; }
  explicit operator bool() const { return ok(); }
  Code code() const { return code_; }
  Scope scope() const { return scope_; }
  // errno of the system call that failed, 0 where none did.
  int os_error() const { return os_error_; }
  const char* origin() const { return origin_; }
  std::string_view detail() const {
    return detail_ ? std::string_view(*detail_) : std::string_view();
  }

  // "kNoMemory: arena limit of 64 MiB reached ... [allocator/arena; ENOMEM]"
  std::string to_string() const;

  bool operator==(Code code) const { return code_ == code; }

 private:
  Code code_ = Code::kOk;
  Scope scope_ = Scope::kOperation;
  int os_error_ = 0;
  const char* origin_ = "";
  std::shared_ptr<const std::string> detail_;
};

inline Status ok_status() { return Status(); }

}  // namespace sluice

#endif  // SLUICE_BASE_STATUS_H_
