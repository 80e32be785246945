#include "tools/perf/run/thresholds.h"

#include <errno.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "tools/perf/report/figures.h"

namespace sluice::tools {
namespace {

std::string text_of(const Json& object, const char* name) {
  auto field = object.find(name);
  return field != object.end() && field->is_string() ? field->get<std::string>() : "";
}

double number_of(const Json& object, const char* name) {
  auto field = object.find(name);
  return field != object.end() && field->is_number() ? field->get<double>() : 0;
}

// Zero: it has none.
double figure_of(const Json& result, bool latency) {
  if (!latency) return number_of(result, "bytes_per_second");
  auto all = result.find("latency_ns");
  return all != result.end() && all->is_object() ? number_of(*all, "p50") : 0;
}

// What of a run a figure is compared by.
struct Subject {
  std::string test;
  double size = 0;
  bool bidirectional = false;
  std::optional<double> reply_size;  // of tests that have answers

  bool operator==(const Subject&) const = default;
  std::string named() const {
    return fmt::format("{} of {:.0f} bytes{}{}", test, size,
                       bidirectional ? " in both directions" : "",
                       reply_size ? fmt::format(" answered with {:.0f}", *reply_size) : "");
  }
};

Subject subject_of(const Json& result) {
  auto both = result.find("bidirectional");
  Subject subject{text_of(result, "test"),
                  number_of(result, "size_bytes"),
                  both != result.end() && *both == true,
                  {}};
  if (result.contains("reply_size_bytes"))
    subject.reply_size = number_of(result, "reply_size_bytes");
  return subject;
}

Subject subject_of(const PerfOptions& options, uint64_t size) {
  Subject subject{
      std::string(options.test->name), static_cast<double>(size), options.bidirectional, {}};
  if (options.test->verb == Verb::kRpc)
    subject.reply_size = static_cast<double>(options.reply_bytes.value_or(size));
  return subject;
}

const Json* result_of(const Json& results, const Subject& subject) {
  for (const Json& result : results) {
    if (result.is_object() && subject_of(result) == subject) return &result;
  }
  return nullptr;
}

// What a document is of, where it is of nothing that was asked for.
std::string contents_of(const Json& results) {
  std::string list;
  for (const Json& result : results) {
    if (!result.is_object()) continue;
    std::string entry = subject_of(result).named();
    if (list.size() + entry.size() > 200) return list + ", ...";
    list += (list.empty() ? "" : ", ") + entry;
  }
  return list.empty() ? "nothing" : list;
}

double figure_of(const Measurement& m) {
  return m.load.test->latency ? m.latency_ns.p50 : bytes_per_second(m);
}

// Per cent; below zero: better.
double worse_by(bool latency, double before, double now) {
  return (latency ? now / before - 1 : 1 - now / before) * 100;
}

std::string readable(bool latency, double figure) {
  return latency ? fmt::format("{:.3f} us", figure / 1e3)
                 : fmt::format("{:.2f} MiB/s", figure / (1 << 20));
}

void judge_limits(const PerfOptions& options, const Measurement& m, std::vector<std::string>& lines,
                  bool& missed) {
  double bandwidth = bytes_per_second(m) / (options.gigabits ? 1e9 / 8 : 1 << 20),
         rate = messages_per_second(m) / 1e6;
  if (options.least_bandwidth && bandwidth < *options.least_bandwidth) {
    lines.push_back(fmt::format("{} bytes: {:.2f} {} are below --limit_bw {}", m.load.size_bytes,
                                bandwidth, options.gigabits ? "Gb/s" : "MiB/s",
                                *options.least_bandwidth));
    missed = true;
  }
  if (options.least_rate && rate < *options.least_rate) {
    lines.push_back(
        fmt::format("{} bytes: {:.6f} million messages per second are below --limit_msgrate {}",
                    m.load.size_bytes, rate, *options.least_rate));
    missed = true;
  }
}

}  // namespace

std::string read_baseline(PerfOptions& options) {
  errno = 0;
  std::ifstream file(options.baseline_path);
  if (!file) return std::string("cannot be read: ") + std::strerror(errno);
  std::ostringstream text;
  text << file.rdbuf();  // of a folder: nothing
  Json document = Json::parse(text.str(), nullptr, false);
  if (!document.is_object()) return "is no JSON document";
  std::string schema = text_of(document, "schema");
  if (schema != kSchema)
    return "has the schema '" + schema.substr(0, 60) + "', not '" + kSchema + "'";
  auto results = document.find("results");
  if (results == document.end() || !results->is_array()) return "has no results";
  for (uint64_t size : options.sizes) {
    const Json* result = result_of(*results, subject_of(options, size));
    std::string wanted = subject_of(options, size).named();
    if (result == nullptr) return "has no " + wanted + ", but " + contents_of(*results);
    Reference reference{size, figure_of(*result, options.test->latency),
                        text_of(*result, "transport")};
    if (!(reference.figure > 0)) return "has no figure for " + wanted;
    options.references.push_back(reference);
  }
  return "";
}

std::vector<std::string> judge(const PerfOptions& options, const ClientRun& run, Json& document,
                               bool& missed) {
  std::vector<std::string> lines;
  bool latency = options.test->latency;
  for (size_t i = 0; i < run.measurements.size(); ++i) {
    const Measurement& m = run.measurements[i];
    if (m.verdict.mismatched_bytes > 0) break;
    judge_limits(options, m, lines, missed);
    if (i >= options.references.size()) continue;
    const Reference& before = options.references[i];
    double now = figure_of(m), worse = worse_by(latency, before.figure, now);
    bool fails = options.worse_limit && worse > *options.worse_limit;
    std::string limit =
        options.worse_limit ? fmt::format(", limit {:g} %", *options.worse_limit) : "";
    std::string path = m.path == before.path
                           ? ""
                           : fmt::format("; over {}, the baseline over {}", m.path, before.path);
    lines.push_back(fmt::format(
        "{} bytes: {} {}, in the baseline {}: {:.1f} % {}{}{}", m.load.size_bytes,
        latency ? "median" : "bandwidth", readable(latency, now), readable(latency, before.figure),
        worse < 0 ? -worse : worse, worse < 0 ? "better" : "worse", limit, path));
    document["baseline"]["comparisons"].push_back({{"size_bytes", m.load.size_bytes},
                                                   {"before", before.figure},
                                                   {"now", now},
                                                   {"worse_percent", worse},
                                                   {"missed", fails}});
    missed = missed || fails;
  }
  if (options.references.empty()) return lines;
  document["baseline"]["file"] = options.baseline_path;
  document["baseline"]["figure"] = latency ? "latency_ns.p50" : "bytes_per_second";
  document["baseline"]["limit_percent"] = options.worse_limit ? Json(*options.worse_limit) : Json();
  return lines;
}

}  // namespace sluice::tools
