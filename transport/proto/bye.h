// What the code of a BYE says.
#ifndef SLUICE_PROTO_BYE_H_
#define SLUICE_PROTO_BYE_H_

#include <sluice/base/status.h>

namespace sluice::proto {

// To be told as "the peer ...".
inline const char* why_ended(Code code) {
  switch (code) {
    case Code::kTryAgain:
      return "refused the connection: it has as many as it takes; try again later";
    case Code::kAccessDenied: return "refused the connection: its program does not accept us";
    case Code::kUnsupported:
      return "refused the connection: it requires of a path what this one cannot do";
    default: return "closed the connection";
  }
}

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_BYE_H_
