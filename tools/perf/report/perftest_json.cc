#include "tools/perf/report/perftest_json.h"

#include "tools/perf/report/perftest_text.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::json;

// Microseconds, and MB/s (of 2^20 bytes) or Gb/s, as in the table.
Json latency(const PerfOptions& options, const Json& result) {
  const Json& ns = result["latency_ns"];
  auto usec = [&ns](const char* name) { return ns[name].get<double>() / 1e3; };
  Json out{{"MsgSize", result["size_bytes"]}, {"n_iterations", result["iterations"]}};
  if (options.seconds) {
    double seconds = result["seconds"].get<double>();
    out["t_avg"] = usec("mean");
    out["tps_average"] = seconds > 0 ? result["iterations"].get<double>() / seconds : 0.0;
    return out;
  }
  out["t_min"] = usec("min");
  out["t_max"] = usec("max");
  out["t_typical"] = usec("p50");
  out["t_avg"] = usec("mean");
  out["t_stdev"] = usec("stdev");
  out["percentile_99"] = usec("p99");
  out["percentile_99.9"] = usec("p99_9");
  return out;
}

Json bandwidth(const PerfOptions& options, const Json& result) {
  double unit = options.gigabits ? 1e9 / 8 : 1 << 20;
  return {{"MsgSize", result["size_bytes"]},
          {"n_iterations", result["iterations"]},
          {"BW_peak", 0.0},
          {"BW_average", result["bytes_per_second"].get<double>() / unit},
          {"MsgRate", result["messages_per_second"].get<double>() / 1e6}};
}

}  // namespace

Json perftest_json(const PerfOptions& options, const Json& document) {
  Json rows = Json::array();
  for (const Json& result : document["results"])
    rows.push_back(options.test->latency ? latency(options, result) : bandwidth(options, result));
  Json info{{"test", perftest_title(options)},
            {"Device", document["environment"]["transport"]["path"]},
            {"Number_of_qps", options.qps},
            {"Connection_type", "RC"},
            {"BW_unit", options.gigabits ? "Gb/sec" : "MB/sec"}};
  Json out{{"test_info", std::move(info)}};
  bool one = options.sizes.size() == 1;
  out["results"] = one ? (rows.empty() ? Json() : rows[0]) : std::move(rows);
  return out;
}

}  // namespace sluice::tools
