#include <sluice/proto/payload_checksums.h>

#include <cstdlib>
#include <string_view>

namespace sluice::proto {

bool payload_checksums_wanted() {
  const char* text = std::getenv("SLUICE_L2_CHECKSUMS");
  return text != nullptr && std::string_view(text) == "1";
}

}  // namespace sluice::proto
