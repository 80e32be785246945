#include "tools/perf/report/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "tools/perf/report/document_file.h"
#include "tools/perf/report/figures.h"
#include "tools/perf/report/openmetrics.h"
#include "tools/perf/report/perftest_text.h"
#include "tools/perf/report/report.h"

namespace sluice::tools {
namespace {

void text_header(const PerfOptions& options) {
  std::string asked;
  for (const Rank& rank : options.percentiles)
    asked += fmt::format("   {}% percentile[usec]", rank.text);
  if (options.test->latency) {
    fmt::print(
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
        "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]   copies/byte   path{}\n",
        asked);
  } else {
    fmt::print(
        " #bytes     #iterations    BW average[MiB/sec]   MsgRate[Mpps]   CPU[ns/byte]   "
        "copies/byte   path{}\n",
        asked);
  }
}

// A line for each bin: from, to, how many, and a bar that is longest where there are most.
void text_histogram(const Measurement& m) {
  constexpr size_t kLongestBar = 60;
  size_t most = 0;
  for (const Bin& bin : m.histogram_ns) most = std::max(most, bin.count);
  for (const Bin& bin : m.histogram_ns) {
    size_t length = (bin.count * kLongestBar + most - 1) / most;
    fmt::print("   {:>14.3f} {:>14.3f} [usec] {:>10} {}\n", bin.from / 1e3, bin.to / 1e3, bin.count,
               std::string(length, '#'));
  }
}

void text_interval(const Confidence& wanted, const Measurement& m) {
  const RepeatedFigure& figure = *m.repeated;
  double unit = m.load.test->latency ? 1e3 : 1 << 20;
  fmt::print("   {:g} % interval of the {}: {:.3f} to {:.3f} {}, {:.3f} +- {:.2f} %, {} runs{}\n",
             wanted.level_percent, m.load.test->latency ? "median" : "bandwidth",
             figure.interval.low / unit, figure.interval.high / unit,
             m.load.test->latency ? "usec" : "MiB/sec", figure.interval.mean / unit,
             figure.interval.half_width_percent(), figure.values.size(),
             figure.reached ? "" : ", wider than was asked for");
}

// A line below a row.
void text_latencies(const PerfOptions& options, const std::string& of, const Distribution& d,
                    const std::vector<double>& percentiles_ns) {
  fmt::print(
      "   {}: t_min {:.3f}, t_max {:.3f}, t_typical {:.3f}, t_avg {:.3f}, t_stdev {:.3f}, 99% "
      "{:.3f}, 99.9% {:.3f}",
      of, d.min / 1e3, d.max / 1e3, d.p50 / 1e3, d.mean / 1e3, d.stdev / 1e3, d.p99 / 1e3,
      d.p99_9 / 1e3);
  for (size_t i = 0; i < percentiles_ns.size(); ++i)
    fmt::print(", {}% {:.3f}", options.percentiles[i].text, percentiles_ns[i] / 1e3);
  fmt::print(" [usec]\n");
}

void text_loaded(const PerfOptions& options, const Loaded& loaded) {
  double flow =
      per_second(loaded.flow_messages * loaded.flow.size_bytes, loaded.seconds) / (1 << 20);
  text_latencies(options, fmt::format("under load ({:.2f} MiB/sec)", flow), loaded.latency_ns,
                 loaded.percentiles_ns);
}

void text_companion(const PerfOptions& options, const Companion& second) {
  std::string name(second.name);
  std::replace(name.begin(), name.end(), '_', ' ');
  if (options.test->latency)
    return text_latencies(options, name, second.latency_ns, second.percentiles_ns);
  fmt::print("   {}: {:.2f} MiB/sec\n", name,
             per_second(second.payload_bytes, second.seconds) / (1 << 20));
}

// If so, the bandwidth counts bytes that no one read.
bool handed_over_unread(const Measurement& m) {
  return m.load.test->verb == Verb::kExchange && !m.load.into && m.load.consume_stride == 0 &&
         copies_per_byte(m) == 0;
}

void text_row(const PerfOptions& options, const Measurement& m) {
  double copies = copies_per_byte(m);
  if (m.load.test->latency) {
    const Distribution& d = m.latency_ns;
    fmt::print(
        " {:<10} {:<10} {:<14.3f} {:<14.3f} {:<16.3f} {:<14.3f} {:<15.3f} {:<22.3f} {:<24.3f} "
        "{:<13.2f} {}",
        m.load.size_bytes, m.iterations, d.min / 1e3, d.max / 1e3, d.p50 / 1e3, d.mean / 1e3,
        d.stdev / 1e3, d.p99 / 1e3, d.p99_9 / 1e3, copies, m.path);
  } else {
    fmt::print(" {:<10} {:<14} {:<21.2f} {:<15.6f} {:<14.4f} {:<13.2f} {}", m.load.size_bytes,
               m.iterations, bytes_per_second(m) / (1 << 20), messages_per_second(m) / 1e6,
               per_byte(m.cpu_ns, m.payload_bytes), copies, m.path);
  }
  for (double ns : m.percentiles_ns) fmt::print("   {:<20.3f}", ns / 1e3);
  fmt::print("\n");
  if (handed_over_unread(m))
    fmt::print(
        "   handed over as views: nobody read the bytes (--consume reads them, --into copies "
        "them)\n");
  if (options.reply_bytes) fmt::print("   each answered with {} bytes\n", *options.reply_bytes);
  if (m.repeated) text_interval(*options.confidence, m);
  if (m.companion) text_companion(options, *m.companion);
  if (m.loaded) text_loaded(options, *m.loaded);
  if (options.histogram) text_histogram(m);
}

// Those asked for that are no column in any case.
bool is_extra(const Rank& rank) {
  return rank.name() != "p50" && rank.name() != "p99" && rank.name() != "p99_9";
}

void csv_latency_header(const PerfOptions& options, std::string_view of) {
  fmt::print(",{0}_min_ns,{0}_p50_ns,{0}_p99_ns,{0}_p99_9_ns,{0}_max_ns,{0}_mean_ns,{0}_stdev_ns",
             of);
  for (const Rank& rank : options.percentiles) {
    if (is_extra(rank)) fmt::print(",{}_{}_ns", of, rank.name());
  }
}

// Rows of other tests have no place for it.
bool csv_has_companion(const PerfOptions& options) {
  return !companion_of(*options.test).empty() && options.batch_line == 0;
}

// None of the columns holds a comma or a quote; those of a flag are there only with it, at the end.
void csv_header(const PerfOptions& options) {
  fmt::print(
      "test,transport,size_bytes,iterations,seconds,bytes_per_second,messages_per_second,min_ns,"
      "p50_ns,p99_ns,p99_9_ns,max_ns,mean_ns,stdev_ns,"
      "cpu_ns_per_byte,copied_bytes_per_byte,verified_bytes,errors,tx_depth,qps");
  for (const Rank& rank : options.percentiles) {
    if (is_extra(rank)) fmt::print(",{}_ns", rank.name());
  }
  if (options.confidence) {
    const char* unit = options.test->latency ? "ns" : "bytes_per_second";
    fmt::print(",confidence_low_{0},confidence_high_{0},confidence_runs,confidence_reached", unit);
  }
  if (options.under_load) {
    csv_latency_header(options, "under_load");
    fmt::print(",under_load_flow_bytes_per_second");
  }
  if (options.reply_bytes) fmt::print(",reply_size_bytes");
  if (csv_has_companion(options)) {
    csv_latency_header(options, companion_of(*options.test));
    fmt::print(",{}_bytes_per_second", companion_of(*options.test));
  }
  fmt::print("\n");
}

void csv_extra_percentiles(const PerfOptions& options, const std::vector<double>& percentiles_ns) {
  for (size_t i = 0; i < percentiles_ns.size(); ++i) {
    if (is_extra(options.percentiles[i])) fmt::print(",{}", percentiles_ns[i]);
  }
}

void csv_latencies(const PerfOptions& options, const Distribution& d,
                   const std::vector<double>& percentiles_ns) {
  fmt::print(",{},{},{},{},{},{},{}", d.min, d.p50, d.p99, d.p99_9, d.max, d.mean, d.stdev);
  csv_extra_percentiles(options, percentiles_ns);
}

void csv_loaded(const PerfOptions& options, const Loaded& loaded) {
  csv_latencies(options, loaded.latency_ns, loaded.percentiles_ns);
  fmt::print(",{}", per_second(loaded.flow_messages * loaded.flow.size_bytes, loaded.seconds));
}

void csv_row(const PerfOptions& options, const Measurement& m) {
  const Distribution& d = m.latency_ns;
  fmt::print("{},{},{},{},{},{},{},", m.load.test->name, m.path, m.load.size_bytes, m.iterations,
             m.seconds, bytes_per_second(m), messages_per_second(m));
  fmt::print("{},{},{},{},{},{},{},", d.min, d.p50, d.p99, d.p99_9, d.max, d.mean, d.stdev);
  fmt::print("{},{},{},{},{},{}", per_byte(m.cpu_ns, m.payload_bytes), copies_per_byte(m),
             m.verdict.verified_bytes, m.verdict.mismatched_bytes, m.load.depth, m.load.qps);
  csv_extra_percentiles(options, m.percentiles_ns);
  if (m.repeated)
    fmt::print(",{},{},{},{}", m.repeated->interval.low, m.repeated->interval.high,
               m.repeated->values.size(), m.repeated->reached ? 1 : 0);
  if (m.loaded) csv_loaded(options, *m.loaded);
  if (options.reply_bytes) fmt::print(",{}", *options.reply_bytes);
  if (m.companion && csv_has_companion(options)) {
    csv_latencies(options, m.companion->latency_ns, m.companion->percentiles_ns);
    fmt::print(",{}", per_second(m.companion->payload_bytes, m.companion->seconds));
  }
  fmt::print("\n");
}

void ndjson(const PerfOptions& options, const char* type, Json line) {
  line["schema"] = kSchema;
  if (!options.title.empty()) line["title"] = options.title;
  line["type"] = type;
  fmt::print("{}\n", json_text(line, -1));
}

}  // namespace

void Output::begin(const EndpointInfo& link) {
  if (options_.batch_line > 0 &&
      (options_.format == Format::kText || options_.format == Format::kPerftest))
    fmt::print("# {}\n", options_.batch_text);
  if (!options_.title.empty() && options_.format == Format::kText)
    fmt::print("# {}\n", options_.title);
  switch (options_.format) {
    case Format::kText: text_header(options_); break;
    case Format::kPerftest: perftest_header(options_, link); break;
    case Format::kCsv:
      if (options_.first_in_batch) csv_header(options_);
      break;
    case Format::kJson:
    case Format::kNdjson:
    case Format::kOpenMetrics: break;
  }
  std::fflush(stdout);
}

void Output::add(const Load& load, const Interval& part) {
  if (options_.format == Format::kText) {
    fmt::print("   {:.2f}-{:.2f} s: {} iterations, {:.2f} MiB/s, {:.6f} Mpps\n", part.from_seconds,
               part.to_seconds, part.iterations,
               per_second(part.payload_bytes, part.seconds()) / (1 << 20),
               per_second(part.messages, part.seconds()) / 1e6);
  } else if (options_.format == Format::kNdjson) {
    ndjson(options_, "interval", to_json(load, part));
  }
  std::fflush(stdout);
}

void Output::add(const Measurement& m) {
  switch (options_.format) {
    case Format::kText: text_row(options_, m); break;
    case Format::kPerftest: perftest_row(options_, m); break;
    case Format::kCsv: csv_row(options_, m); break;
    case Format::kNdjson: ndjson(options_, "result", to_json(options_, m)); break;
    case Format::kJson:
    case Format::kOpenMetrics: break;
  }
  std::fflush(stdout);
}

Status Output::end(const Json& document) {
  if (options_.format == Format::kJson && options_.batch_line == 0)
    return write_json("-", document);
  if (options_.format == Format::kOpenMetrics && options_.batch_line == 0)
    fmt::print("{}", openmetrics(document));
  if (options_.format == Format::kPerftest) perftest_footer(options_);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return Status();
  return Status(Code::kInternal, Scope::kOperation, "perf/output", "stdout cannot be written");
}

}  // namespace sluice::tools
