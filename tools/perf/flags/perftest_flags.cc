#include "tools/perf/flags/perftest_flags.h"

#include <string>

#include "tools/perf/flags/refusal.h"

namespace sluice::tools {
namespace {

struct Known {
  const char* names;
  bool has_value;
  const char* why;
};

constexpr const char* kByAddress =
    "the device, port and GID follow from the address: see sluice info --explain HOST";
constexpr const char* kByItself = "sluice chooses it";
constexpr const char* kNoPart = "sluice has nothing like it";
// Flags of perftest 4.5 that change how a run is done, not what it means. Others of its
// flags are unknown: to ignore --reversed would be to measure something else.
constexpr Known kUnhonoured[] = {
    {"-d,--ib-dev", true, kByAddress},
    {"-i,--ib-port", true, kByAddress},
    {"-x,--gid-index", true, kByAddress},
    {"-m,--mtu", true, kByItself},
    {"-S,--sl", true, kByItself},
    {"-T,--tos", true, kByItself},
    {"--tclass", true, kByItself},
    {"-L,--hop_limit", true, kByItself},
    {"-u,--qp-timeout", true, kByItself},
    {"--retry_count", true, kByItself},
    {"--pkey_index", true, kByItself},
    {"-r,--rx-depth", true, kByItself},
    {"-o,--outs", true, kByItself},
    {"-X,--vector", true, kByItself},
    {"--recv_post_list", true, kByItself},
    {"-Q,--cq-mod", true, kByItself},
    {"-I,--inline_size", true, kByItself},
    {"-R,--rdma_cm", false, kByItself},
    {"-z,--com_rdma_cm", false, kByItself},
    {"-f,--margin", true, "nothing is left out at the ends of a duration"},
    {"-C,--report-cycles", false, kNoPart},
    {"-U,--report-unsorted", false, kNoPart},
    {"--odp", false, kByItself},
    {"--use_hugepages", false, kByItself},
    {"--mr_per_qp", false, kNoPart},
    {"--use-srq", false, kNoPart},
    {"--use_old_post_send", false, kNoPart},
    {"--disable_pcie_relaxed", false, kNoPart},
    {"--inline_recv", true, kByItself},
    {"--dlid", true, kByAddress},
    {"--source_ip", true, "the system's routing chooses it"},
    {"--ipv6", false, kByAddress},
    {"--force-link", true, kByAddress},
    {"--wait_destroy", true, kNoPart},
    {"-W,--report-counters", true, "what was counted is in the JSON"},
    {"--report-both", false, "the figures are of both directions together"},
    {"--cpu_util", false, "the CPU time of both ends is in the other formats"},
};

// Flags of perftest without which something else would be measured.
constexpr Known kRefused[] = {
    {"-g,--mcg", false, "is multicast, which sluice has not"},
    {"-M,--MGID", true, "is of multicast, which sluice has not"},
    {"-O,--dualport", false, "is two ports at once; run two commands, or --qps"},
    {"--report-per-port", false, "is of two ports at once, which sluice does not use"},
    {"--reversed", false,
     "is the other direction: give the roles the other way round, or -b for both"},
    {"--run_infinitely", false, "has no end; -D 86400 --interval 1 tells how it goes on"},
    {"--latency_gap", true, "is a pause between messages, which --perturb makes"},
    {"--rate_limit", true, "is a limit, which sluice has not"},
    {"--rate_units", true, "is of a limit, which sluice has not"},
    {"--rate_limit_type", true, "is of a limit, which sluice has not"},
    {"--burst_size", true, "is of a limit, which sluice has not"},
    {"--typical_pkt_size", true, "is of a limit, which sluice has not"},
    {"--mmap", true, "is memory of a file's, which sluice does not send from"},
    {"--mmap-offset", true, "is of memory of a file's, which sluice does not send from"},
};

}  // namespace

void add_unhonoured_flags(CLI::App& perf, PerfOptions& o) {
  const std::string group =
      "perftest's flags that are taken and have no effect (one warning each; refused with "
      "--strict)";
  for (const Known& known : kUnhonoured) {
    std::string names = known.names;
    Unhonoured note{names.substr(names.rfind(',') + 1), known.why};
    if (known.has_value) {
      perf.add_option_function<std::string>(
              names, [&o, note](const std::string&) { o.unhonoured.push_back(note); }, known.why)
          ->group(group);
    } else {
      perf.add_flag_callback(
              names, [&o, note] { o.unhonoured.push_back(note); }, known.why)
          ->group(group);
    }
  }
  for (const Known& known : kRefused) {
    std::string names = known.names, name = names.substr(names.rfind(',') + 1), why = known.why;
    auto refusal = [name, why](const std::string& text) {
      refuse(name, text, why, "sluice perf --help");
    };
    if (known.has_value) {
      perf.add_option_function<std::string>(names, refusal, why)
          ->group("perftest's flags that are refused");
    } else {
      perf.add_flag_callback(
              names, [name, refusal] { refusal(name); }, why)
          ->group("perftest's flags that are refused");
    }
  }
  perf.add_option_function<std::string>(
          "-c,--connection",
          [](const std::string& text) {
            if (text != "RC")
              refuse("--connection", text, "is not RC, the only one there is", "--connection RC");
          },
          "RC")
      ->group(group);
  // What they ask for is so in any case.
  for (const char* names :
       {"-F,--CPU-freq", "-N,--noPeak", "--perform_warm_up", "--dont_xchg_versions"}) {
    perf.add_flag_callback(
            names, [] {}, "so in any case")
        ->group(group);
  }
}

}  // namespace sluice::tools
