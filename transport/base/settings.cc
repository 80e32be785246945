#include <sluice/base/settings.h>

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include <sluice/base/log.h>

namespace sluice {
namespace {

const std::vector<Setting>& table() {
  using enum SettingOf;
  using enum SettingType;
  static const std::vector<Setting> all = {
      {"SLUICE_ARENA_LIMIT",
       kLibrary,
       kBytes,
       "a size such as 8G",
       {},
       "half of the machine's memory",
       "ArenaOptions::limit_bytes",
       "Most memory that an arena takes."},
      {"SLUICE_ARENA_NUMA",
       kLibrary,
       kText,
       "process, local, interleave or node:N",
       {},
       "process",
       "ArenaOptions::numa",
       "Memory nodes on which an arena lies. process: as numactl says."},
      {"SLUICE_CACHE_DIR",
       kLibrary,
       kFolder,
       "an absolute path",
       {},
       "$XDG_CACHE_HOME/sluice or ~/.cache/sluice",
       "",
       "Where `sluice tune` keeps a machine's measured thresholds, and programs read them. `sluice "
       "tune system` keeps its results and its record there."},
      {"SLUICE_ETHERNET",
       kLibrary,
       kFlag,
       "1",
       {"1"},
       "off",
       "ConnectOptions::ethernet, ListenOptions::ethernet",
       "sluice:// may take the kernel module or raw frames between neighbours, before tcp. Both "
       "ends must set it."},
      {"SLUICE_GRPC",
       kLibrary,
       kFlag,
       "off",
       {"off"},
       "on",
       "",
       "Calls of the gRPC bridge go by gRPC's own connection, and servers have no listener."},
      {"SLUICE_GRPC_LISTEN",
       kLibrary,
       kText,
       "an address, or 1",
       {},
       "none",
       "sluice::grpc::Listen()",
       "Servers of a program with //plugins/grpc:auto_listen listen there. 1: sluice://0.0.0.0:0."},
      {"SLUICE_HELPER_THREAD",
       kLibrary,
       kFlag,
       "1",
       {"1"},
       "off",
       "ContextOptions::helper_thread",
       "A context has a second thread, which provides and frees pages, and copies with it."},
      {"SLUICE_L2_BROKER",
       kLibrary,
       kPath,
       "a socket's path",
       {},
       "/run/sluice-l2-INTERFACE",
       "",
       "Where `sluice broker` lends packet sockets."},
      {"SLUICE_L2_BULK",
       kLibrary,
       kFlag,
       "frames",
       {"frames"},
       "a second session over UDP",
       "",
       "l2:// moves bulk in raw frames as well."},
      {"SLUICE_L2_CHECKSUMS",
       kLibrary,
       kFlag,
       "1",
       {"1"},
       "off",
       "",
       "A CRC32C of every payload over l2:// and kmod://, in both directions, if either end sets "
       "it."},
      {"SLUICE_L2_DISCOVER",
       kLibrary,
       kFlag,
       "1",
       {"1"},
       "off",
       "ConnectOptions::discover",
       "A name in l2:// that no file has is asked for by broadcast."},
      {"SLUICE_L2_NAME",
       kLibrary,
       kText,
       "a name",
       {},
       "none",
       "ListenOptions::discoverable_as",
       "The name by which a listener of l2:// answers such questions."},
      {"SLUICE_L2_QDISC_BYPASS",
       kLibrary,
       kFlag,
       "1",
       {"1"},
       "off",
       "",
       "Raw frames go around the interface's queueing discipline, unless that shapes traffic."},
      {"SLUICE_L2_SECRET_FILE",
       kLibrary,
       kPath,
       "a file's path",
       {},
       "none",
       "ConnectOptions::secret_file, ListenOptions::secret_file",
       "The secret with which l2:// frames are encrypted. Paths in the clear are refused then."},
      {"SLUICE_L2_XDP_GENERIC",
       kLibrary,
       kFlag,
       "1",
       {"1"},
       "off",
       "",
       "l2://xdp/ takes the kernel's generic XDP, which is slower, where a driver has none."},
      {"SLUICE_L2_XDP_QUEUE",
       kLibrary,
       kNumber,
       "0 to 4095",
       {},
       "the only one",
       "",
       "The receive queue of a card with several that frames of l2://xdp/ are steered to.",
       0,
       4095},
      {"SLUICE_LOG",
       kLibrary,
       kWord,
       "error, warning, info or debug",
       {"error", "warning", "info", "debug"},  // in the order of LogLevel
       "warning",
       "set_log_level()",
       "The least severe lines that are written to stderr."},
      {"SLUICE_PEERS",
       kLibrary,
       kPath,
       "a file's path",
       {},
       "/etc/sluice/peers",
       "",
       "Names of peers for l2:// and kmod://, before those of /etc/ethers."},
      {"SLUICE_RDMA_MODERATION",
       kLibrary,
       kText,
       "auto, or COMPLETIONS/MICROSECONDS such as 16/8",
       {},
       "off",
       "",
       "Devices that can do it collect completions before they wake a sleeping program."},
      {"SLUICE_RDMA_QUEUE_PAIRS",
       kLibrary,
       kNumber,
       "1 to 8",
       {},
       "1",
       "",
       "Queue pairs of each connection over which bulk is spread. The end that connects decides.",
       1,
       8},
      {"SLUICE_RECORD",
       kLibrary,
       kFolder,
       "an absolute path",
       {},
       "off",
       "",
       "Each process writes its messages and how it waited into a file there: docs/profile.md."},
      {"SLUICE_TUNING",
       kLibrary,
       kText,
       "NAME=VALUE,... such as spin_ns=0,shm_eager_bytes=8K",
       {},
       "measured, or built in",
       "ContextOptions::tuning",
       "Thresholds: docs/tuning.md lists them."},
      {"SLUICE_WAITING",
       kLibrary,
       kWord,
       "adaptive, spin or sleep",
       {"adaptive", "spin", "sleep"},  // in the order of Waiting
       "adaptive",
       "ContextOptions::waiting",
       "How a context waits: it polls for a while and then sleeps, polls only, or sleeps at once."},
      {"SLUICE_BENCH_BIN",
       kCommand,
       kPath,
       "a folder's path",
       {},
       "bazel-bin",
       "",
       "Built programs that `sluice bench` runs."},
      {"SLUICE_BENCH_HOME",
       kCommand,
       kPath,
       "a folder's path",
       {},
       "beside the command",
       "",
       "The folder tools/bench of the sources, for a copied command."},
      {"SLUICE_LAB_ADDRESS",
       kCommand,
       kText,
       "set by the lab",
       {},
       "",
       "",
       "In a guest: the address of its RDMA device."},
      {"SLUICE_LAB_ARTIFACTS",
       kCommand,
       kPath,
       "set by the lab",
       {},
       "",
       "",
       "In a guest: the folder of `--artifacts`."},
      {"SLUICE_LAB_CACHE",
       kCommand,
       kPath,
       "a folder's path",
       {},
       "~/.cache/sluice/lab",
       "",
       "Where the lab keeps kernels."},
      {"SLUICE_LAB_DEVICE",
       kCommand,
       kText,
       "set by the lab",
       {},
       "",
       "",
       "In a guest: the name of its RDMA device."},
      {"SLUICE_LAB_HOME",
       kCommand,
       kPath,
       "a folder's path",
       {},
       "beside the command",
       "",
       "The folder tools/lab of the sources, for a copied command."},
      {"SLUICE_LAB_NODE", kCommand, kText, "set by the lab", {}, "", "", "In a guest: 1 or 2."},
      {"SLUICE_LAB_PEER",
       kCommand,
       kText,
       "set by the lab",
       {},
       "",
       "",
       "In one of two guests: the other's address."},
      {"SLUICE_TUNE_SYSTEM_HOME",
       kCommand,
       kPath,
       "a folder's path",
       {},
       "beside the command",
       "",
       "The folder tools/tune_system of the sources, for a copied command."},
      {"SLUICE_REQUIRE",
       kTests,
       kText,
       "netns,...",
       {},
       "none",
       "",
       "Tests fail instead of being skipped where these are missing."},
  };
  return all;
}

// Read by programs under tests/ and benchmarks/ alone; nobody is warned of them.
constexpr std::string_view kOfTestPrograms[] = {
    "SLUICE_BENCH_COUNTERS", "SLUICE_COLLECTIVE_", "SLUICE_CONTRACT_", "SLUICE_FILE_MIB",
    "SLUICE_HOSTILE_",       "SLUICE_KILL_",       "SLUICE_LAB",       "SLUICE_RELAY_",
    "SLUICE_REVOCATIONS",    "SLUICE_REVOKE_",     "SLUICE_WIRE_",
};

struct Overrides {
  std::mutex mutex;
  std::map<std::string_view, std::optional<std::string>> values;  // by the table's names
};
Overrides& overrides() {
  static Overrides all;
  return all;
}

const char* in_environment(const Setting& setting) {
  const bool guarded = setting.name == "SLUICE_TUNING" || setting.name == "SLUICE_CACHE_DIR" ||
                       setting.name == "SLUICE_RECORD";
  return guarded ? ::secure_getenv(setting.name.data()) : ::getenv(setting.name.data());
}

std::optional<uint64_t> number(const Setting& setting, std::string_view text) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || value < setting.least || value > setting.most) return std::nullopt;
  return value;
}

// Whether this value of the setting has not just been told to be wrong.
bool first_told(const Setting& setting, const std::string& text) {
  static std::mutex mutex;
  static std::map<std::string_view, std::string> told;
  std::lock_guard lock(mutex);
  auto [last, is_new] = told.try_emplace(setting.name, text);
  if (is_new) return true;
  return std::exchange(last->second, text) != text;
}

// Letters changed, left out, added, or swapped with the next one to make one word of the other.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({changed, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

// Half of the letters behind SLUICE_ may be wrong, or the rest may be missing.
std::string_view nearest(std::string_view name) {
  const size_t common = std::string_view("SLUICE_").size();
  std::string_view best;
  size_t least = (name.size() - std::min(common, name.size())) / 2 + 1;
  for (const Setting& each : table()) {
    size_t steps = distance(name, each.name);
    if (name.size() > common + 1 && each.name.starts_with(name)) steps = std::min<size_t>(steps, 1);
    if (steps >= least) continue;
    least = steps;
    best = each.name;
  }
  return best;
}

}  // namespace

std::span<const Setting> settings() { return table(); }

const Setting* find_setting(std::string_view name) {
  auto found = std::find_if(table().begin(), table().end(),
                            [&](const Setting& each) { return each.name == name; });
  return found == table().end() ? nullptr : &*found;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value == 0) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  unsigned shift = 0;
  if (!unit.empty()) {
    const size_t power = std::string_view("KMGTkmgt").find(unit.front());
    if (power == std::string_view::npos) return std::nullopt;
    shift = 10 * (static_cast<unsigned>(power % 4) + 1);
    unit.remove_prefix(1);
    if (!unit.empty() && unit != "B" && unit != "iB") return std::nullopt;
  }
  if (value > std::numeric_limits<uint64_t>::max() >> shift) return std::nullopt;
  return value << shift;
}

std::string unfit(const Setting& setting, std::string_view value) {
  const auto& words = setting.words;
  bool fits = true;
  if (!words.empty()) fits = std::find(words.begin(), words.end(), value) != words.end();
  if (setting.type == SettingType::kNumber) fits = number(setting, value).has_value();
  if (setting.type == SettingType::kBytes) fits = parse_bytes(value).has_value();
  if (setting.type == SettingType::kFolder) fits = value.starts_with('/');
  if (fits) return "";
  return std::string(setting.name) + " cannot be '" + std::string(value.substr(0, 64)) +
         "'; it can be " + std::string(setting.values);
}

Status set_setting(std::string_view name, std::optional<std::string> value) {
  auto invalid = [](std::string why) {
    return Status(Code::kInvalidArgument, Scope::kContext, "base/settings", std::move(why));
  };
  const Setting* setting = find_setting(name);
  if (setting != nullptr && setting->of != SettingOf::kLibrary)
    return invalid(std::string(name) +
                   " is read by commands and tests, not by the library; set it " +
                   "in their environment");
  if (setting == nullptr) {
    const std::string_view meant = nearest(name);
    return invalid("no setting has the name '" + std::string(name.substr(0, 64)) + "'" +
                   (meant.empty() ? "" : "; did you mean " + std::string(meant) + "?") +
                   "; all: sluice info --settings");
  }
  if (value) {
    if (std::string why = unfit(*setting, *value); !why.empty()) return invalid(std::move(why));
  }
  if (name == "SLUICE_LOG") {
    const std::string level = value.value_or(std::string(setting->otherwise));
    const auto word = std::find(setting->words.begin(), setting->words.end(), level);
    set_log_level(static_cast<LogLevel>(word - setting->words.begin()));
  }
  std::lock_guard lock(overrides().mutex);
  overrides().values[setting->name] = std::move(value);
  return Status();
}

SettingSource source_of(const Setting& setting) {
  std::lock_guard lock(overrides().mutex);
  if (auto own = overrides().values.find(setting.name); own != overrides().values.end())
    return own->second ? SettingSource::kCode : SettingSource::kDefault;
  return in_environment(setting) != nullptr ? SettingSource::kEnvironment : SettingSource::kDefault;
}

std::optional<std::string> setting_text(std::string_view name) {
  const Setting* setting = find_setting(name);
  if (setting == nullptr) return std::nullopt;
  std::lock_guard lock(overrides().mutex);
  auto own = overrides().values.find(setting->name);
  if (own != overrides().values.end()) return own->second;
  const char* text = in_environment(*setting);
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

bool setting_is(std::string_view name, std::string_view word) {
  const std::optional<std::string> text = setting_text(name);
  return text && *text == word;
}

std::optional<uint64_t> setting_number(std::string_view name) {
  const Setting* setting = find_setting(name);
  const std::optional<std::string> text = setting_text(name);
  if (setting == nullptr || !text) return std::nullopt;
  std::optional<uint64_t> value = number(*setting, *text);
  if (!value && first_told(*setting, *text))
    log(LogLevel::kWarning, unfit(*setting, *text) + "; it is ignored");
  return value;
}

std::vector<UnknownSetting> unknown_settings(const char* const* environment) {
  std::vector<UnknownSetting> unknown;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view text(*environment);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("SLUICE_") || find_setting(name) != nullptr) continue;
    const bool of_a_test =
        std::any_of(std::begin(kOfTestPrograms), std::end(kOfTestPrograms),
                    [&](std::string_view begin) { return name.starts_with(begin); });
    if (!of_a_test) unknown.push_back({std::string(name), nearest(name)});
  }
  return unknown;
}

void warn_of_unknown_settings() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const UnknownSetting& each : unknown_settings(environ)) {
      log(LogLevel::kWarning,
          each.name + " is set, and nothing reads it" +
              (each.nearest.empty() ? std::string("; all: sluice info --settings")
                                    : "; did you mean " + std::string(each.nearest) + "?"));
    }
    // A size that is none is an error of the arena, and the log tells of its own level.
    for (const Setting& each : settings()) {
      const std::optional<std::string> text = setting_text(each.name);
      if (!text || each.of != SettingOf::kLibrary || each.type == SettingType::kBytes ||
          each.name == "SLUICE_LOG")
        continue;
      if (std::string why = unfit(each, *text); !why.empty() && first_told(each, *text))
        log(LogLevel::kWarning, why + "; it is ignored");
    }
  });
}

}  // namespace sluice
