#include <sluice/base/status.h>

#include <atomic>
#include <cstring>
#include <utility>

namespace sluice {

namespace {
std::atomic<void (*)(const Status&)> watcher = nullptr;
}  // namespace

// Declared in status_watch.h, which only tests include.
void watch_statuses(void (*see)(const Status&)) { watcher.store(see); }

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kOk: return "kOk";
    case Code::kTryAgain: return "kTryAgain";
    case Code::kNoMemory: return "kNoMemory";
    case Code::kUnsupported: return "kUnsupported";
    case Code::kInvalidArgument: return "kInvalidArgument";
    case Code::kWrongState: return "kWrongState";
    case Code::kUnreachable: return "kUnreachable";
    case Code::kTimedOut: return "kTimedOut";
    case Code::kOutcomeUnknown: return "kOutcomeUnknown";
    case Code::kCancelled: return "kCancelled";
    case Code::kAccessDenied: return "kAccessDenied";
    case Code::kCorrupt: return "kCorrupt";
    case Code::kInternal: return "kInternal";
  }
  return "code out of range";
}

std::string_view to_string(Scope scope) {
  switch (scope) {
    case Scope::kOperation: return "operation";
    case Scope::kEndpoint: return "endpoint";
    case Scope::kContext: return "context";
  }
  return "scope out of range";
}

Status::Status(Code code, Scope scope, const char* origin, std::string detail, int os_error)
    : code_(code), scope_(scope), os_error_(os_error), origin_(origin) {
  detail_ = std::make_shared<const std::string>(std::move(detail));
  if (auto* see = watcher.load(std::memory_order_relaxed)) [[unlikely]]
    see(*this);
}

std::string Status::to_string() const {
  std::string text(sluice::to_string(code_));
  if (ok()) return text;
  if (detail_) {
    text += ": ";
    text += *detail_;
  }
  text += " [";
  text += origin_;
  if (os_error_ != 0) {
    text += "; ";
    const char* name = strerrorname_np(os_error_);
    text += name != nullptr ? name : std::to_string(os_error_).c_str();
  }
  text += "]";
  return text;
}

}  // namespace sluice
