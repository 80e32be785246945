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

// The peer ended an operation with `code`.
inline Status from_peer(Code code) {
  return Status(code, Scope::kOperation, kOrigin,
                "the peer ended it with " + std::string(to_string(code)));
}

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_ERRORS_H_
