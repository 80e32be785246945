#include "tools/perf/plot_file.h"

#include <algorithm>

#include "tools/perf/document_file.h"
#include "tools/perf/figures.h"
#include "tools/perf/plot.h"

namespace sluice::tools {
namespace {

Plot plot_of(const PerfOptions& options, const ClientRun& run) {
  bool latency = options.test->latency;
  Plot plot;
  plot.unit = latency ? "us" : "MiB/s";
  plot.figure = latency ? "median" : "bandwidth";
  plot.band = latency ? "99 %" : "";
  for (const Measurement& m : run.measurements) {
    if (m.verdict.mismatched_bytes > 0) continue;
    plot.title = std::string(options.test->name) + " over " + m.path;
    double middle = latency ? m.latency_ns.p50 / 1e3 : bytes_per_second(m) / (1 << 20);
    if (middle > 0) plot.points.push_back({m.load.size_bytes, middle, latency ? m.latency_ns.p99 / 1e3 : middle});
  }
  std::sort(plot.points.begin(), plot.points.end(), [](const PlotPoint& a, const PlotPoint& b) { return a.size_bytes < b.size_bytes; });
  return plot;
}

}  // namespace

std::string plot_obstacle(const std::string& path) {
  if (path == "-") return "";
  if (!path.ends_with(".svg") && !path.ends_with(".gp")) return "ends neither in .svg nor in .gp, nor is it -";
  std::string obstacle = json_obstacle(path);
  return obstacle.empty() ? "" : "cannot be written: " + obstacle;
}

Status draw(const PerfOptions& options, const ClientRun& run) {
  Plot plot = plot_of(options, run);
  const std::string& path = options.plot_path;
  if (plot.points.empty()) return Status();
  return write_text("--plot", path, path == "-" ? as_bars(plot) : path.ends_with(".svg") ? as_svg(plot) : as_gnuplot(plot));
}

}  // namespace sluice::tools
