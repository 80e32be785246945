#include <sluice/loopback/path.h>

#include <sluice/loopback/provider.h>

namespace sluice::loopback {
namespace {

std::unique_ptr<Provider> open(Context& context) {
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
