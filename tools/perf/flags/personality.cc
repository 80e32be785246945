#include "tools/perf/flags/personality.h"

#include "tools/perf/flags/plan.h"

namespace sluice::tools {

std::vector<std::string> as_command(std::vector<std::string> arguments) {
  if (arguments.empty()) return arguments;
  std::string name = arguments[0].substr(arguments[0].rfind('/') + 1);
  bool perftest = name.starts_with("ib_");
  if (!perftest && !name.starts_with("sluice_")) return arguments;
  const TestKind* test = find_test(std::string_view(name).substr(perftest ? 3 : 7));
  if (test == nullptr || (perftest && !is_of_perftest(*test))) return arguments;
  std::vector<std::string> words = {arguments[0], "perf", std::string(test->name)};
  if (perftest) words.insert(words.end(), {"--format", "perftest"});
  words.insert(words.end(), arguments.begin() + 1, arguments.end());
  return words;
}

}  // namespace sluice::tools
