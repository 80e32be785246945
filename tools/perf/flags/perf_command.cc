#include "tools/perf/flags/perf_command.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "tools/perf/run/all_tests.h"
#include "tools/perf/load/batch.h"
#include "tools/perf/flags/combination.h"
#include "tools/perf/flags/condition_flags.h"
#include "tools/perf/report/document_file.h"
#include "tools/perf/report/openmetrics.h"
#include "tools/perf/flags/load_flags.h"
#include "tools/perf/flags/perftest_flags.h"
#include "tools/perf/flags/plan.h"
#include "tools/perf/flags/refusal.h"
#include "tools/perf/flags/report_flags.h"
#include "tools/perf/run/roles.h"
#include "tools/version.h"

namespace sluice::tools {
namespace {

void add_flags(CLI::App& perf, PerfOptions& o) {
  add_load_flags(perf, o);
  add_link_flags(perf, o);
  add_condition_flags(perf, o);
  add_report_flags(perf, o);
  add_unhonoured_flags(perf, o);
  perf.allow_extras();  // told by check_extras(), with the flag that is meant
}

void check(const CLI::App& perf, PerfOptions& o) {
  check_extras(perf);
  if (o.test == nullptr)
    refuse("TEST", "", "is missing: one of " + names_of_tests(), "sluice perf send_lat --self");
  check_combination(o);
  note_idle_flags(perf, o);
  check_report(o);
}

bool given(const CLI::App& perf, const char* flag) { return perf.get_option(flag)->count() > 0; }

// Several runs with one header.
void check_columns(const CLI::App& perf, const PerfOptions& all,
                   std::initializer_list<const char*> flags) {
  for (const char* flag : flags) {
    if (all.format == Format::kCsv && given(perf, flag))
      refuse(flag, "csv", "has the same columns for all lines",
             "sluice perf --batch FILE --format json");
  }
}

// Throws what a command line of that text would be refused with.
void check_line(const BatchLine& line, const PerfOptions& all, PerfOptions& o) {
  CLI::App app;
  add_flags(app, o);
  app.parse(std::vector<std::string>(line.words.rbegin(), line.words.rend()));
  for (const char* flag : {"--format", "--json"}) {
    if (given(app, flag))
      refuse(flag, line.text, "is of all lines together: give it beside --batch",
             "sluice perf --batch FILE --format json");
  }
  for (const char* flag : {"--out_json", "--out_json_file", "--output"}) {
    if (given(app, flag))
      refuse(flag, line.text, "is of a command of its own",
             "sluice perf --batch FILE --json all.json");
  }
  if (o.all)
    refuse("TEST", "all", "is many tests, of which a batch has one in each line",
           "sluice perf all --self");
  check_columns(app, all, {"--percentiles", "--confidence", "--under-load", "--reply-size"});
  o.format = all.format;
  o.json_path = all.json_path;
  o.strict = o.strict || all.strict;
  if (!given(app, "--progress")) o.progress = all.progress;
  if (!given(app, "--title")) o.title = all.title;
  o.argv = all.argv;
  o.batch_line = line.number;
  o.batch_text = line.text;
  check(app, o);
  if (!o.self && o.host.empty())
    refuse("HOST", line.text, "is missing: a batch is run by a client",
           "send_lat --self, or send_lat HOST");
  o.json_path.clear();  // one for all
}

struct Batch {
  std::string name;  // the file, or "all"
  std::vector<BatchLine> lines;
  std::vector<std::unique_ptr<PerfOptions>> options;
};

// A line for each test that the path has, every one checked as if it were given alone.
Batch check_all(const CLI::App& perf, const PerfOptions& all) {
  const std::string example = "sluice perf all --self --json all.json";
  check_extras(perf);
  for (const char* flag : {"--plot", "--hist", "--out_json", "--out_json_file", "--output"}) {
    if (given(perf, flag)) refuse(flag, "all", "are many tests, and it is of one", example);
  }
  check_columns(perf, all, {"--confidence", "--under-load", "--reply-size"});
  Batch batch{.name = "all", .lines = {}, .options = {}};
  for (PerfOptions& test : all_tests(all)) {
    auto number = static_cast<unsigned>(batch.lines.size() + 1);
    BatchLine line{.number = number, .text = std::string(test.test->name), .words = {}};
    test.batch_line = number;
    test.batch_text = line.text;
    check(perf, test);
    test.json_path.clear();  // one for all
    batch.lines.push_back(std::move(line));
    batch.options.push_back(std::make_unique<PerfOptions>(std::move(test)));
  }
  return batch;
}

// Every line, before anything is opened.
Batch check_batch(const CLI::App& perf, const std::string& path, const PerfOptions& all) {
  const std::string example =
      "sluice perf --batch FILE --format ndjson, with lines such as: send_lat --self -s 64";
  for (const CLI::Option* option : perf.get_options()) {
    std::string name = option->get_name();
    bool of_all = name == "--batch" || name == "--format" || name == "--json" ||
                  name == "--strict" || name == "--title" || name == "--progress" ||
                  name == "--help";
    if (option->count() > 0 && !of_all)
      refuse("--batch", name, "is of a line of its own, in the file", example);
  }
  check_extras(perf);
  Result<std::vector<BatchLine>> lines = read_batch(path);
  if (!lines.ok()) refuse("--batch", path, std::string(lines.status().detail()), example);
  Batch batch{.name = path, .lines = *std::move(lines), .options = {}};
  for (const BatchLine& line : batch.lines) {
    batch.options.push_back(std::make_unique<PerfOptions>());
    try {
      check_line(line, all, *batch.options.back());
    } catch (const CLI::ParseError& error) {
      std::string why = error.get_name() == "CallForHelp" ? "asks for help" : error.what();
      refuse("--batch", path, "line " + std::to_string(line.number) + ": " + why, example);
    }
  }
  return batch;
}

int run_batch(const PerfOptions& all, const Batch& batch) {
  BatchDocument document(batch.name, all.title);
  std::vector<int> codes;
  bool begun = false;  // a line has written its head, with or without results after it
  for (size_t i = 0; i < batch.lines.size(); ++i) {
    PerfOptions options = *batch.options[i];
    options.first_in_batch = !begun;
    options.run_number = static_cast<unsigned>(i + 1);
    options.runs = static_cast<unsigned>(batch.lines.size());
    Json own;
    codes.push_back(run_perf(options, [&own](Json whole) { own = std::move(whole); }));
    begun = begun || !own.is_null();
    if (codes.back() != kExitOk)
      fmt::print(stderr, "sluice perf: {}, line {}: exit code {}\n", batch.name,
                 batch.lines[i].number, codes.back());
    document.add(batch.lines[i], codes.back(), std::move(own));
  }
  int code = batch_exit_code(codes);
  if (all.format == Format::kOpenMetrics) fmt::print("{}", openmetrics(document.whole()));
  for (const std::string& where :
       {all.format == Format::kJson ? std::string("-") : std::string(), all.json_path}) {
    if (where.empty()) continue;
    Status written = write_json(where, document.whole());
    if (written.ok()) continue;
    fmt::print(stderr, "sluice perf: {}\n", written.to_string());
    if (code == kExitOk) code = kExitFailed;
  }
  return code;
}

}  // namespace

void add_perf_command(CLI::App& app, const std::vector<std::string>& argv, int& exit_code) {
  CLI::App* perf =
      app.add_subcommand("perf", "measure latency and bandwidth between two processes");
  perf->set_version_flag("-V,--version", std::string("sluice ") + kVersion);
  perf->footer(
      "Server: sluice perf send_lat        Client: sluice perf send_lat HOST        Both: sluice "
      "perf send_lat --self");
  auto options = std::make_shared<PerfOptions>();
  options->argv = argv;
  auto batch = std::make_shared<std::string>();
  add_flags(*perf, *options);
  perf->add_option("--batch", *batch,
                   "a file with a command line of sluice perf in each line (# begins a comment): "
                   "all are checked, then run in turn, with results in one document or stream");
  perf->callback([perf, options, batch, &exit_code] {
    bool batched = perf->get_option("--batch")->count() > 0,
         server = !options->self && options->host.empty();
    if (!batched && (!options->all || server)) {
      check(*perf, *options);
      exit_code = run_perf(*options);
      return;
    }
    auto check_lines = [&] {
      return batched ? check_batch(*perf, *batch, *options) : check_all(*perf, *options);
    };
    Batch lines = check_lines();
    if (options->json_path == "-") {
      if (options->format != Format::kText && options->format != Format::kJson)
        refuse("--json", "-", "is stdout, and so is --format's",
               "--format csv --json /tmp/perf.json");
      options->format = Format::kJson;
      options->json_path.clear();
      lines = check_lines();
    }
    exit_code = run_batch(*options, lines);
  });
}

}  // namespace sluice::tools
