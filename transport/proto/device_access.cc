#include <sluice/proto/device_access.h>

#include "transport/proto/errors.h"

namespace sluice::proto {

Status wrong_device_key(const RemoteKey& key, Right right) {
  if (key.device_key == 0 && key.address == 0)
    return invalid(
        "the key was not made by this path: it names no device memory; ask the peer for a "
        "key that it granted on this connection");
  if (!has_right(key.rights, right))
    return Status(Code::kAccessDenied, Scope::kOperation, kOrigin, "the key grants no such access");
  return invalid("the key reaches beyond 2^64");
}

}  // namespace sluice::proto
