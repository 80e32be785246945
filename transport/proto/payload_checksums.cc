#include <sluice/base/settings.h>
#include <sluice/proto/payload_checksums.h>

namespace sluice::proto {

bool payload_checksums_wanted() { return setting_is("SLUICE_L2_CHECKSUMS", "1"); }

}  // namespace sluice::proto
