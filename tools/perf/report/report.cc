#include "tools/perf/report/report.h"

#include <fmt/format.h>

#include <sluice/base/counters.h>

#include "tools/perf/report/figures.h"
#include "tools/version.h"

namespace sluice::tools {
namespace {

Json environment(const PerfOptions& options, const Surroundings& surroundings,
                 const ClientRun& run) {
  const Machine& machine = surroundings.machine;
  Json out;
  out["version"] = kVersion;
  out["server_version"] = run.server_version.empty() ? Json() : Json(run.server_version);
  out["host"] = machine.host;
  out["kernel"] = machine.kernel;
  out["architecture"] = machine.architecture;
  out["cpu"] = machine.cpu;
  out["cpus"] = machine.cpus;
  out["governor"] = machine.governor.empty() ? Json() : Json(machine.governor);
  out["memory_bytes"] = machine.memory_bytes;
  out["thp"] = {{"enabled", machine.thp}, {"shmem_enabled", machine.thp_shmem}};
  out["argv"] = options.argv;
  out["waiting"] = to_string(options.waiting);
  out["pinned"] = surroundings.pinned;
  out["transport"] = {{"requested", options.transport},
                      {"path", to_string(run.link.path.path)},
                      {"reason", run.link.reason},
                      {"local", run.link.local},
                      {"peer", run.link.peer}};
  out["steal_seconds"] = {{"before", surroundings.steal_before_seconds},
                          {"after", steal_seconds()}};
  return out;
}

Json split_by_mode(Copies copied, uint64_t bytes) {
  return {{"user", per_byte(static_cast<double>(copied.user), bytes)},
          {"kernel", per_byte(static_cast<double>(copied.kernel), bytes)}};
}

double per_message(uint64_t amount, const Measurement& m) {
  return per_byte(static_cast<double>(amount), m.messages);
}

Json usage(const Usage& used, const std::optional<uint64_t>& system_calls, const Measurement& m) {
  Json calls = system_calls
                   ? Json(per_byte(static_cast<double>(*system_calls), m.system_calls->messages))
                   : Json();
  return {
      {"user_ns", used.user_ns},
      {"system_ns", used.system_ns},
      {"cpu_share",
       m.seconds > 0 ? static_cast<double>(used.user_ns + used.system_ns) / (m.seconds * 1e9) : 0},
      {"cpu_ns_per_message", per_message(used.user_ns + used.system_ns, m)},
      {"system_calls_per_message", calls},
      {"voluntary_switches_per_message", per_message(used.voluntary_switches, m)},
      {"involuntary_switches_per_message", per_message(used.involuntary_switches, m)},
      {"page_faults_per_message", per_message(used.page_faults, m)}};
}

Json used(const Measurement& m) {
  const SystemCalls counted = m.system_calls.value_or(SystemCalls());
  Json client = usage(m.used_here, counted.here, m);
  Json server = m.used_there ? usage(*m.used_there, counted.there, m) : Json();
  if (!counted.why_not_here.empty()) client["system_calls_why_not"] = counted.why_not_here;
  if (m.used_there && !counted.why_not_there.empty())
    server["system_calls_why_not"] = counted.why_not_there;
  return {{"client", client}, {"server", server}};
}

Json buffers(const Buffers& at, const Measurement& m) {
  Json out = Json::object();
  if (at.source_at) out["source_at"] = *at.source_at;
  if (at.destination_at) out["destination_at"] = *at.destination_at;
  if (m.load.cold) out["evicted_bytes"] = at.evicted_bytes;
  return out;
}

// Those that were asked for.
void add_conditions(const Measurement& m, Json& out) {
  if (m.load.pause_ns > 0)
    out["pauses"] = {
        {"most_ns", m.load.pause_ns}, {"seed", m.load.pause_seed}, {"seconds", m.paused_seconds}};
  if (!m.load.cold && !m.load.source_offset && !m.load.destination_offset) return;
  out["cold_cache"] = m.load.cold;
  out["buffers"] = {{"client", buffers(m.buffers_here, m)},
                    {"server", m.buffers_there ? buffers(*m.buffers_there, m) : Json()}};
}

Json latencies(const PerfOptions& options, const Distribution& d,
               const std::vector<double>& asked) {
  Json out{{"min", d.min}, {"p50", d.p50},   {"p99", d.p99},    {"p99_9", d.p99_9},
           {"max", d.max}, {"mean", d.mean}, {"stdev", d.stdev}};
  for (size_t i = 0; i < asked.size(); ++i) out[options.percentiles[i].name()] = asked[i];
  return out;
}

Json companion(const PerfOptions& options, const Companion& second) {
  return {{"latency_ns", latencies(options, second.latency_ns, second.percentiles_ns)},
          {"iterations", second.iterations},
          {"seconds", second.seconds},
          {"bytes_per_second", per_second(second.payload_bytes, second.seconds)}};
}

Json under_load(const PerfOptions& options, const Loaded& loaded) {
  return {{"latency_ns", latencies(options, loaded.latency_ns, loaded.percentiles_ns)},
          {"iterations", loaded.iterations},
          {"seconds", loaded.seconds},
          {"flow",
           {{"size_bytes", loaded.flow.size_bytes},
            {"tx_depth", loaded.flow.depth},
            {"bytes_per_second",
             per_second(loaded.flow_messages * loaded.flow.size_bytes, loaded.seconds)},
            {"messages_per_second", per_second(loaded.flow_messages, loaded.seconds)}}}};
}

Json confidence(const Confidence& wanted, const RepeatedFigure& figure, bool latency) {
  return {{"figure", latency ? "latency_ns.p50" : "bytes_per_second"},
          {"level_percent", wanted.level_percent},
          {"wanted_percent", wanted.percent},
          {"reached", figure.reached},
          {"runs", figure.values.size()},
          {"values", figure.values},
          {"mean", figure.interval.mean},
          {"low", figure.interval.low},
          {"high", figure.interval.high},
          {"half_width_percent", figure.interval.half_width_percent()}};
}

}  // namespace

Json to_json(const Load& load, const Interval& part) {
  return {{"test", load.test->name},
          {"size_bytes", load.size_bytes},
          {"from_seconds", part.from_seconds},
          {"to_seconds", part.to_seconds},
          {"iterations", part.iterations},
          {"bytes_per_second", per_second(part.payload_bytes, part.seconds())},
          {"messages_per_second", per_second(part.messages, part.seconds())}};
}

Json to_json(const PerfOptions& options, const Measurement& m) {
  Json out;
  out["test"] = m.load.test->name;
  out["transport"] = m.path;
  out["size_bytes"] = m.load.size_bytes;
  if (m.load.test->verb == Verb::kRpc) out["reply_size_bytes"] = m.load.reply_bytes;
  out["iterations"] = m.iterations;
  out["latency_ns"] = latencies(options, m.latency_ns, m.percentiles_ns);
  if (options.histogram) {
    for (const Bin& bin : m.histogram_ns)
      out["histogram_ns"].push_back({{"from", bin.from}, {"to", bin.to}, {"count", bin.count}});
  }
  out["bytes_per_second"] = bytes_per_second(m);
  out["messages_per_second"] = messages_per_second(m);
  out["cpu_ns_per_byte"] = per_byte(m.cpu_ns, m.payload_bytes);
  out["copied_bytes_per_byte"] = copies_per_byte(m);
  out["verified_bytes"] = m.verdict.verified_bytes;
  out["verified_by"] =
      !m.load.verify ? Json() : Json(carries_checksum(m.load) ? "crc32c" : "bytes");
  out["errors"] = m.verdict.mismatched_bytes;
  // Added to the schema: what the figures were taken with.
  out["seconds"] = m.seconds;
  out["tx_depth"] = m.load.depth;
  out["qps"] = m.load.qps;
  if (m.load.post_list > 1) out["post_list"] = m.load.post_list;
  if (m.load.bidirectional) out["bidirectional"] = true;
  if (m.load.qps > 1) out["bytes_by_qp"] = m.bytes_by_qp;
  out["user_copied_bytes_per_byte"] = per_byte(static_cast<double>(m.copied.user), m.payload_bytes);
  out["copied_by"] = {{"client", split_by_mode(m.copied_here, m.payload_bytes)},
                      {"server", split_by_mode(m.copied - m.copied_here, m.payload_bytes)}};
  if (m.load.test->verb == Verb::kAtomic)
    out["atomic_type"] = m.load.compare ? "CMP_AND_SWAP" : "FETCH_AND_ADD";
  if (m.load.test->verb == Verb::kExchange) {
    out["into"] = m.load.into;
    if (m.load.test->latency) out["tensors"] = m.load.tensors;
    if (m.load.subscribe) out["subscribed"] = true;
    out["consumed"] = m.load.consume_stride != 0;
    if (m.load.consume_stride != 0) out["consumed_stride_bytes"] = m.load.consume_stride;
  }
  if (has_default_options(*m.load.test)) out["default_options"] = m.load.default_options;
  out["used"] = used(m);
  add_conditions(m, out);
  if (m.load.test->verb == Verb::kCopy) out["copies_per_iteration"] = m.copies_per_iteration;
  if (m.companion) out[std::string(m.companion->name)] = companion(options, *m.companion);
  if (m.loaded) out["under_load"] = under_load(options, *m.loaded);
  if (m.repeated)
    out["confidence"] = confidence(*options.confidence, *m.repeated, m.load.test->latency);
  if (options.batch_line > 0) out["line"] = options.batch_line;
  for (const Interval& part : m.intervals) out["intervals"].push_back(to_json(m.load, part));
  if (!m.first_handover_ns.empty()) out["first_handover_ns"] = m.first_handover_ns;
  return out;
}

Json to_json(const PerfOptions& options, const Surroundings& surroundings, const ClientRun& run) {
  Json out;
  out["schema"] = kSchema;
  if (!options.title.empty()) out["title"] = options.title;
  out["environment"] = environment(options, surroundings, run);
  out["results"] = Json::array();
  out["warnings"] = run.warnings;
  // Counters of the client's whole process: drops and refusals by cause, and all others.
  out["counters"] = Json::object();
  for (const auto& [name, value] : read_counters()) {
    if (value > 0) out["counters"][std::string(name)] = value;
  }
  for (const Measurement& m : run.measurements) {
    if (m.verdict.mismatched_bytes == 0) {
      out["results"].push_back(to_json(options, m));
    } else {
      out["warnings"].push_back(
          fmt::format("{} of {} bytes: {} of the bytes that arrived were not those that were sent; "
                      "no figures of it",
                      m.load.test->name, m.load.size_bytes, m.verdict.mismatched_bytes));
    }
  }
  return out;
}

}  // namespace sluice::tools
