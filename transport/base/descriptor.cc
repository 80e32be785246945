#include <sluice/base/descriptor.h>

#include <fcntl.h>

namespace sluice {

Descriptor spare_descriptor() { return Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

Status no_descriptor(int error) {
  return Status(Code::kNoMemory, Scope::kOperation, "base/descriptor",
                "no socket; raise the limit of descriptors with ulimit -n", error);
}

}  // namespace sluice
