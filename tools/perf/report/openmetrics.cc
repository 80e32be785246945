#include "tools/perf/report/openmetrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

namespace sluice::tools {
namespace {

// A gauge: the field of a result that it shows, by so many of its unit. The name ends with the
// unit.
struct Gauge {
  const char* name;
  const char* field;
  double scale;
  const char* unit;  // of the names that end with one
  const char* help;
};

constexpr double kSecondsPerNanosecond = 1e-9;
constexpr std::array<Gauge, 8> kGauges = {{
    {"sluice_perf_bytes_per_second", "bytes_per_second", 1, "", "Payload of both directions."},
    {"sluice_perf_messages_per_second", "messages_per_second", 1, "",
     "Messages of both directions."},
    {"sluice_perf_cpu_seconds_per_byte", "cpu_ns_per_byte", kSecondsPerNanosecond, "",
     "CPU time of both processes by payload byte."},
    {"sluice_perf_copied_bytes_per_byte", "copied_bytes_per_byte", 1, "",
     "Bytes that CPUs copied on both sides by payload byte."},
    {"sluice_perf_verified_bytes", "verified_bytes", 1, "bytes",
     "Bytes checked; with a wrong one there are no figures."},
    {"sluice_perf_timed_seconds", "seconds", 1, "seconds",
     "How long the timed iterations took together."},
    {"sluice_perf_tx_depth", "tx_depth", 1, "", "Operations outstanding on each connection."},
    {"sluice_perf_qps", "qps", 1, "", "Connections."},
}};

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump();
}

std::string label(const char* name, const Json& value) {
  return fmt::format("{}=\"{}\"", name, escaped(text_of(value)));
}

// Which measurement a sample is of.
std::string labels_of(const Json& result) {
  std::string labels = label("test", result["test"]) + "," +
                       label("transport", result["transport"]) + "," +
                       label("size_bytes", result["size_bytes"]);
  if (result.contains("reply_size_bytes"))
    labels += "," + label("reply_size_bytes", result["reply_size_bytes"]);
  if (result.contains("line")) labels += "," + label("line", result["line"]);
  return labels;
}

void begin_family(std::string& out, const char* name, const char* type, const char* unit,
                  const char* help) {
  out += fmt::format("# TYPE {} {}\n", name, type);
  if (*unit != '\0') out += fmt::format("# UNIT {} {}\n", name, unit);
  out += fmt::format("# HELP {} {}\n", name, help);
}

void add_about(std::string& out, const Json& document) {
  const Json& environment = document["environment"];
  begin_family(out, "sluice_perf", "info", "", "What the figures were taken with.");
  out += "sluice_perf_info{";
  std::string separator;
  for (const char* name : {"version", "host", "kernel", "architecture", "cpu", "waiting"}) {
    if (!environment.is_object() || !environment.contains(name)) continue;
    out += separator + label(name, environment[name]);
    separator = ",";
  }
  out += "} 1\n";
}

struct Quantile {
  double at = 0;  // from 0 to 1
  double ns = 0;
};

// Percentiles by their fields: p50, p99_9 and what else was asked for; the ends are quantiles as
// well.
std::vector<Quantile> quantiles_of(const Json& latency) {
  std::vector<Quantile> quantiles;
  for (const auto& [name, ns] : latency.items()) {
    if (name == "min" || name == "max") quantiles.push_back({name == "min" ? 0.0 : 1.0, ns});
    if (name.size() < 2 || name[0] != 'p') continue;
    std::string percent = name.substr(1);
    std::replace(percent.begin(), percent.end(), '_', '.');
    quantiles.push_back({std::strtod(percent.c_str(), nullptr) / 100, ns});
  }
  std::sort(quantiles.begin(), quantiles.end(),
            [](const Quantile& a, const Quantile& b) { return a.at < b.at; });
  // p100 is the longest, which is there already.
  quantiles.erase(std::unique(quantiles.begin(), quantiles.end(),
                              [](const Quantile& a, const Quantile& b) { return a.at == b.at; }),
                  quantiles.end());
  return quantiles;
}

void add_latencies(std::string& out, const Json& results) {
  const char* name = "sluice_perf_latency_seconds";
  begin_family(out, name, "summary", "seconds",
               "Latency: of _lat tests one way (read, atomic, rpc: there and back), of _bw tests "
               "from post to completion.");
  for (const Json& result : results) {
    std::string labels = labels_of(result);
    for (const Quantile& quantile : quantiles_of(result["latency_ns"])) {
      out += fmt::format("{}{{{},quantile=\"{:.10g}\"}} {:.10g}\n", name, labels, quantile.at,
                         quantile.ns * kSecondsPerNanosecond);
    }
    auto count = result["iterations"].get<double>();
    out += fmt::format("{}_count{{{}}} {:.0f}\n", name, labels, count);
    out += fmt::format("{}_sum{{{}}} {:.10g}\n", name, labels,
                       result["latency_ns"]["mean"].get<double>() * kSecondsPerNanosecond * count);
  }
}

void add_counters(std::string& out, const Json& document) {
  if (!document.contains("counters") || document["counters"].empty()) return;
  begin_family(out, "sluice_counter", "counter", "",
               "The library's counters in the client's process.");
  for (const auto& [name, value] : document["counters"].items()) {
    out += fmt::format("sluice_counter_total{{{}}} {}\n", label("name", name), value.dump());
  }
}

}  // namespace

std::string openmetrics(const Json& document) {
  std::string out;
  add_about(out, document);
  const Json& results = document["results"];
  if (!results.empty()) {
    for (const Gauge& gauge : kGauges) {
      begin_family(out, gauge.name, "gauge", gauge.unit, gauge.help);
      for (const Json& result : results) {
        out += fmt::format("{}{{{}}} {:.10g}\n", gauge.name, labels_of(result),
                           result[gauge.field].get<double>() * gauge.scale);
      }
    }
    add_latencies(out, results);
  }
  add_counters(out, document);
  return out + "# EOF\n";
}

}  // namespace sluice::tools
