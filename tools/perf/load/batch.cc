#include "tools/perf/load/batch.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "tools/perf/flags/plan.h"
#include "tools/perf/report/report.h"

namespace sluice::tools {
namespace {

constexpr size_t kLargestBatchBytes = size_t{1} << 20;
constexpr size_t kMostLines = 10'000;

Status refused(std::string why) {
  return Status(Code::kInvalidArgument, Scope::kOperation, "perf/batch", std::move(why));
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// Errors: a quotation without an end.
Result<BatchLine> split(unsigned number, const std::string& text) {
  BatchLine line{.number = number};
  size_t at = 0, end = 0;
  while (true) {
    while (at < text.size() && is_space(text[at])) ++at;
    if (at == text.size() || text[at] == '#') break;
    std::string word;
    while (at < text.size() && !is_space(text[at])) {
      char quote = text[at] == '\'' || text[at] == '"' ? text[at] : '\0';
      if (quote == '\0') {
        word += text[at++];
        continue;
      }
      size_t close = text.find(quote, at + 1);
      if (close == std::string::npos)
        return refused("line " + std::to_string(number) + ": a quotation has no end");
      word += text.substr(at + 1, close - at - 1);
      at = close + 1;
    }
    line.words.push_back(std::move(word));
    end = at;
  }
  line.text = text.substr(0, end);
  line.text.erase(0, std::min(line.text.find_first_not_of(" \t\r"), line.text.size()));
  for (const char* lead : {"sluice", "perf"}) {
    if (!line.words.empty() && line.words.front() == lead) line.words.erase(line.words.begin());
  }
  return line;
}

}  // namespace

Result<std::vector<BatchLine>> read_batch(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  if (!file) return refused(std::string("cannot be read: ") + std::strerror(errno));
  std::vector<BatchLine> lines;
  std::string text;
  size_t bytes = 0;
  for (unsigned number = 1; std::getline(file, text); ++number) {
    bytes += text.size() + 1;
    if (bytes > kLargestBatchBytes || lines.size() == kMostLines)
      return refused("is longer than 1 MiB or 10000 lines");
    SLUICE_TRY(BatchLine line, split(number, text));
    if (!line.text.empty()) lines.push_back(std::move(line));
  }
  if (file.bad()) return refused("cannot be read");  // a folder
  if (lines.empty()) return refused("has no line to run");
  return lines;
}

BatchDocument::BatchDocument(std::string name, const std::string& title) {
  whole_ = {{"schema", kSchema},
            {"environment", Json()},
            {"batch", {{"file", std::move(name)}, {"lines", Json::array()}}},
            {"results", Json::array()},
            {"warnings", Json::array()},
            {"counters", Json::object()}};
  if (!title.empty()) whole_["title"] = title;
}

void BatchDocument::add(const BatchLine& line, int exit_code, Json document) {
  Json entry{{"line", line.number}, {"command", line.text}, {"exit_code", exit_code}};
  const std::string where = "line " + std::to_string(line.number) + ": ";
  if (document.is_null()) {
    whole_["warnings"].push_back(where + (exit_code == kExitNothingToRunOn
                                              ? "nothing here to run on"
                                              : "failed before it began"));
  } else {
    for (Json& result : document["results"]) {
      result["line"] = line.number;
      whole_["results"].push_back(std::move(result));
    }
    for (const Json& warning : document["warnings"])
      whole_["warnings"].push_back(where + warning.get<std::string>());
    if (whole_["environment"].is_null()) whole_["environment"] = document["environment"];
    whole_["counters"] = document["counters"];  // of the one process that runs them all, so far
    entry["environment"] = std::move(document["environment"]);
    if (document.contains("title")) entry["title"] = std::move(document["title"]);
    if (document.contains("baseline")) entry["baseline"] = std::move(document["baseline"]);
  }
  whole_["batch"]["lines"].push_back(std::move(entry));
}

int batch_exit_code(const std::vector<int>& codes) {
  for (int code : {kExitCorrupt, kExitFailed, kExitMissed}) {
    if (std::find(codes.begin(), codes.end(), code) != codes.end()) return code;
  }
  bool none = !codes.empty() && std::all_of(codes.begin(), codes.end(),
                                            [](int code) { return code == kExitNothingToRunOn; });
  return none ? kExitNothingToRunOn : kExitOk;
}

}  // namespace sluice::tools
