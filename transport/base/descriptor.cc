#include <sluice/base/descriptor.h>

#include <fcntl.h>
#include <sys/socket.h>

namespace sluice {

void DescriptorReserve::fill() {
  if (!kept_) kept_ = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

Descriptor DescriptorReserve::exchange_for_caller(int listener) {
  kept_.reset();
  return Descriptor(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Status no_descriptor(int error) {
  return Status(Code::kNoMemory, Scope::kOperation, "base/descriptor",
                "no socket; raise the limit of descriptors with ulimit -n", error);
}

}  // namespace sluice
