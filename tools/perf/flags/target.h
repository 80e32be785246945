// Memory that the peer may access, and its key on the way there.
#pragma once

#include <sluice/api/context.h>

#include "tools/perf/load/workload.h"

namespace sluice::tools {

Json encode_key(const RemoteKey& key);
// Errors: kCorrupt.
Result<RemoteKey> decode_key(const Json& message);

class Target {
 public:
  // Zeroes `memory`, and grants it.
  Status grant(const Side& side, Result<Buffer> memory, Right rights);
  // No access can be running once the memory goes.
  void revoke(const Side& side);
  std::byte* data() const { return buffer_.data(); }
  const RemoteKey& key() const { return key_; }

 private:
  Buffer buffer_;
  RemoteKey key_;
};

}  // namespace sluice::tools
