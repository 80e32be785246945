// Sizes and counts as people write them on a command line: "64", "4K", "1M", "1G".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::tools {

// Largest size that any test takes.
inline constexpr uint64_t kLargestSizeBytes = uint64_t{1} << 40;

// As sluice::parse_bytes(). Nothing above kLargestSizeBytes.
std::optional<uint64_t> parse_size(std::string_view text);

// "64 B", "4 KiB", "527.8 MiB".
std::string readable_size(uint64_t bytes);

}  // namespace sluice::tools
