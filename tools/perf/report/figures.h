// What follows from a measurement's sums.
#pragma once

#include "tools/perf/run/run.h"

namespace sluice::tools {

inline double per_byte(double amount, uint64_t bytes) {
  return bytes > 0 ? amount / static_cast<double>(bytes) : 0;
}
inline double per_second(uint64_t amount, double seconds) {
  return seconds > 0 ? static_cast<double>(amount) / seconds : 0;
}

inline double bytes_per_second(const Measurement& m) {
  return per_second(m.payload_bytes, m.seconds);
}
inline double messages_per_second(const Measurement& m) {
  return per_second(m.messages, m.seconds);
}
inline double copies_per_byte(const Measurement& m) {
  return per_byte(static_cast<double>(m.copied.all()), m.payload_bytes);
}

}  // namespace sluice::tools
