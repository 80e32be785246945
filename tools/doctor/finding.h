// What a check of `sluice doctor` found.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sluice::tools {

enum class Severity {
  kOk,       // was tried, and works
  kNote,     // works without it, or only measurements suffer
  kProblem,  // something that was asked for does not work
};

struct Finding {
  Severity severity = Severity::kOk;
  std::string check;   // stable name, such as "open-files": for scripts
  std::string text;    // what was found
  std::string remedy;  // what to do; empty if severity is kOk
};
using Findings = std::vector<Finding>;

inline Finding ok(std::string check, std::string text) {
  return {Severity::kOk, std::move(check), std::move(text), {}};
}
inline Finding note(std::string check, std::string text, std::string remedy) {
  return {Severity::kNote, std::move(check), std::move(text), std::move(remedy)};
}
inline Finding problem(std::string check, std::string text, std::string remedy) {
  return {Severity::kProblem, std::move(check), std::move(text), std::move(remedy)};
}

// The two parts of a text of the library, "cause; remedy". Without a semicolon the remedy is
// `otherwise`.
inline std::pair<std::string, std::string> cause_and_remedy(const std::string& text,
                                                            const std::string& otherwise) {
  const size_t end = text.find("; ");
  if (end == std::string::npos) return {text, otherwise};
  return {text.substr(0, end), text.substr(end + 2)};
}

}  // namespace sluice::tools
