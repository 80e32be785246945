#include <sluice/proto/bye.h>

namespace sluice::proto {
namespace {

const char* why_refused(Code code) {
  switch (code) {
    case Code::kTryAgain: return "it has as many connections as it takes; try again later";
    case Code::kNoMemory:
      return "its process has no descriptor or no memory for it; raise ulimit -n there, or try "
             "again later";
    case Code::kTimedOut:
      return "too many callers greet or wait for its accept(), or we were too slow to greet; try "
             "again later";
    case Code::kAccessDenied: return "its program does not accept us (ListenOptions::accept there)";
    case Code::kUnsupported:
      return "it does not speak our protocol version, or not on this path; use one version of "
             "sluice at both ends";
    case Code::kCorrupt:
      return "it did not understand our HELLO; use one version of sluice at both ends";
    case Code::kUnreachable:
      return "it stopped listening, or we were to join a connection that has ended; connect again";
    default: return "it does not say why; its log may";
  }
}

Code code_for_caller(Code code) {
  switch (code) {
    case Code::kOk:
    case Code::kCorrupt: return Code::kUnreachable;
    case Code::kNoMemory: return Code::kTryAgain;
    default: return code;
  }
}

}  // namespace

Status refused_by(const std::string& who, Code code, Scope scope, const char* origin) {
  return Status(code_for_caller(code), scope, origin,
                who + " refused the connection: " + why_refused(code));
}

std::string why_ended(Code code) {
  switch (code) {
    case Code::kTryAgain:
    case Code::kAccessDenied: return std::string("refused the connection: ") + why_refused(code);
    // Its requirements are looked at when both HELLOs are there.
    case Code::kUnsupported:
      return "refused the connection: it requires of a path what this one cannot do";
    default: return "closed the connection";
  }
}

}  // namespace sluice::proto
