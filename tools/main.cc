// The command `sluice`: its subcommands, and one way to say that a command line is wrong.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "tools/bench/bench_command.h"
#include "tools/broker/broker_command.h"
#ifndef SLUICE_WITHOUT_DEMO  // by CMake: it needs gRPC
#include "tools/demo_job/demo_command.h"
#endif
#include "tools/doctor/doctor_command.h"
#include "tools/dump/dump_command.h"
#include "tools/explain/explain_command.h"
#include "tools/graph/graph_command.h"
#include "tools/info/info_command.h"
#include "tools/lab/lab_command.h"
#include "tools/manual/manual_command.h"
#include "tools/perf/flags/nearest.h"
#include "tools/perf/flags/perf_command.h"
#include "tools/perf/flags/personality.h"
#include "tools/profile/profile_command.h"
#include "tools/proxy/proxy_command.h"
#include "tools/tune/tune_command.h"
#include "tools/tune_system/tune_system_command.h"
#include "tools/version.h"

namespace {

constexpr int kExitFailed = 1, kExitUsage = 2;

std::string example_for(const CLI::App& app) {
  for (const CLI::App* used : app.get_subcommands()) {
    if (used->get_name() == "info") return "sluice info --explain";
    if (used->get_name() == "doctor") return "sluice doctor 192.0.2.1";
    if (used->get_name() == "explain") return "sluice explain kTryAgain";
    if (used->get_name() == "completion") return "source <(sluice completion bash)";
    if (used->get_name() == "manual") return "sluice manual perf | man -l -";
    if (used->get_name() == "version") return "sluice version";
    if (used->get_name() == "tune") return "sluice tune";
    if (used->get_name() == "lab") return "sluice lab run -- ibv_devinfo";
    if (used->get_name() == "broker") return "sudo sluice broker --interface eth0 --uid 1000";
    if (used->get_name() == "dump") return "sluice dump eth0";
    if (used->get_name() == "demo") return "sluice demo --model tiny --steps 3";
    if (used->get_name() == "graph") return "sluice graph make --model vgg16 > vgg16.json";
    if (used->get_name() == "profile") return "sluice profile record -- PROGRAM";
    if (used->get_name() == "proxy")
      return "sluice proxy --listen 127.0.0.1:50051 --to sluice://worker3:7000";
    if (used->get_name() == "perf") return "sluice perf send_lat --self --transport shm --size 64";
  }
  return "sluice perf send_lat --self";
}

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

// One line: what is wrong, and a command line that is right.
int report_usage(const CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text == "A subcommand is required") text = "no command; `sluice --help` lists all";
  bool has_example = text.find("example") != std::string::npos;
  fmt::print(stderr, "sluice: {}{}\n", text, has_example ? "" : "; example: " + example_for(app));
  return kExitUsage;
}

// Not by fmt::print(), which throws where stderr goes to the same place.
int report_output(int error) {
  const std::string why = error == 0 ? "" : std::string(": ") + std::strerror(error);
  std::fprintf(stderr,
               "sluice: stdout cannot be written%s; free room where it goes to, or give it another "
               "file\n",
               why.c_str());
  return kExitFailed;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments = sluice::tools::as_command({argv, argv + argc});
  if (argc > 1 && std::string(argv[1]) == "lab") return sluice::tools::run_lab(argc - 2, argv + 2);
  if (argc > 1 && std::string(argv[1]) == "bench")
    return sluice::tools::run_bench(argc - 2, argv + 2);
  if (argc > 2 && std::string(argv[1]) == "tune" && std::string(argv[2]) == "system")
    return sluice::tools::run_tune_system(argc - 3, argv + 3);
  CLI::App app("sluice moves tensors between processes", "sluice");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("sluice ") + sluice::tools::kVersion);
  int exit_code = 0;
  sluice::tools::add_perf_command(app, arguments, exit_code);
#ifndef SLUICE_WITHOUT_DEMO
  sluice::tools::add_demo_command(app, exit_code);
#endif
  sluice::tools::add_broker_command(app, exit_code);
  sluice::tools::add_dump_command(app, exit_code);
  sluice::tools::add_info_command(app, exit_code);
  sluice::tools::add_doctor_command(app, exit_code);
  sluice::tools::add_explain_command(app, exit_code);
  sluice::tools::add_tune_command(app, exit_code);
  sluice::tools::add_profile_command(app, exit_code);
  sluice::tools::add_proxy_command(app, exit_code);
  sluice::tools::add_graph_command(app, exit_code);
  sluice::tools::add_lab_command(app);
  sluice::tools::add_bench_command(app);
  app.add_subcommand("version", "print the version")->callback([] {
    fmt::print("sluice {}\n", sluice::tools::kVersion);
  });
  sluice::tools::add_manual_commands(app, exit_code);
  std::vector<std::string> commands = names_of_commands(app);
  if (arguments.size() > 1 && !arguments[1].starts_with('-') &&
      std::find(commands.begin(), commands.end(), arguments[1]) == commands.end()) {
    std::string meant = sluice::tools::nearest(arguments[1], commands);
    fmt::print(stderr, "sluice: COMMAND: '{}' is none of {}{}; example: sluice info\n",
               arguments[1], fmt::join(commands, " "),
               meant.empty() ? "" : "; did you mean " + meant + "?");
    return kExitUsage;
  }
  try {
    // From the last to the first, as the library takes them.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend() - 1));
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error);
  } catch (const std::system_error& error) {  // of fmt::print()
    return report_output(error.code().value());
  }
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  return written || exit_code != 0 ? exit_code : report_output(errno);
}
