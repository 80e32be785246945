#include "tools/perf/flags/size_text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

namespace sluice::tools {

std::optional<uint64_t> parse_size(std::string_view text) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value == 0 || value > kLargestSizeBytes) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (unit.size() == 3 && unit.ends_with("iB")) unit.remove_suffix(2);
  int shift = 0;
  if (unit == "K" || unit == "k") {
    shift = 10;
  } else if (unit == "M" || unit == "m") {
    shift = 20;
  } else if (unit == "G" || unit == "g") {
    shift = 30;
  } else if (!unit.empty()) {
    return std::nullopt;
  }
  if (value > kLargestSizeBytes >> shift) return std::nullopt;
  return value << shift;
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
