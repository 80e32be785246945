#include "tools/doctor/machine_checks.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "tools/info/machine.h"
#include "tools/info/settings.h"
#include "tools/perf/flags/nearest.h"

namespace sluice::tools {
namespace {

// A context of all paths takes some 20 descriptors, a connection up to four.
constexpr uint64_t kFewOpenFiles = 256;
// A tick of 10 ms is the least that the kernel tells of; doctor takes some 0.1 s.
constexpr double kMuchStolen = 0.1;
// Clocks of x86, ARM, POWER, s390 and the hypervisors that are read without a system call.
const std::set<std::string> kFastClocks = {
    "tsc", "kvm-clock",        "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase",
    "tod", "riscv_clocksource"};

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<uint64_t> number_of(const std::string& text) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// The group of this process in the unified hierarchy: "0::/user.slice".
std::string control_group(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(4);
  }
  return "";
}

std::string gib(uint64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1u << 30));
}

}  // namespace

std::optional<uint64_t> memory_ceiling(const std::filesystem::path& root) {
  std::filesystem::path top = root / "sys/fs/cgroup";
  std::optional<uint64_t> least = number_of(first_line(top / "memory.max"));
  std::filesystem::path folder = top;
  for (const std::filesystem::path& part : std::filesystem::path(control_group(root))) {
    folder /= part;
    std::optional<uint64_t> here = number_of(first_line(folder / "memory.max"));
    if (here && (!least || *here < *least)) least = here;
  }
  return least;
}

Finding check_memory(uint64_t limit_bytes, uint64_t machine_bytes,
                     std::optional<uint64_t> ceiling_bytes) {
  const uint64_t most = std::min(machine_bytes, ceiling_bytes.value_or(~uint64_t{0}));
  if (limit_bytes < most)
    return ok("memory", fmt::format("an arena may take {} of {}", gib(limit_bytes), gib(most)));
  const bool contained = most < machine_bytes;
  return problem(
      "memory",
      fmt::format("an arena may take {}, but {} has {}: the kernel would end the process before "
                  "the arena refuses",
                  gib(limit_bytes), contained ? "this control group" : "this machine", gib(most)),
      fmt::format("set SLUICE_ARENA_LIMIT={}M, or {}", std::max<uint64_t>(most >> 21, 1),
                  contained ? "give the container more memory"
                            : "unset it: half of the memory is the default"));
}

Finding check_open_files(uint64_t limit) {
  if (limit >= kFewOpenFiles)
    return ok("open-files", limit == ~uint64_t{0} ? "unlimited" : fmt::format("{}", limit));
  return problem(
      "open-files",
      fmt::format("this process may open {} files, and each connection takes up to four", limit),
      "`ulimit -n 4096`; in containers --ulimit nofile=4096, in services LimitNOFILE=4096");
}

Finding check_clock(const std::string& source) {
  if (source.empty()) return ok("clock", "source not told by this kernel");
  if (kFastClocks.contains(source)) return ok("clock", source);
  return note("clock",
              "the clock source is " + source +
                  ": each look at the clock is a system call, and latencies are longer",
              "see /sys/devices/system/clocksource/clocksource0/available_clocksource; if it has "
              "tsc, boot with clocksource=tsc");
}

Finding check_load(double load, int cpus, double stolen) {
  if (stolen > kMuchStolen) {
    return note("load",
                fmt::format("the hypervisor gives {:.0f} % of this machine's time to others: "
                            "figures measured here will vary",
                            stolen * 100),
                "compare ratios of interleaved runs, or measure on a machine of your own");
  }
  if (load > cpus) {
    return note(
        "load",
        fmt::format(
            "{:.1f} processes want {} CPUs: latencies measured now are those of the scheduler",
            load, cpus),
        "end what runs beside it before you measure");
  }
  return ok("load", fmt::format("{:.1f} on {} CPUs", load, cpus));
}

std::vector<InterfaceAddress> read_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const void* address = &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
    if (family == AF_INET6) {
      const auto* six = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr);
      // An interface's own affair, and often equal on clones of one machine.
      if (IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue;
      address = &six->sin6_addr;
    }
    char text[INET6_ADDRSTRLEN] = {};
    if (::inet_ntop(family, address, text, sizeof(text)) != nullptr)
      found.push_back({each->ifa_name, text});
  }
  return found;
}

Finding check_addresses(const std::vector<InterfaceAddress>& addresses) {
  std::map<std::string, std::string> owners;
  for (const auto& [interface, address] : addresses) {
    auto [place, is_new] = owners.emplace(address, interface);
    if (is_new || place->second == interface) continue;
    return problem(
        "addresses",
        fmt::format(
            "{} belongs to {} and to {}: packets and RDMA connections may leave by the wrong one",
            address, place->second, interface),
        fmt::format(
            "sudo ip address del {} dev {} (with its prefix length), or give one of them another",
            address, interface));
  }
  return ok("addresses", fmt::format("{}, each on one interface", owners.size()));
}

Finding check_variables(const std::vector<Variable>& variables) {
  size_t known = 0;
  std::vector<std::string> names;
  for (const Setting& setting : settings()) names.emplace_back(setting.name);
  for (const auto& [name, value] : variables) {
    if (!name.starts_with("SLUICE_")) continue;
    const Setting* setting = find_setting(name);
    if (setting == nullptr) {
      const std::string meant = nearest(name, names);
      return problem(
          "variables", name + " is set, and nothing reads it",
          (meant.empty() ? "unset it" : "did you mean " + meant + "? otherwise unset it") +
              "; all: sluice info --settings");
    }
    if (!unfit(*setting, value).empty()) {
      return problem("variables", fmt::format("{}={} is as if it were not set", name, value),
                     fmt::format("set it to {}, or unset it", setting->values));
    }
    ++known;
  }
  return ok("variables", fmt::format("{} of sluice's are set", known));
}

Findings check_machine(uint64_t arena_limit_bytes) {
  const Machine machine = read_machine();
  std::vector<Variable> variables;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string text = *each;
    const size_t end = text.find('=');
    if (end != std::string::npos) variables.push_back({text.substr(0, end), text.substr(end + 1)});
  }
  return {
      check_variables(variables),
      check_memory(arena_limit_bytes, machine.memory_bytes, memory_ceiling()),
      check_open_files(read_limits().open_files), check_addresses(read_addresses()),
      check_clock(first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource"))};
}

Finding check_load_since(double stolen_before, double seconds) {
  const int cpus = std::max(read_machine().cpus, 1);
  double load = 0;
  if (::getloadavg(&load, 1) != 1) load = 0;
  return check_load(load, cpus,
                    (steal_seconds() - stolen_before) / (std::max(seconds, 0.01) * cpus));
}

}  // namespace sluice::tools
