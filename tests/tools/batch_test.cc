#include <catch2/catch.hpp>

#include <cstdio>
#include <fstream>
#include <string>

#include "tools/perf/load/batch.h"
#include "tools/perf/flags/plan.h"

namespace sluice::tools {
namespace {

class File {
 public:
  explicit File(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  ~File() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ =
      std::string(std::getenv("TEST_TMPDIR") != nullptr ? std::getenv("TEST_TMPDIR") : "/tmp") +
      "/batch_test_lines";
};

std::string why_not(const std::string& text) {
  File file(text);
  auto lines = read_batch(file.path());
  return lines.ok() ? "" : std::string(lines.status().detail());
}

TEST_CASE("lines keep their number, comments and empty ones go, quotations are words", "[batch]") {
  File file(
      "# all\n\n  send_lat --self   -s 64  # small\r\n\t\nsluice perf write_bw host#1 '--json' \"a "
      "b\"'c d'e ''\n   #\nperf read_lat --self");
  auto lines = read_batch(file.path());
  REQUIRE(lines.ok());
  REQUIRE(lines->size() == 3);
  CHECK((*lines)[0].number == 3);
  CHECK((*lines)[0].text == "send_lat --self   -s 64");
  CHECK((*lines)[0].words == std::vector<std::string>{"send_lat", "--self", "-s", "64"});
  CHECK((*lines)[1].number == 5);
  CHECK((*lines)[1].words ==
        std::vector<std::string>{"write_bw", "host#1", "--json", "a bc de", ""});
  CHECK((*lines)[2].words == std::vector<std::string>{"read_lat", "--self"});
}

TEST_CASE("a file that cannot be a batch says why", "[batch]") {
  CHECK(why_not("") == "has no line to run");
  CHECK(why_not("# nothing\n\n") == "has no line to run");
  CHECK(why_not("a\nb 'c\n") == "line 2: a quotation has no end");
  CHECK(why_not(std::string((1 << 20) + 1, '#')).find("longer") != std::string::npos);
  std::string many;
  for (int i = 0; i < 10'001; ++i) many += "a\n";
  CHECK(why_not(many).find("longer") != std::string::npos);
  CHECK_FALSE(read_batch("/nowhere/lines").ok());
  CHECK_FALSE(read_batch("/tmp").ok());
}

TEST_CASE("the whole ends with what is worst of its lines", "[batch]") {
  CHECK(batch_exit_code({0, 0}) == kExitOk);
  CHECK(batch_exit_code({0, 3, 1, 4, 77}) == kExitCorrupt);
  CHECK(batch_exit_code({3, 1, 0}) == kExitFailed);
  CHECK(batch_exit_code({0, 3, 77}) == kExitMissed);
  CHECK(batch_exit_code({77, 0}) == kExitOk);
  CHECK(batch_exit_code({77, 77}) == kExitNothingToRunOn);
}

TEST_CASE("documents of lines become one, and each result and warning names its line", "[batch]") {
  BatchDocument document("lines");
  Json one{{"schema", "sluice.perf/1"},
           {"environment", {{"host", "a"}}},
           {"results", {{{"test", "send_lat"}}, {{"test", "send_lat"}}}},
           {"warnings", {"odd"}},
           {"counters", {{"x", 1}}}};
  document.add({.number = 4, .text = "send_lat", .words = {}}, 0, one);
  document.add({.number = 6, .text = "write_bw", .words = {}}, 77, Json());
  const Json& whole = document.whole();
  CHECK(whole["schema"] == "sluice.perf/1");
  REQUIRE(whole["results"].size() == 2);
  CHECK(whole["results"][1]["line"] == 4);
  CHECK(whole["warnings"] == Json({"line 4: odd", "line 6: nothing here to run on"}));
  CHECK(whole["environment"]["host"] == "a");
  CHECK(whole["batch"]["lines"][0]["environment"]["host"] == "a");
  CHECK(whole["batch"]["lines"][1] ==
        Json({{"line", 6}, {"command", "write_bw"}, {"exit_code", 77}}));
}

}  // namespace
}  // namespace sluice::tools
