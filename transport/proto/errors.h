// The statuses that a session and its transfer make. Private to proto.
#ifndef SLUICE_PROTO_ERRORS_H_
#define SLUICE_PROTO_ERRORS_H_

#include <string>

#include <sluice/base/status.h>

namespace sluice::proto {

inline constexpr const char* kOrigin = "proto/session";

// The caller passed something that cannot be.
inline Status invalid(const std::string& why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin, why);
}

// The peer sent something that cannot be: the connection ends.
inline Status corrupt(const char* what) {
  return Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, what);
}

// Cause and remedy of an end for which the peer sends a bare code.
inline const char* why_the_peer_ends(Code code) {
  switch (code) {
    case Code::kTryAgain: return "its table of requests is full; call progress(), then repeat";
    case Code::kNoMemory:
      return "it has no memory for it; release tensors there, or raise its "
             "ArenaOptions::limit_bytes";
    case Code::kUnsupported: return "its path or version cannot do it; use another path";
    case Code::kInvalidArgument:
      return "the size, dtype or shape is not that of its end; check both ends";
    case Code::kWrongState: return "what was asked for has ended there; ask for something later";
    case Code::kUnreachable: return "it closes the endpoint; connect again";
    case Code::kTimedOut: return "a deadline of its own passed; raise the deadline there";
    case Code::kCancelled: return "it gave up its side of it; repeat it if it is still wanted";
    case Code::kAccessDenied:
      return "the grant does not allow this (rights or range), was revoked, or has expired; ask "
             "its "
             "owner for a grant that does";
    case Code::kOutcomeUnknown: return "it does not know the outcome; ask it what it has";
    default: return "it broke down; look at its log";
  }
}

// The peer ended an operation with `code`.
inline Status from_peer(Code code) {
  return Status(
      code, Scope::kOperation, kOrigin,
      "the peer ended it with " + std::string(to_string(code)) + ": " + why_the_peer_ends(code));
}

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_ERRORS_H_
