#include <catch2/catch.hpp>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tools/perf/report/plot.h"

namespace sluice::tools {
namespace {

Plot latencies() {
  return {.title = "send_lat over <&\"'>",
          .unit = "us",
          .figure = "median",
          .band = "99 %",
          .points = {{2, 0.5, 0.9}, {64, 1, 1.5}, {4096, 4, 4}, {1 << 20, 90, 200}}};
}

std::vector<double> numbers(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream in(text);
  std::vector<double> out;
  for (double value = 0; in >> value;) out.push_back(value);
  return out;
}

// The points of the first element of that class.
std::vector<double> points_of(const std::string& svg, const std::string& kind) {
  size_t at = svg.find("class=\"" + kind + "\" points=\"");
  if (at == std::string::npos) return {};
  at = svg.find("points=\"", at) + 8;
  return numbers(svg.substr(at, svg.find('"', at) - at));
}

TEST_CASE("a chart has each figure where a logarithmic axis has it, and stays within its picture",
          "[plot]") {
  std::string svg = as_svg(latencies());
  std::vector<double> line = points_of(svg, "line");
  REQUIRE(line.size() == 8);
  // Sizes 2^1, 2^6, 2^12, 2^20; y grows downwards.
  CHECK((line[2] - line[0]) / (line[6] - line[0]) == Approx(5.0 / 19).margin(0.002));
  CHECK((line[4] - line[0]) / (line[6] - line[0]) == Approx(11.0 / 19).margin(0.002));
  CHECK((line[1] - line[3]) / (line[1] - line[5]) == Approx(1.0 / 3).margin(0.004));  // 0.5, 1, 4
  for (size_t i = 0; i < line.size(); i += 2)
    CHECK((line[i] > 0 && line[i] < 400 && line[i + 1] > 0 && line[i + 1] < 260));
  std::vector<double> band = points_of(svg, "band");
  REQUIRE(band.size() == 16);
  CHECK(std::equal(line.begin(), line.end(), band.begin()));
  CHECK(band[9] < line[7]);    // the last size's upper edge
  CHECK(band[11] == line[5]);  // where the band has no height
  CHECK(svg.find("<script") == std::string::npos);
  CHECK(svg.find("href") == std::string::npos);
  CHECK(svg.find("prefers-color-scheme:dark") != std::string::npos);
  CHECK(svg.find("over &lt;&amp;&quot;'&gt;") != std::string::npos);
}

TEST_CASE("one size, no size above nothing, and figures that are all the same are charts, too",
          "[plot]") {
  for (Plot plot :
       {Plot{.title = "t", .unit = "us", .figure = "median", .band = "", .points = {{64, 3, 3}}},
        Plot{.title = "t",
        .unit = "us",
        .figure = "median",
        .band = "99 %",
        .points = {{0, 3, 3}, {1, 3, 3}, {8, 3, 3}}},
        Plot{.title = "t",
        .unit = "us",
        .figure = "median",
        .band = "",
        .points = {{1, 1e-6, 1e-6}, {8, 1e9, 1e9}}}}) {
    std::string svg = as_svg(plot);
    CHECK(svg.find("nan") == std::string::npos);
    CHECK(svg.find("inf") == std::string::npos);
    std::vector<double> line = points_of(svg, "line");
    REQUIRE(line.size() == 2 * plot.points.size());
    for (size_t i = 0; i < line.size(); i += 2)
      CHECK((line[i] > 0 && line[i] < 400 && line[i + 1] > 0 && line[i + 1] < 260));
    CHECK(points_of(svg, "band").empty() == plot.band.empty());
  }
}

TEST_CASE("a script for gnuplot has the data in it", "[plot]") {
  std::string script = as_gnuplot(latencies());
  CHECK(script.find("$measured << END\n") != std::string::npos);
  CHECK(script.find("\n4096 4 4\n") != std::string::npos);
  CHECK(script.find("\n1048576 90 200\nEND\n") != std::string::npos);
  CHECK(script.find("set title 'send_lat over <&\"''>' noenhanced\n") != std::string::npos);
  CHECK(script.find("using 1:2:3 with filledcurves") != std::string::npos);
  Plot without = latencies();
  without.band.clear();
  CHECK(as_gnuplot(without).find("filledcurves") == std::string::npos);
  CHECK(as_gnuplot(without).find("\n64 1\n") != std::string::npos);
}

TEST_CASE("bars are as long as their figures are large", "[plot]") {
  Plot plot{.title = "send_bw over tcp",
            .unit = "MiB/s",
            .figure = "bandwidth",
            .band = "",
            .points = {{64, 10, 10}, {1024, 50, 50}, {1 << 20, 100, 100}}};
  std::istringstream bars(as_bars(plot));
  std::string line;
  std::getline(bars, line);
  CHECK(line == "send_bw over tcp, bandwidth [MiB/s]");
  std::vector<std::ptrdiff_t> lengths;
  while (std::getline(bars, line)) lengths.push_back(std::count(line.begin(), line.end(), '#'));
  CHECK(lengths == std::vector<std::ptrdiff_t>{5, 25, 50});
}

}  // namespace
}  // namespace sluice::tools
