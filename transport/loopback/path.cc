#include <sluice/loopback/path.h>

#include <sluice/loopback/provider.h>
#include <sluice/runtime/context_core.h>

namespace sluice::loopback {
namespace {

std::unique_ptr<Provider> open(ContextCore& context) {
  return std::make_unique<LoopbackProvider>(context);
}

}  // namespace

const PathDescriptor kPath{
    .path = Path::kLoopback,
    .scheme = Scheme::kLoopback,
    .name = "loopback",
    .open = open,
};

}  // namespace sluice::loopback
