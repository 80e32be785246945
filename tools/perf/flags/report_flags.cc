#include "tools/perf/flags/report_flags.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "tools/perf/run/control.h"
#include "tools/perf/run/roles.h"
#include "tools/perf/report/document_file.h"
#include "tools/perf/flags/nearest.h"
#include "tools/perf/report/perftest_json.h"
#include "tools/perf/report/plot_file.h"
#include "tools/perf/flags/refusal.h"
#include "tools/perf/run/system_calls.h"
#include "tools/perf/run/thresholds.h"

namespace sluice::tools {
namespace {

// As people name it, without asking anybody.
bool is_this_machine(const std::string& host) {
  char name[256] = {};
  return host == "localhost" || host == "::1" || host.starts_with("127.") ||
         (::gethostname(name, sizeof(name) - 1) == 0 && host == name);
}

Format parse_format(const std::string& text) {
  for (Format format : kFormats) {
    if (text == to_string(format)) return format;
  }
  refuse_word("--format", text, "text perftest json ndjson csv openmetrics", "--format csv");
}

void set_output(PerfOptions& o, const std::string& text) {
  if (text == "bandwidth")
    o.only = PerftestOnly::kBandwidth;
  else if (text == "message_rate")
    o.only = PerftestOnly::kMessageRate;
  else if (text == "latency")
    o.only = PerftestOnly::kLatency;
  else
    refuse_word("--output", text, "bandwidth message_rate latency",
                "--format perftest --output bandwidth");
}

void set_perftest_json(PerfOptions& o, const std::string& path) {
  std::string obstacle = path == "-" ? "it is stdout, which has the table" : json_obstacle(path);
  if (!obstacle.empty())
    refuse("--out_json_file", path, "cannot be written: " + obstacle,
           "--out_json_file /tmp/perftest.json");
  o.perftest_json_path = path;
}

void check_perftest_report(const PerfOptions& o, bool server) {
  if (!o.perftest_json_path.empty() && server)
    refuse("--out_json", o.perftest_json_path, "has no use at a server: the client has the figures",
           "ib_write_bw HOST --out_json");
  if (!o.perftest_json_path.empty() && !is_of_perftest(*o.test))
    refuse("--out_json", std::string(o.test->name), "is no test of perftest's; --json has it",
           "sluice perf exchange_bw --self --json /tmp/perf.json");
  if (o.only == PerftestOnly::kAll) return;
  const std::string example = "sluice perf write_bw --self --format perftest --output bandwidth";
  if (o.format != Format::kPerftest) refuse("--output", "", "is of --format perftest", example);
  if (o.test->latency != (o.only == PerftestOnly::kLatency))
    refuse("--output", std::string(o.test->name),
           "has no such number: latency is of _lat tests, bandwidth and message_rate of _bw tests",
           example);
  if (o.histogram) refuse("--output", "--histogram", "is one number only", example);
}

void set_format(PerfOptions& o, const std::string& text) { o.format = parse_format(text); }

void set_confidence(PerfOptions& o, const std::string& text) {
  const std::string example = "--confidence 5 (95 %, within 5 %) or --confidence 99,5";
  size_t comma = text.find(',');
  std::string level = comma == std::string::npos ? "95" : text.substr(0, comma),
              percent = comma == std::string::npos ? text : text.substr(comma + 1);
  if (percent.ends_with('%')) percent.pop_back();
  o.confidence.emplace();
  o.confidence->level_percent = number<double>("--confidence", level, 0, 100, example);
  if (o.confidence->level_percent < 50 || o.confidence->level_percent > 99.9)
    refuse("--confidence", level, "is no level from 50 to 99.9", example);
  o.confidence->percent = number<double>("--confidence", percent, 0.01, 100, example);
}

void check_plot(const PerfOptions& o, bool server) {
  if (o.plot_path.empty()) return;
  const std::string example = "sluice perf send_lat --self -a --plot /tmp/latency.svg";
  if (server)
    refuse("--plot", o.plot_path, "has no use at a server: the client has the figures", example);
  if (o.plot_path == "-" && o.format != Format::kText)
    refuse("--plot", "-", "is stdout, and so is --format's", example);
}

void set_title(PerfOptions& o, const std::string& text) {
  const std::string example = "--title \"eth0, MTU 9000\"";
  constexpr size_t kLongest = 200;
  bool one_line =
      std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (text.empty() || text.size() > kLongest || !one_line)
    refuse("--title", one_line ? text.substr(0, 20) : "", "is no line of 1 to 200 bytes", example);
  try {
    (void)Json(text).dump();
  } catch (const Json::exception&) {
    refuse("--title", "", "is no UTF-8, as JSON has it", example);
  }
  o.title = text;
}

void set_progress(PerfOptions& o, const std::string& text) {
  if (text == "auto")
    o.progress = ProgressWhen::kAuto;
  else if (text == "always")
    o.progress = ProgressWhen::kAlways;
  else if (text == "never")
    o.progress = ProgressWhen::kNever;
  else
    refuse_word("--progress", text, "auto always never", "--progress never");
}

void set_histogram_file(PerfOptions& o, const std::string& path) {
  std::string obstacle =
      path == "-" ? "it is stdout, which --histogram writes to" : json_obstacle(path);
  if (!obstacle.empty())
    refuse("--hist", path, "cannot be written: " + obstacle, "--hist /tmp/latencies.dat");
  o.histogram_path = path;
}

void check_title(const PerfOptions& o, bool server) {
  if (o.histogram_path.empty() && o.title.empty()) return;
  const std::string example =
      "sluice perf send_lat --self -a --plot /tmp/latency.svg --title \"before\"";
  if (!o.histogram_path.empty() && server)
    refuse("--hist", o.histogram_path, "has no use at a server: the client has the figures",
           example);
  if (o.title.empty()) return;
  if (server)
    refuse("--title", o.title, "has no use at a server: the client has the figures", example);
  bool shown =
      o.format == Format::kText || o.format == Format::kJson || o.format == Format::kNdjson;
  bool written = !o.json_path.empty() || !o.plot_path.empty() || !o.histogram_path.empty();
  if (!shown && !written)
    refuse("--title", std::string(to_string(o.format)),
           "has no place for it; text, json, ndjson, --json, --plot and --hist have", example);
}

void check_confidence(PerfOptions& o, bool server) {
  if (o.most_runs && !o.confidence)
    refuse("--runs", std::to_string(*o.most_runs), "is of --confidence",
           "--confidence 5 --runs 50");
  if (!o.confidence) return;
  const std::string example = "sluice perf send_lat --self --confidence 5";
  if (server) refuse("--confidence", "", "has no use at a server: the client repeats", example);
  if (o.format == Format::kPerftest || o.format == Format::kOpenMetrics) {
    refuse("--confidence", std::string(to_string(o.format)),
           "has no place for it; text, json, ndjson and csv have", example);
  }
  if (o.interval) refuse("--confidence", "--interval", "is of one run in time", example);
  o.confidence->most_runs = o.most_runs.value_or(o.confidence->most_runs);
}

void check_distribution(const PerfOptions& o) {
  bool metrics = o.format == Format::kOpenMetrics;
  if (o.interval && (o.format == Format::kCsv || o.format == Format::kPerftest || metrics)) {
    refuse("--interval", std::string(to_string(o.format)), "has no place for it",
           "sluice perf send_bw --self -D 10 --interval 1 --format ndjson");
  }
  const std::string example = "sluice perf send_lat --self --histogram --percentiles 90,99.99";
  if (o.histogram && (o.format == Format::kCsv || metrics))
    refuse("--histogram", std::string(to_string(o.format)), "has no place for it", example);
  if (o.format != Format::kPerftest) return;
  if (!o.percentiles.empty()) refuse("--percentiles", "perftest", "has its own two", example);
  if (o.histogram && (!o.test->latency || o.seconds))
    refuse("--histogram", "perftest", "has it for latencies of a number of iterations only",
           example);
}

void set_percentiles(PerfOptions& o, const std::string& text) {
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    std::string word = text.substr(begin, end - begin);
    std::optional<Rank> rank = parse_rank(word);
    if (!rank)
      refuse("--percentiles", word,
             "is no percentile, which is above 0 and at most 100, with six decimals at most",
             "--percentiles 50,90,99.99");
    for (const Rank& other : o.percentiles) {
      if (other.parts == rank->parts)
        refuse("--percentiles", word, "is there twice", "--percentiles 50,90,99.99");
    }
    o.percentiles.push_back(*std::move(rank));
    begin = end + 1;
  }
}

void add_threshold_flags(CLI::App& perf, PerfOptions& o) {
  auto* baseline = perf.add_option(
      "--baseline", o.baseline_path,
      "the JSON of an earlier run of the same test and sizes: says what is better and worse");
  perf.add_option_function<std::string>(
          "--fail-if-worse",
          [&o](const std::string& text) {
            std::string figure = text.ends_with('%') ? text.substr(0, text.size() - 1) : text;
            o.worse_limit =
                number<double>("--fail-if-worse", figure, 0, 1000, "--fail-if-worse 10%");
          },
          "exit with 3 where a median latency, or a bandwidth, is worse than the baseline's by "
          "more per cent than this")
      ->needs(baseline);
  perf.add_option_function<std::string>(
      "-w,--limit_bw",
      [&o](const std::string& text) {
        o.least_bandwidth = number<double>("--limit_bw", text, 0, 1e12, "--limit_bw 1000");
      },
      "exit with 3 where the bandwidth is less than this many MiB/s (Gb/s with --report_gbits)");
  perf.add_option_function<std::string>(
      "-y,--limit_msgrate",
      [&o](const std::string& text) {
        o.least_rate = number<double>("--limit_msgrate", text, 0, 1e12, "--limit_msgrate 1.5");
      },
      "exit with 3 where fewer million messages a second than this go through");
}

void check_thresholds(PerfOptions& o, bool server) {
  bool any = !o.baseline_path.empty() || o.least_bandwidth || o.least_rate;
  if (any && server)
    refuse(!o.baseline_path.empty() ? "--baseline"
           : o.least_bandwidth      ? "--limit_bw"
                                    : "--limit_msgrate",
           o.baseline_path, "has no use at a server: the client has the figures",
           "sluice perf send_lat HOST --baseline old.json");
  if (o.baseline_path.empty()) return;
  const std::string example =
      "sluice perf send_lat --self --json old.json, then sluice perf send_lat --self --baseline "
      "old.json --fail-if-worse 10%";
  if (o.worse_limit && !o.test->latency && *o.worse_limit >= 100)
    refuse("--fail-if-worse", fmt::format("{:g}", *o.worse_limit),
           "per cent less would be no bandwidth at all", example);
  if (std::string why = read_baseline(o); !why.empty())
    refuse("--baseline", o.baseline_path, why, example);
}

}  // namespace

void add_report_flags(CLI::App& perf, PerfOptions& o) {
  perf.add_option_function<std::string>(
          "--format", [&o](const std::string& text) { set_format(o, text); },
          "what stdout has: text (a table), perftest (its text, to the letter), json (all at the "
          "end), ndjson (a line as each size is "
          "measured), csv or openmetrics (all at the end); docs/perf.md has columns and units")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  perf.add_option_function<std::string>(
      "--percentiles", [&o](const std::string& text) { set_percentiles(o, text); },
      "percentiles of latency beside the median, 99 and 99.9: any from above 0 to 100, for example "
      "90,99.99,99.9999");
  perf.add_flag("-H,--histogram,--report-histogram", o.histogram,
                "text, json, ndjson: how the latencies are distributed; perftest: each of them");
  perf.add_option_function<std::string>(
      "--confidence", [&o](const std::string& text) { set_confidence(o, text); },
      "repeat each size until its median latency, or bandwidth, is known to within so many per "
      "cent: PERCENT (95 % interval) or LEVEL,PERCENT");
  perf.add_option_function<std::string>(
      "--runs",
      [&o](const std::string& text) {
        o.most_runs = number<unsigned>("--runs", text, Confidence::kFewestRuns, 1000,
                                       "--confidence 5 --runs 50");
      },
      "of --confidence: repeat so often at most (default 30, at least 3)");
  perf.add_flag("--system-calls", o.system_calls,
                "count the system calls of both ends, by message, in a round after those that are "
                "timed (JSON; needs root or CAP_PERFMON)");
  perf.add_flag("--report_gbits", o.gigabits, "--format perftest: Gb/s instead of MiB/s");
  perf.add_option_function<std::string>(
      "--json",
      [&o](const std::string& path) {
        std::string obstacle = json_obstacle(path);
        if (!obstacle.empty())
          refuse("--json", path, "cannot be written: " + obstacle, "--json /tmp/perf.json");
        o.json_path = path;
      },
      "write the results there as JSON as well; - is stdout, instead of the table");
  perf.add_option_function<std::string>(
      "--plot",
      [&o](const std::string& path) {
        std::string obstacle = plot_obstacle(path);
        if (!obstacle.empty()) refuse("--plot", path, obstacle, "--plot /tmp/latency.svg");
        o.plot_path = path;
      },
      "draw the figures over the sizes: FILE.svg (a chart), FILE.gp (a gnuplot script with the "
      "data in it), or - (bars below the table)");
  perf.add_option_function<std::string>(
      "--hist", [&o](const std::string& path) { set_histogram_file(o, path); },
      "write how the latencies are distributed to a file that gnuplot reads: a line for each bin, "
      "a block for each size");
  perf.add_option_function<std::string>(
      "--title", [&o](const std::string& text) { set_title(o, text); },
      "a line of text that names the run in the table, in JSON, in plots and in --hist's file");
  perf.add_option_function<std::string>(
      "--progress", [&o](const std::string& text) { set_progress(o, text); },
      "how far the run is, on stderr: auto (on a terminal only, default), always (elsewhere a line "
      "for each size) or never");
  perf.add_flag_callback(
      "--out_json",
      [&o] {
        if (o.perftest_json_path.empty()) set_perftest_json(o, kPerftestJsonName);
      },
      "write the results as perftest's JSON as well, with its keys, to perftest_out.json");
  perf.add_option_function<std::string>(
      "--out_json_file", [&o](const std::string& path) { set_perftest_json(o, path); },
      "the same, to this file");
  perf.add_option_function<std::string>(
      "--output", [&o](const std::string& text) { set_output(o, text); },
      "--format perftest: one number for each size and nothing else: bandwidth, message_rate or "
      "latency (the mean)");
  add_threshold_flags(perf, o);
  perf.add_flag(
      "--strict", o.strict,
      "a flag that cannot be honoured here ends the run before it begins, instead of a warning");
}

void note_idle_flags(const CLI::App& perf, PerfOptions& o) {
  auto given = [&perf](const char* flag) { return perf.get_option(flag)->count() > 0; };
  if (is_local(*o.test)) {
    if (o.all) return;
    for (const char* flag : {"--tx-depth", "--port", "--wait", "--events"}) {
      if (given(flag))
        o.unhonoured.push_back(
            {flag, std::string(o.test->name) + " is done by one process, without a connection"});
    }
    bool chosen =
        o.test->verb == Verb::kRegister && (o.transport == "rdma" || o.transport == "kmod");
    if (given("--bind") && !chosen)
      o.unhonoured.push_back({"--bind", "nothing is listened at, and no device is chosen"});
    return;
  }
  if (given("--pin") && !o.self)
    o.unhonoured.push_back({"--pin", "only the processes of --self are pinned"});
  if (given("--tx-depth") && o.test->latency && !o.under_load && !o.all)
    o.unhonoured.push_back({"--tx-depth", "a latency test has one message under way"});
  if (given("--bind") && !o.host.empty())
    o.unhonoured.push_back({"--bind", "it is where a server listens"});
  if (o.transport == "shm" && !o.self) {
    if (given("--bind") && o.host.empty())
      o.unhonoured.push_back({"--bind", "shared memory has a name, which --port is a part of"});
    if (!o.host.empty() && !is_whole_address(o.host) && !is_this_machine(o.host))
      o.unhonoured.push_back(
          {"HOST", "shared memory is within this machine: the server is another process of it"});
  }
  bool chosen = takes_interface(o.transport) || o.transport == "rdma";
  if (given("--bind") && o.self && !chosen)
    o.unhonoured.push_back({"--bind", "the two ends of --self meet within this machine"});
  if (given("--port") && o.self)
    o.unhonoured.push_back({"--port", "the two ends of --self meet where nobody else does"});
  if (given("--port") && is_whole_address(o.host))
    o.unhonoured.push_back({"--port", "the address has one"});
}

// The flag is refused where it can be known to fail; what keeps the other end from it is known in
// the run only.
void check_system_calls(PerfOptions& o, bool server) {
  if (!o.system_calls) return;
  const std::string example = "sluice perf send_lat --self --system-calls --format json";
  if (server)
    refuse("--system-calls", "", "has no use at a server: it follows its client", example);
  bool shown = o.format == Format::kJson || o.format == Format::kNdjson || !o.json_path.empty();
  if (!shown)
    refuse("--system-calls", "", "has no place but in JSON; add --json FILE or --format json",
           example);
  if (!o.strict) return;
  Result<SystemCallCounter> counter = SystemCallCounter::open();
  if (!counter.ok())
    refuse("--system-calls", "--strict",
           "does not let it pass: " + std::string(counter.status().detail()), example);
}

void check_report(PerfOptions& o) {
  bool server = !o.self && o.host.empty();
  const std::string example = "sluice perf send_lat HOST --json /tmp/perf.json";
  if (!o.json_path.empty() && server)
    refuse("--json", o.json_path, "has no use at a server: the client has the figures", example);
  if (o.json_path == "-") {
    if (o.format != Format::kText && o.format != Format::kJson)
      refuse("--json", "-", "is stdout, and so is --format's",
             "--format csv --json /tmp/perf.json");
    o.format = Format::kJson;
    o.json_path.clear();
  }
  if (o.format == Format::kPerftest && !is_of_perftest(*o.test)) {
    refuse("--format", "perftest", "has no " + std::string(o.test->name),
           "sluice perf write_bw --self --format perftest");
  }
  check_distribution(o);
  check_perftest_report(o, server);
  check_plot(o, server);
  check_title(o, server);
  check_confidence(o, server);
  check_system_calls(o, server);
  check_thresholds(o, server);
  if (o.gigabits && o.format != Format::kPerftest && !o.least_bandwidth)
    refuse("--report_gbits", "", "is of --format perftest", "--format perftest --report_gbits");
  if (o.strict && !o.unhonoured.empty())
    refuse(o.unhonoured[0].flag, "--strict", "does not let it pass: " + o.unhonoured[0].why,
           "sluice perf send_lat --self");
}

void check_extras(const CLI::App& perf) {
  std::vector<std::string> extras = perf.remaining();
  if (extras.empty()) return;
  std::string given = extras[0].substr(0, extras[0].find('='));
  for (const std::string& extra : extras) {
    if (!extra.starts_with("-")) continue;
    given = extra.substr(0, extra.find('='));
    break;
  }
  if (!given.starts_with("-"))
    refuse("HOST", given, "is one too many", "sluice perf send_lat HOST");
  std::vector<std::string> flags;
  for (const CLI::Option* option : perf.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  std::string meant = nearest(given, flags);
  refuse(given, given,
         "is no flag" + (meant.empty() ? std::string() : "; did you mean " + meant + "?"),
         "sluice perf --help");
}

}  // namespace sluice::tools
