#include "tools/perf/report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace sluice::tools {
namespace {

// Units of the SVG: a phone's width.
constexpr double kWidth = 400, kHeight = 260, kLeft = 56, kRight = 388, kTop = 30, kBottom = 214;
constexpr double kTickRoom = 34;  // between the middles of two sizes' texts

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string short_size(uint64_t bytes) {
  for (auto [shift, letter] : {std::pair(30, 'G'), std::pair(20, 'M'), std::pair(10, 'K')}) {
    uint64_t unit = uint64_t{1} << shift;
    if (bytes >= unit && bytes % unit == 0) return fmt::format("{}{}", bytes / unit, letter);
  }
  return fmt::format("{}", bytes);
}

// 1, 2 and 5 times powers of ten that hold all values between the first and the last.
std::vector<double> ticks_of(double low, double high) {
  std::vector<double> ticks;
  for (int power = static_cast<int>(std::floor(std::log10(low)));
       power <= static_cast<int>(std::ceil(std::log10(high))); ++power) {
    for (double step : {1.0, 2.0, 5.0}) ticks.push_back(step * std::pow(10, power));
  }
  auto last_below = std::find_if(ticks.rbegin(), ticks.rend(),
                                 [low](double tick) { return tick <= low * 1.0001; });
  ticks.erase(ticks.begin(), std::prev(last_below.base()));
  auto first_above = std::find_if(ticks.begin(), ticks.end(),
                                  [high](double tick) { return tick >= high * 0.9999; });
  if (first_above != ticks.end()) ticks.erase(std::next(first_above), ticks.end());
  if (ticks.size() < 2) ticks.push_back(ticks.front() * 2);
  // Few enough to be read: the ends, and powers of ten between.
  if (ticks.size() <= 8) return ticks;
  std::vector<double> fewer;
  for (double tick : ticks) {
    double power = std::log10(tick);
    bool end = tick == ticks.front() || tick == ticks.back();
    if (end || std::abs(power - std::round(power)) < 1e-9) fewer.push_back(tick);
  }
  return fewer;
}

double along(double value, double low, double high, double first, double last) {
  return high > low ? first + std::log(value / low) / std::log(high / low) * (last - first)
                    : (first + last) / 2;
}

struct Axes {
  explicit Axes(const Plot& plot)
      : ticks(ticks_of(lowest(plot), highest(plot))),
        first(static_cast<double>(std::max<uint64_t>(plot.points.front().size_bytes, 1))),
        last(static_cast<double>(std::max<uint64_t>(plot.points.back().size_bytes, 1))) {}
  double x(uint64_t size) const {
    return along(static_cast<double>(std::max<uint64_t>(size, 1)), first, last, kLeft + 10,
                 kRight - 10);
  }
  double y(double value) const { return along(value, ticks.front(), ticks.back(), kBottom, kTop); }

  static double lowest(const Plot& plot) {
    return std::min_element(plot.points.begin(), plot.points.end(),
                            [](const auto& a, const auto& b) { return a.middle < b.middle; })
        ->middle;
  }
  static double highest(const Plot& plot) {
    return std::max_element(plot.points.begin(), plot.points.end(),
                            [](const auto& a, const auto& b) { return a.high < b.high; })
        ->high;
  }

  std::vector<double> ticks;
  double first, last;
};

std::string path_of(const Plot& plot, const Axes& axes) {
  std::string path;
  for (const PlotPoint& point : plot.points)
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", axes.x(point.size_bytes),
                        axes.y(point.middle));
  return path;
}

// From the figures along, and back along the band's upper edge.
std::string band_of(const Plot& plot, const Axes& axes) {
  std::string path = path_of(plot, axes);
  for (auto point = plot.points.rbegin(); point != plot.points.rend(); ++point)
    path += fmt::format(" {:.1f},{:.1f}", axes.x(point->size_bytes), axes.y(point->high));
  return path;
}

// A colour scheme of the reader's choice, and no font, script or picture from anywhere.
constexpr const char* kStyle =
    "<style>svg{background:#fff;color:#222;font:11px "
    "system-ui,sans-serif}.grid{stroke:#ddd}.line{stroke:#0072b2;stroke-width:2;fill:none}"
    ".mark{fill:#0072b2}.band{fill:#0072b2;fill-opacity:.18}text{fill:currentColor}"
    "@media(prefers-color-scheme:dark){svg{background:#16181c;color:#ddd}.grid{stroke:#3a3d44}."
    "line{stroke:#56b4e9}.mark,.band{fill:#56b4e9}}</style>";

}  // namespace

std::string as_svg(const Plot& plot) {
  Axes axes(plot);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" "
      "role=\"img\">\n<title>{}</title>\n{}\n",
      kWidth, kHeight, escaped(plot.title), kStyle);
  out += fmt::format("<text x=\"{}\" y=\"16\" text-anchor=\"middle\">{}</text>\n", kWidth / 2,
                     escaped(plot.title));
  for (double tick : axes.ticks) {
    double y = axes.y(tick);
    out += fmt::format(
        "<line class=\"grid\" x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\"/><text x=\"{}\" "
        "y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n",
        kLeft, y, kRight, y, kLeft - 5, y + 4, tick);
  }
  double written = -kTickRoom;
  for (const PlotPoint& point : plot.points) {
    double x = axes.x(point.size_bytes);
    if (x - written < kTickRoom) continue;
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x,
                       kBottom + 16, short_size(point.size_bytes));
    written = x;
  }
  std::string legend = plot.unit + " (" + plot.figure +
                       (plot.band.empty() ? "" : "; shaded up to " + plot.band) +
                       "), by bytes of a message";
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", kWidth / 2,
                     kHeight - 8, escaped(legend));
  if (!plot.band.empty())
    out += fmt::format("<polygon class=\"band\" points=\"{}\"/>\n", band_of(plot, axes));
  out += fmt::format("<polyline class=\"line\" points=\"{}\"/>\n", path_of(plot, axes));
  for (const PlotPoint& point : plot.points) {
    out += fmt::format(
        "<circle class=\"mark\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>{} B: {:.6g} "
        "{}</title></circle>\n",
        axes.x(point.size_bytes), axes.y(point.middle), point.size_bytes, point.middle,
        escaped(plot.unit));
  }
  return out + "</svg>\n";
}

std::string as_gnuplot(const Plot& plot) {
  // gnuplot's quotation by ' has no escapes but its own doubling.
  auto quoted = [](const std::string& text) {
    std::string out = "'";
    for (char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
    return out + "'";
  };
  std::string out = "# gnuplot -p FILE\n$measured << END\n# bytes, " + plot.figure +
                    (plot.band.empty() ? "" : ", " + plot.band) + " [" + plot.unit + "]\n";
  for (const PlotPoint& point : plot.points) {
    out += fmt::format("{} {:.9g}", std::max<uint64_t>(point.size_bytes, 1), point.middle);
    out += plot.band.empty() ? "\n" : fmt::format(" {:.9g}\n", point.high);
  }
  out += "END\nset title " + quoted(plot.title) +
         " noenhanced\nset xlabel 'bytes of a message'\nset ylabel " + quoted(plot.unit) +
         "\nset logscale x 2\nset logscale y 10\nset grid\n";
  out += "plot ";
  if (!plot.band.empty())
    out += "$measured using 1:2:3 with filledcurves fillstyle transparent solid 0.2 title " +
           quoted("up to " + plot.band) + ", ";
  return out + "$measured using 1:2 with linespoints title " + quoted(plot.figure) + "\n";
}

std::string as_bars(const Plot& plot) {
  constexpr double kLongest = 50;
  double most =
      std::max_element(plot.points.begin(), plot.points.end(), [](const auto& a, const auto& b) {
        return a.middle < b.middle;
      })->middle;
  std::string out = plot.title + ", " + plot.figure + " [" + plot.unit + "]\n";
  for (const PlotPoint& point : plot.points) {
    auto length = static_cast<size_t>(std::ceil(point.middle / most * kLongest));
    out += fmt::format("{:>8} {:>14.3f} {}\n", short_size(point.size_bytes), point.middle,
                       std::string(length, '#'));
  }
  return out;
}

}  // namespace sluice::tools
