#include <sluice/api/receipt.h>

namespace sluice {

std::string unmet(const Requirements& require, const PathProperties& properties) {
  std::string name(to_string(properties.path));
  if (require.path != Path::kNone && properties.path != require.path)
    return "Requirements::path demands " + std::string(to_string(require.path));
  if (require.rdma && !properties.capabilities.has(Capability::kRdma)) return name + " is not RDMA";
  if (require.sealed && !properties.capabilities.has(Capability::kSealed)) {
    return name +
           " is not sealed, as Requirements::sealed or a secret demands (l2:// with a secret is, "
           "shm: is; with a secret, allow_unsealed takes any path)";
  }
  if (require.zero_copy && !properties.capabilities.has(Capability::kZeroCopyFetch)) {
    return name + " copies each byte " + std::to_string(properties.copies_per_fetch) + " times";
  }
  if (require.max_copies >= 0 && properties.copies_per_fetch > require.max_copies) {
    return name + " copies each byte " + std::to_string(properties.copies_per_fetch) + " times, " +
           std::to_string(require.max_copies) + " allowed";
  }
  return "";
}

}  // namespace sluice
