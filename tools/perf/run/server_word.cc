#include "tools/perf/run/server_word.h"

namespace sluice::tools {

Result<std::optional<Usage>> decode_usage(const Json& report) {
  if (!report.contains("user_ns")) return std::optional<Usage>();
  Usage used;
  SLUICE_TRY(used.user_ns, number_field(report, "user_ns"));
  SLUICE_TRY(used.system_ns, number_field(report, "system_ns"));
  SLUICE_TRY(used.voluntary_switches, number_field(report, "voluntary_switches"));
  SLUICE_TRY(used.involuntary_switches, number_field(report, "involuntary_switches"));
  SLUICE_TRY(used.page_faults, number_field(report, "page_faults"));
  return std::optional<Usage>(used);
}

Result<std::optional<Buffers>> decode_buffers(const Json& report) {
  if (!report.contains("evicted")) return std::optional<Buffers>();
  Buffers buffers;
  SLUICE_TRY(buffers.evicted_bytes, number_field(report, "evicted"));
  if (report.contains("source_at")) {
    SLUICE_TRY(buffers.source_at, number_field(report, "source_at"));
  }
  if (report.contains("destination_at")) {
    SLUICE_TRY(buffers.destination_at, number_field(report, "destination_at"));
  }
  return std::optional<Buffers>(buffers);
}

Status decode_system_calls(const Json& report, SystemCalls& counted) {
  if (report.contains("system_calls")) {
    SLUICE_TRY(counted.there, number_field(report, "system_calls"));
  } else if (report.contains("system_calls_why_not")) {
    SLUICE_TRY(counted.why_not_there, text_field(report, "system_calls_why_not"));
  } else {
    counted.why_not_there = "it is of a version that does not count them";
  }
  return Status();
}

}  // namespace sluice::tools
