#include <sluice/base/descriptor.h>

namespace sluice {

Status no_descriptor(int error) {
  return Status(Code::kNoMemory, Scope::kOperation, "base/descriptor",
                "no socket; raise the limit of descriptors with ulimit -n", error);
}

}  // namespace sluice
