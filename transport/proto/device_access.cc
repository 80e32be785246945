#include <sluice/proto/device_access.h>

#include "transport/proto/errors.h"

namespace sluice::proto {

Status check_device_key(const RemoteKey& key, Right right) {
  if (key.device_key == 0 && key.address == 0)
    return invalid(
        "the key was not made by this path: it names no device memory; ask the peer for a "
        "key that it granted on this connection");
  if (uint64_t end; __builtin_add_overflow(key.address, key.length, &end))
    return invalid("the key reaches beyond 2^64");
  if (!has_right(key.rights, right)) {
    return Status(Code::kAccessDenied, Scope::kOperation, kOrigin, "the key grants no such access");
  }
  return Status();
}

}  // namespace sluice::proto
