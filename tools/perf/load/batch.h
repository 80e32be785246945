// A file of command lines (--batch), and what their runs say together. Knows no flag.
#pragma once

#include <string>
#include <vector>

#include <sluice/base/result.h>

#include "tools/perf/run/control.h"

namespace sluice::tools {

struct BatchLine {
  unsigned number = 0;  // in the file, from 1
  std::string text;     // without comment
  std::vector<std::string> words;
};

// The lines that hold something. Words are between spaces; what is in '' or "" is one word as it
// is; from a # at a word's beginning on is comment; "sluice perf" at a line's beginning may be left
// out. Errors: kInvalidArgument with a detail for people (not readable, no line, too large, no end
// of a quotation).
Result<std::vector<BatchLine>> read_batch(const std::string& path);

// The documents of several runs as one of the same schema: every result with the line that it is
// of.
class BatchDocument {
 public:
  // `name`: the file's, or "all". `title`: empty, there is none.
  explicit BatchDocument(std::string name, const std::string& title = {});
  // `document`: null where the run came to none.
  void add(const BatchLine& line, int exit_code, Json document);
  const Json& whole() const { return whole_; }

 private:
  Json whole_;
};

// What the whole ends with, where its lines ended so: damage before failure before a missed
// threshold; nothing to run on if that is so of every line.
int batch_exit_code(const std::vector<int>& codes);

}  // namespace sluice::tools
