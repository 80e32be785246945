// A JSON document as a file that is there whole or not at all.
#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include <sluice/base/result.h>

namespace sluice::tools {

// JSON as text; `indent` as for nlohmann::json::dump(). What is not UTF-8, which arguments and
// names of files need not be, has U+FFFD in its place.
std::string json_text(const nlohmann::json& document, int indent);

// Whether a file can be made at `path`; else why not. Leaves nothing there.
std::string json_obstacle(const std::string& path);
// All or nothing: into a file beside it, then renamed. What is not a regular file (a
// pipe, /dev/null) is written directly; "-" is stdout.
Status write_json(const std::string& path, const nlohmann::json& document);
// The same of any text; `flag` is named where it fails.
Status write_text(const std::string& flag, const std::string& path, const std::string& text);

}  // namespace sluice::tools
