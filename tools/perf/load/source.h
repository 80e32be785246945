// What the tests of messages send, and which messages they take.
#pragma once

#include <utility>

#include <sluice/allocator/buffer.h>

#include "tools/perf/run/control.h"

namespace sluice::tools {

// What is sent in rounds that do not check each message; steps start at 1.
inline constexpr uint64_t kSteady = 0;
// Any message of the test, none of the control channel.
inline constexpr TagMatch kAnyStep{.tag = 0, .mask = kControlTag};

// Memory that is filled in place and sent again and again.
struct Source {
  std::byte* data = nullptr;
  Tensor tensor;

  Status take(Result<Buffer> memory) {
    SLUICE_TRY(Buffer buffer, std::move(memory));
    data = buffer.data();
    tensor = std::move(buffer).freeze();
    return Status();
  }
};

}  // namespace sluice::tools
