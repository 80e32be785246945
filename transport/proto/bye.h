// What the code of a BYE says.
#ifndef SLUICE_PROTO_BYE_H_
#define SLUICE_PROTO_BYE_H_

#include <string>

#include <sluice/base/status.h>

namespace sluice::proto {

// In the place of the peer's HELLO: why it refused the connection, and what to do about it.
// `who` is the peer. Codes that say nothing of what the caller could do become kUnreachable, and
// kNoMemory, which is the peer's, kTryAgain.
Status refused_by(const std::string& who, Code code, Scope scope, const char* origin);

// After HELLO. To be told as "the peer ...".
std::string why_ended(Code code);

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_BYE_H_
