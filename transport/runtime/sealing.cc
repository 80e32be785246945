#include <sluice/base/settings.h>
#include <sluice/runtime/sealing.h>

namespace sluice {

bool secret_is_set(const std::string& secret_file) {
  return !secret_file.empty() || !setting_text(kSecretFileVariable).value_or("").empty();
}

}  // namespace sluice
