#include <sluice/kmod/path.h>

#include <sluice/kmod/provider.h>
#include <sluice/kmod/socket.h>
#include <sluice/kmod/traits.h>
#include <sluice/runtime/context_core.h>

namespace sluice::kmod {
namespace {

PathState explain() {
  auto usable = kmod_usable();
  return {.usable = usable.ok(),
          .why = usable.ok()
                     ? "for peers on the same Ethernet, by kmod:// addresses; " + usable->text()
                     : std::string(usable.status().detail()),
          .properties = kmod_traits().properties};
}
std::unique_ptr<Provider> open(ContextCore& context) {
  return std::make_unique<KmodProvider>(context);
}

}  // namespace

const PathDescriptor kPath{
    .path = Path::kModule,
    .scheme = Scheme::kKmod,
    .name = "kmod",
    .explain = explain,
    .remedy =
        "build and load the module: kernel_compat/README.md; until then l2://INTERFACE or tcp",
    .needs =
        "both ends must be on one Ethernet and have the kernel module, and the listener must wish "
        "Ethernet: set SLUICE_ETHERNET=1 where it runs",
    .open = open,
};

}  // namespace sluice::kmod
