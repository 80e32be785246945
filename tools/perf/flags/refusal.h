// How a value on the command line is refused: one line that names the flag, the value
// and an example (CLI11 prints flag and colon).
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <iterator>
#include <sstream>
#include <string>
#include <type_traits>

#include "tools/perf/flags/nearest.h"

namespace sluice::tools {

[[noreturn]] inline void refuse(const std::string& flag, const std::string& value,
                                const std::string& why, const std::string& example) {
  throw CLI::ValidationError(
      flag, (value.empty() ? "" : "'" + value + "' ") + why + "; example: " + example);
}

// Refuses a word that is none of `known` (separated by blanks), and names the nearest.
[[noreturn]] inline void refuse_word(const std::string& flag, const std::string& text,
                                     const std::string& known, const std::string& example) {
  std::istringstream words(known);
  std::string meant = nearest(text, {std::istream_iterator<std::string>(words), {}});
  refuse(flag, text, "is none of " + known + (meant.empty() ? "" : "; did you mean " + meant + "?"),
         example);
}

template <typename T>
T number(const std::string& flag, const std::string& text, T least, T most,
         const std::string& example) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      !(value >= least && value <= most)) {
    std::string range =
        std::is_floating_point_v<T>
            ? (least > 0 ? "is no number above 0 and at most " : "is no number from 0 to ") +
                  std::to_string(static_cast<long long>(most))
            : "is no number from " + std::to_string(least) + " to " + std::to_string(most);
    refuse(flag, text, range, example);
  }
  return value;
}

}  // namespace sluice::tools
