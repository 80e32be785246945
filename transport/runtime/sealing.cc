#include <sluice/runtime/sealing.h>

#include <cstdlib>

namespace sluice {

bool secret_is_set(const std::string& secret_file) {
  const char* variable = std::getenv(kSecretFileVariable);
  return !secret_file.empty() || (variable != nullptr && *variable != '\0');
}

}  // namespace sluice
