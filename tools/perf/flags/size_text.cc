#include "tools/perf/flags/size_text.h"

#include <fmt/format.h>

#include <array>

#include <sluice/base/settings.h>

namespace sluice::tools {

std::optional<uint64_t> parse_size(std::string_view text) {
  const std::optional<uint64_t> size = parse_bytes(text);
  return size && *size <= kLargestSizeBytes ? size : std::nullopt;
}

std::string readable_size(uint64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"B", "KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  bool whole = value == static_cast<double>(static_cast<uint64_t>(value));
  return whole ? fmt::format("{} {}", static_cast<uint64_t>(value), kUnits[unit])
               : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace sluice::tools
