// Which machine measurements hold for.
#ifndef SLUICE_TUNING_MACHINE_H_
#define SLUICE_TUNING_MACHINE_H_

#include <string>

namespace sluice::tuning {

// One line of printable ASCII: processor model, processors, kernel, MTU of the loopback device.
// Cost: a few tens of microseconds.
std::string machine_key();

}  // namespace sluice::tuning

#endif  // SLUICE_TUNING_MACHINE_H_
