#include "tools/info/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace sluice::tools {
namespace {

using Json = nlohmann::json;

const std::vector<Setting>& table() {
  using enum SettingOf;
  static const std::vector<Setting> all = {
      {"SLUICE_ARENA_LIMIT",
       kLibrary,
       "a size such as 8G",
       {},
       "half of the machine's memory",
       "ArenaOptions::limit_bytes",
       "Most memory that an arena takes."},
      {"SLUICE_CACHE_DIR",
       kLibrary,
       "an absolute path",
       {},
       "$XDG_CACHE_HOME/sluice or ~/.cache/sluice",
       "",
       "Where `sluice tune` keeps a machine's measured thresholds, and programs read them."},
      {"SLUICE_ETHERNET",
       kLibrary,
       "1",
       {"1"},
       "off",
       "ConnectOptions::ethernet, ListenOptions::ethernet",
       "sluice:// may take the kernel module or raw frames between neighbours, before tcp. Both "
       "ends must set it."},
      {"SLUICE_GRPC",
       kLibrary,
       "off",
       {"off"},
       "on",
       "",
       "Calls of the gRPC bridge go by gRPC's own connection, and servers have no listener."},
      {"SLUICE_GRPC_LISTEN",
       kLibrary,
       "an address, or 1",
       {},
       "none",
       "sluice::grpc::Listen()",
       "Servers of a program with //plugins/grpc:auto_listen listen there. 1: sluice://0.0.0.0:0."},
      {"SLUICE_L2_BROKER",
       kLibrary,
       "a socket's path",
       {},
       "/run/sluice-l2-INTERFACE",
       "",
       "Where `sluice broker` lends packet sockets."},
      {"SLUICE_L2_BULK",
       kLibrary,
       "frames",
       {"frames"},
       "a second session over UDP",
       "",
       "l2:// moves bulk in raw frames as well."},
      {"SLUICE_L2_CHECKSUMS",
       kLibrary,
       "1",
       {"1"},
       "off",
       "",
       "A CRC32C of every payload over l2:// and kmod://, in both directions, if either end sets "
       "it."},
      {"SLUICE_L2_DISCOVER",
       kLibrary,
       "1",
       {"1"},
       "off",
       "ConnectOptions::discover",
       "A name in l2:// that no file has is asked for by broadcast."},
      {"SLUICE_L2_NAME",
       kLibrary,
       "a name",
       {},
       "none",
       "ListenOptions::discoverable_as",
       "The name by which a listener of l2:// answers such questions."},
      {"SLUICE_L2_QDISC_BYPASS",
       kLibrary,
       "1",
       {"1"},
       "off",
       "",
       "Raw frames go around the interface's queueing discipline, unless that shapes traffic."},
      {"SLUICE_L2_SECRET_FILE",
       kLibrary,
       "a file's path",
       {},
       "none",
       "ConnectOptions::secret_file, ListenOptions::secret_file",
       "The secret with which l2:// frames are encrypted. Paths in the clear are refused then."},
      {"SLUICE_LOG",
       kLibrary,
       "error, warning, info or debug",
       {"error", "warning", "info", "debug"},
       "warning",
       "set_log_level()",
       "The least severe lines that are written to stderr."},
      {"SLUICE_PEERS",
       kLibrary,
       "a file's path",
       {},
       "/etc/sluice/peers",
       "",
       "Names of peers for l2:// and kmod://, before those of /etc/ethers."},
      {"SLUICE_RDMA_MODERATION",
       kLibrary,
       "auto, or COMPLETIONS/MICROSECONDS such as 16/8",
       {},
       "off",
       "",
       "Devices that can do it collect completions before they wake a sleeping program."},
      {"SLUICE_RDMA_QUEUE_PAIRS",
       kLibrary,
       "1 to 8",
       {"1", "2", "3", "4", "5", "6", "7", "8"},
       "1",
       "",
       "Queue pairs of each connection over which bulk is spread. The end that connects decides."},
      {"SLUICE_TUNING",
       kLibrary,
       "NAME=VALUE,... such as spin_ns=0,shm_eager_bytes=8K",
       {},
       "measured, or built in",
       "ContextOptions::tuning",
       "Thresholds: docs/tuning.md lists them."},
      {"SLUICE_BENCH_BIN",
       kCommand,
       "a folder's path",
       {},
       "bazel-bin",
       "",
       "Built programs that `sluice bench` runs."},
      {"SLUICE_BENCH_HOME",
       kCommand,
       "a folder's path",
       {},
       "beside the command",
       "",
       "The folder tools/bench of the sources, for a copied command."},
      {"SLUICE_LAB_ADDRESS",
       kCommand,
       "set by the lab",
       {},
       "",
       "",
       "In a guest: the address of its RDMA device."},
      {"SLUICE_LAB_ARTIFACTS",
       kCommand,
       "set by the lab",
       {},
       "",
       "",
       "In a guest: the folder of `--artifacts`."},
      {"SLUICE_LAB_CACHE",
       kCommand,
       "a folder's path",
       {},
       "~/.cache/sluice/lab",
       "",
       "Where the lab keeps kernels."},
      {"SLUICE_LAB_DEVICE",
       kCommand,
       "set by the lab",
       {},
       "",
       "",
       "In a guest: the name of its RDMA device."},
      {"SLUICE_LAB_HOME",
       kCommand,
       "a folder's path",
       {},
       "beside the command",
       "",
       "The folder tools/lab of the sources, for a copied command."},
      {"SLUICE_LAB_NODE", kCommand, "set by the lab", {}, "", "", "In a guest: 1 or 2."},
      {"SLUICE_LAB_PEER",
       kCommand,
       "set by the lab",
       {},
       "",
       "",
       "In one of two guests: the other's address."},
      {"SLUICE_REQUIRE",
       kTests,
       "netns,...",
       {},
       "none",
       "",
       "Tests fail instead of being skipped where these are missing."},
  };
  return all;
}

const char* title(SettingOf of) {
  switch (of) {
    case SettingOf::kLibrary: return "Read by every program that uses sluice";
    case SettingOf::kCommand: return "Read by `sluice lab` and `sluice bench`, or set by them";
    case SettingOf::kTests: return "Read by the tests";
  }
  return "";
}

std::string text(const Json& value) { return value.get<std::string>(); }
std::string code(std::string_view words) { return words.empty() ? "" : fmt::format("`{}`", words); }

}  // namespace

std::span<const Setting> settings() { return table(); }

const Setting* find_setting(std::string_view name) {
  auto found = std::find_if(table().begin(), table().end(),
                            [&](const Setting& each) { return each.name == name; });
  return found == table().end() ? nullptr : &*found;
}

Json settings_facts() {
  Json out = Json::array();
  for (const Setting& each : table()) {
    const char* value = std::getenv(std::string(each.name).c_str());
    out.push_back({{"name", each.name},
                   {"value", value == nullptr ? Json() : Json(value)},
                   {"default", each.otherwise},
                   {"values", each.values},
                   {"in_code", each.in_code},
                   {"meaning", each.meaning}});
  }
  return out;
}

void print_settings(const Json& settings) {
  for (const Json& each : settings) {
    std::string value =
        each["value"].is_null()
            ? (text(each["default"]).empty() ? "not set" : text(each["default"]) + " (default)")
            : text(each["value"]) + " (environment)";
    fmt::print("{:<24} {}\n{:<24} {}: {}{}\n", text(each["name"]), value, "", text(each["values"]),
               text(each["meaning"]),
               text(each["in_code"]).empty() ? "" : " In code: " + text(each["in_code"]) + ".");
  }
}

void print_settings_document() {
  for (SettingOf of : {SettingOf::kLibrary, SettingOf::kCommand, SettingOf::kTests}) {
    fmt::print(
        "\n## {}\n\n| variable | values | default | meaning | in code |\n|---|---|---|---|---|\n",
        title(of));
    for (const Setting& each : table()) {
      if (each.of == of)
        fmt::print("| `{}` | {} | {} | {} | {} |\n", each.name, each.values, each.otherwise,
                   each.meaning, code(each.in_code));
    }
  }
}

}  // namespace sluice::tools
