#include "tools/proxy/proxy_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/perf/flags/size_text.h"
#include "tools/proxy/frame.h"
#include "tools/proxy/proxy.h"
#include "tools/version.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::json;

// Three years, which the clock can add to any time of day.
constexpr double kMostSeconds = 1e8;
constexpr const char* kExample =
    "sluice proxy --listen 127.0.0.1:50051 --to sluice://worker3:7000, and there "
    "sluice proxy --at sluice://0.0.0.0:7000 --service 127.0.0.1:50051";

struct ProxyFlags {
  proxy::ProxyOptions options;
  std::string window = "1M", memory = "1G";
  bool json = false;
};

[[noreturn]] void refuse(const std::string& flag, const std::string& why) {
  throw CLI::ValidationError(flag, why + "; example: " + kExample);
}

void check(ProxyFlags& flags) {
  proxy::ProxyOptions& options = flags.options;
  const bool client = !options.listen.empty() && !options.to.empty();
  const bool server = !options.at.empty() && !options.service.empty();
  const size_t given = (options.listen.empty() ? 0 : 1) + (options.to.empty() ? 0 : 1) +
                       (options.at.empty() ? 0 : 1) + (options.service.empty() ? 0 : 1);
  if (given != 2 || !(client || server))
    refuse("proxy", "give --listen and --to, or --at and --service");
  auto window = parse_size(flags.window);
  if (!window || *window < proxy::kLeastWindow || *window > proxy::kMostWindow)
    refuse("--window", fmt::format("'{}' is no size from 64K to 256M", flags.window));
  auto memory = parse_size(flags.memory);
  if (!memory) refuse("--memory", fmt::format("'{}' is no size", flags.memory));
  // "nan" is neither below nor above any limit.
  if (!(options.run_seconds >= 0 && options.run_seconds <= kMostSeconds))
    refuse("--for", "it takes more than 0 and at most 100000000 seconds");
  if (!(options.grace_seconds >= 0 && options.grace_seconds <= kMostSeconds))
    refuse("--grace", "it takes 0 to 100000000 seconds");
  options.window = *window;
  options.most_memory = *memory;
  if (memory_of(options) > options.most_memory)
    refuse("--memory",
           fmt::format("{} connections with two windows of {} each may need {}, more than {}; give "
                       "fewer --connections or a smaller --window",
                       options.most_connections, readable_size(options.window),
                       readable_size(memory_of(options)), readable_size(options.most_memory)));
}

// Output that nobody takes, such as a full disk's, does not end the proxy.
void put(std::FILE* where, const std::string& text) {
  (void)std::fputs(text.c_str(), where);
  (void)std::fflush(where);
}

std::string json_of(const proxy::Outcome& outcome) {
  const proxy::Totals& totals = outcome.totals;
  Json out = {{"schema", "sluice.proxy/1"},
              {"version", kVersion},
              {"path", outcome.path},
              {"connections", totals.connections},
              {"most_open", totals.most_open},
              {"refused_away", totals.refused_away},
              {"refused_many", totals.refused_many},
              {"refused_service", totals.refused_service},
              {"refused_ending", totals.refused_ending},
              {"reset", totals.reset},
              {"bytes_out", totals.bytes_out},
              {"bytes_in", totals.bytes_in},
              {"pieces", totals.pieces},
              {"piece_bytes", totals.piece_bytes},
              {"copied_bytes", totals.copied_bytes},
              {"kernel_copied_bytes", totals.kernel_copied_bytes},
              {"links", totals.links},
              {"lies", totals.lies}};
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string text_of(const proxy::Outcome& outcome) {
  const proxy::Totals& totals = outcome.totals;
  std::string text = fmt::format("{} connections (most at once {}, reset {}), {} out, {} in, {}\n",
                                 totals.connections, totals.most_open, totals.reset,
                                 readable_size(totals.bytes_out), readable_size(totals.bytes_in),
                                 outcome.path.empty() ? "never connected" : "by " + outcome.path);
  const uint64_t refused =
      totals.refused_away + totals.refused_many + totals.refused_service + totals.refused_ending;
  if (refused == 0) return text;
  return text + fmt::format(
                    "{} refused: other proxy away {}, too many {}, service absent {}, at the end "
                    "{}\n",
                    refused, totals.refused_away, totals.refused_many, totals.refused_service,
                    totals.refused_ending);
}

int run(ProxyFlags& flags) {
  // With --json standard output has the document alone.
  std::FILE* lines = flags.json ? stderr : stdout;
  flags.options.say = [lines](const std::string& line) { put(lines, line + "\n"); };
  auto outcome = flags.options.listen.empty() ? proxy::run_server(flags.options)
                                              : proxy::run_client(flags.options);
  if (!outcome.ok()) {
    put(stderr, fmt::format("sluice proxy: {}\n", outcome.status().to_string()));
    return 1;
  }
  const std::string totals = flags.json ? json_of(*outcome) : text_of(*outcome);
  return std::fputs(totals.c_str(), stdout) >= 0 && std::fflush(stdout) == 0 ? 0 : 1;
}

void add_places(CLI::App* command, proxy::ProxyOptions& options) {
  command
      ->add_option("--listen", options.listen,
                   "where programs connect: HOST:PORT, PORT (this machine alone) or unix:PATH")
      ->type_name("PLACE");
  command->add_option("--to", options.to, "the other proxy, for example sluice://worker3:7000")
      ->type_name("ADDRESS");
  command
      ->add_option("--at", options.at,
                   "where other proxies connect, for example sluice://0.0.0.0:7000")
      ->type_name("ADDRESS");
  command
      ->add_option("--service", options.service,
                   "the program that is to be reached: HOST:PORT, PORT or unix:PATH")
      ->type_name("PLACE");
}

}  // namespace

void add_proxy_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "proxy", "forward a TCP port or Unix socket over sluice, for programs of any language");
  auto flags = std::make_shared<ProxyFlags>();
  proxy::ProxyOptions& options = flags->options;
  add_places(command, options);
  command
      ->add_option("--secret-file", options.secret_file,
                   "the secret that both proxies share: l2:// and sluice:// are encrypted")
      ->type_name("FILE");
  command
      ->add_option("--connections", options.most_connections,
                   "most that are open at once; more are refused (256)")
      ->check(CLI::Range(1, 100000));
  command
      ->add_option("--window", flags->window,
                   "most bytes of a connection under way, each direction (1M)")
      ->type_name("SIZE");
  command
      ->add_option("--memory", flags->memory,
                   "most for all of them: connections times two windows must fit in (1G)")
      ->type_name("SIZE");
  command->add_option("--for", options.run_seconds, "end after so long (until SIGINT or SIGTERM)")
      ->type_name("SECONDS")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--grace", options.grace_seconds,
                   "at the end, wait so long for open connections; a second signal does not (2)")
      ->type_name("SECONDS")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--json", flags->json, "at the end print JSON; other lines go to stderr");
  command->footer("exit codes: 0 ended as asked, 1 could not start, 2 the command line is wrong");
  command->callback([flags, &exit_code] {
    check(*flags);
    exit_code = run(*flags);
  });
}

}  // namespace sluice::tools
