// Whether a program has set a secret: then paths that are not sealed are refused, unless it says
// otherwise. Knows no path.
#ifndef SLUICE_RUNTIME_SEALING_H_
#define SLUICE_RUNTIME_SEALING_H_

#include <string>

namespace sluice {

// Names the file of the secret where ConnectOptions and ListenOptions name none.
inline constexpr const char* kSecretFileVariable = "SLUICE_L2_SECRET_FILE";

// By the option, or by the variable for a whole process.
bool secret_is_set(const std::string& secret_file);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_SEALING_H_
