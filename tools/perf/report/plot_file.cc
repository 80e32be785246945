#include "tools/perf/report/plot_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/perf/report/document_file.h"
#include "tools/perf/report/figures.h"
#include "tools/perf/report/plot.h"

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
    if (middle > 0)
      plot.points.push_back({m.load.size_bytes, middle, latency ? m.latency_ns.p99 / 1e3 : middle});
  }
  if (!options.title.empty()) plot.title = options.title;
  std::sort(plot.points.begin(), plot.points.end(),
            [](const PlotPoint& a, const PlotPoint& b) { return a.size_bytes < b.size_bytes; });
  return plot;
}

}  // namespace

std::string plot_obstacle(const std::string& path) {
  if (path == "-") return "";
  if (!path.ends_with(".svg") && !path.ends_with(".gp"))
    return "ends neither in .svg nor in .gp, nor is it -";
  std::string obstacle = json_obstacle(path);
  return obstacle.empty() ? "" : "cannot be written: " + obstacle;
}

Status draw(const PerfOptions& options, const ClientRun& run) {
  Plot plot = plot_of(options, run);
  const std::string& path = options.plot_path;
  if (plot.points.empty()) return Status();
  return write_text("--plot", path,
                    path == "-"              ? as_bars(plot)
                    : path.ends_with(".svg") ? as_svg(plot)
                                             : as_gnuplot(plot));
}

Status write_histograms(const PerfOptions& options, const ClientRun& run) {
  std::string name = options.title.empty() ? std::string(options.test->name) : options.title;
  std::string out = "# " + name +
                    "\n# gnuplot -p -e \"set logscale x; plot 'FILE' index 0 using 1:3 with "
                    "steps\": an index for each size, from 0 on\n";
  out += "# from_us to_us samples share share_up_to_here\n";
  bool first = true;
  for (const Measurement& m : run.measurements) {
    if (m.verdict.mismatched_bytes > 0 || m.histogram_ns.empty()) continue;
    size_t all = 0, until = 0;
    for (const Bin& bin : m.histogram_ns) all += bin.count;
    out += fmt::format("{}# {} over {}, {} bytes, {} samples\n", first ? "" : "\n\n",
                       m.load.test->name, m.path, m.load.size_bytes, all);
    first = false;
    for (const Bin& bin : m.histogram_ns) {
      until += bin.count;
      auto share = [all](size_t count) {
        return static_cast<double>(count) / static_cast<double>(all);
      };
      out += fmt::format("{:.6g} {:.6g} {} {:.6g} {:.6g}\n", bin.from / 1e3, bin.to / 1e3,
                         bin.count, share(bin.count), share(until));
    }
  }
  if (first) return Status();
  return write_text("--hist", options.histogram_path, out);
}

}  // namespace sluice::tools
