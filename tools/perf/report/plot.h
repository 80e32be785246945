// A chart of figures over message sizes, both on logarithmic axes: as an SVG that needs nothing
// else, as a gnuplot script with the data in it, or as bars of characters. Knows no measurement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::tools {

struct PlotPoint {
  uint64_t size_bytes = 0;
  double middle = 0;  // above 0
  double high = 0;    // of the band above it; `middle`: there is none
};

struct Plot {
  std::string title;
  std::string unit;               // of the figures
  std::string figure;             // "median"
  std::string band;               // "99 %"; empty: none
  std::vector<PlotPoint> points;  // by size
};

std::string as_svg(const Plot& plot);
std::string as_gnuplot(const Plot& plot);
// A line for each point.
std::string as_bars(const Plot& plot);

}  // namespace sluice::tools
