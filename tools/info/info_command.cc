#include "tools/info/info_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <sluice/allocator/machine_memory.h>
#include <sluice/allocator/numa.h>
#include <sluice/base/counters.h>
#include <sluice/base/mac_names.h>
#include <sluice/base/settings.h>
#include <sluice/l2/carrier/frames.h>
#include <sluice/l2/carrier/interfaces.h>
#include <sluice/select/open.h>
#include <sluice/tuning/tuning.h>
#include <sluice/verbs/devices.h>

#include "tools/doctor/host_checks.h"
#include "tools/info/ethernet_facts.h"
#include "tools/info/machine.h"
#include "tools/info/rdma_facts.h"
#include "tools/info/settings.h"
#include "tools/info/tuning_facts.h"
#include "tools/version.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;  // of x86-64 and most arm64 kernels

struct InfoOptions {
  bool explain = false;
  bool counters = false;
  bool settings = false;
  bool settings_document = false;
  std::string host;  // to explain the way to; empty: none
  bool json = false;
};

// What an arena of this process is like: found by allocating.
struct ArenaFacts {
  uint64_t limit_bytes = 0;
  std::string limit_from;
  uint64_t extent_bytes = 0;
  std::string pages;
  uint64_t page_bytes = 0;
  std::string numa;  // where its pages are to lie
  int node = -1;     // where the first one does; -1: not known
};

Result<ArenaFacts> try_arena() {
  ContextOptions usual;
  usual.tuning = Tuning();  // this machine's are told below, once
  SLUICE_TRY(std::unique_ptr<Context> context, open_context(usual));
  SLUICE_TRY(Buffer buffer, context->arena().allocate(size_t{1} << 20));
  ArenaFacts facts;
  facts.limit_bytes = context->arena().statistics().limit_bytes;
  facts.limit_from = setting_text("SLUICE_ARENA_LIMIT") ? "SLUICE_ARENA_LIMIT"
                     : machine_memory_bytes() < read_machine().memory_bytes
                         ? "half of what this control group may have"
                         : "half of this machine's memory";
  if (auto place = context->arena().locate(buffer.data(), buffer.size_bytes())) {
    facts.extent_bytes = place->first.length;
    facts.pages = to_string(place->first.pages);
    facts.page_bytes = place->first.pages == PageKind::kPlain
                           ? static_cast<uint64_t>(::sysconf(_SC_PAGESIZE))
                           : kHugePageBytes;
  }
  facts.numa = to_string(context->arena().numa());
  const std::byte* first = buffer.data();
  facts.node = numa_nodes_of({&first, 1})[0];
  return facts;
}

// What gets larger pages; empty if there are none to get.
std::string larger_pages(const ArenaFacts& arena, const Machine& machine) {
  const uint64_t needed = arena.extent_bytes / kHugePageBytes;
  if (arena.pages == to_string(PageKind::kTransparentHuge) && machine.hugetlb_free > 0)
    return std::to_string(machine.hugetlb_free) + " hugetlb pages are free, and an extent takes " +
           std::to_string(needed) + ": sudo sysctl vm.nr_hugepages=" + std::to_string(4 * needed);
  if (arena.pages != to_string(PageKind::kPlain)) return "";
  if (machine.thp_shmem.empty())
    return "this kernel has no transparent huge pages of shared memory";
  const std::string set =
      "set advise: echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled";
  if (machine.thp_shmem == "deny") return "shmem_enabled is deny; " + set;
  return "the kernel gave no huge pages (Linux before 6.1 collapses none); " + set +
         ", or reserve some: sudo sysctl vm.nr_hugepages=512";
}

Json limit(uint64_t value) { return value == ~uint64_t{0} ? Json("unlimited") : Json(value); }

Json collect(const Machine& machine, const ArenaFacts& arena, const tuning::Tuned& tuned,
             const InfoOptions& options) {
  Limits limits = read_limits();
  Json out;
  out["schema"] = "sluice.info/1";
  out["version"] = kVersion;
  out["host"] = {
      {"name", machine.host}, {"kernel", machine.kernel}, {"architecture", machine.architecture}};
  out["cpu"] = {{"model", machine.cpu},
                {"usable", machine.cpus},
                {"governor", machine.governor.empty() ? Json() : Json(machine.governor)}};
  out["memory"] = {{"total_bytes", machine.memory_bytes},
                   {"available_bytes", machine.available_bytes},
                   {"thp_enabled", machine.thp},
                   {"thp_shmem_enabled", machine.thp_shmem},
                   {"hugetlb_free_pages", machine.hugetlb_free}};
  const Result<std::vector<int>> nodes = numa_nodes();
  out["numa"] = {{"nodes", nodes.ok() ? Json(*nodes) : Json()},
                 {"obstacle", nodes.ok() ? "" : std::string(nodes.status().detail())},
                 {"arena", arena.numa},
                 {"first_page", arena.node < 0 ? Json() : Json(arena.node)}};
  out["arena"] = {{"pages", arena.pages},
                  {"page_bytes", arena.page_bytes},
                  {"larger_pages", larger_pages(arena, machine)},
                  {"extent_bytes", arena.extent_bytes},
                  {"limit_bytes", arena.limit_bytes},
                  {"limit_from", arena.limit_from}};
  out["limits"] = {{"memlock_bytes", limit(limits.memlock_bytes)},
                   {"open_files", limit(limits.open_files)}};
  out["paths"] = Json::array();
  for (const PathReport& path : explain_paths()) {
    const PathProperties& p = path.properties;
    out["paths"].push_back({{"path", to_string(path.path)},
                            {"usable", path.usable},
                            {"why", path.why},
                            {"views", p.capabilities.has(Capability::kViews)},
                            {"copies_per_fetch", path.usable ? Json(p.copies_per_fetch) : Json()}});
  }
  out["order"] = explain_order();
  out["rdma"] = rdma_facts(verbs::survey_devices());
  if (!options.host.empty()) {
    out["rdma"]["route"] = rdma_route(verbs::route_to(options.host));
    out["way"] = Json::array();
    for (const Finding& found : check_host(options.host)) {
      if (found.check != "rdma-route")
        out["way"].push_back(
            {{"check", found.check}, {"text", found.text}});  // is told as rdma.route
    }
  }
  Status packets = l2::packet_sockets_allowed();
  out["ethernet"] = ethernet_facts(l2::survey_interfaces(),
                                   packets.ok() ? "" : std::string(packets.detail()), read_peers());
  out["tuning"] = tuning_facts(tuned);
  out["counters"] = Json::object();
  for (const auto& [name, value] : read_counters()) out["counters"][std::string(name)] = value;
  return out;
}

std::string gib(const Json& bytes) {
  if (!bytes.is_number()) return bytes.get<std::string>();
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes.get<uint64_t>()) / (1u << 30));
}
std::string mib(const Json& bytes) {
  if (!bytes.is_number()) return bytes.get<std::string>();
  return fmt::format("{} MiB", bytes.get<uint64_t>() >> 20);
}
std::string plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Counters of this process, which has done little. All are listed for their names, which are the
// causes of refusals and drops.
void print_counters(const Json& counters, const InfoOptions& options) {
  for (const auto& [name, value] : counters.items()) {
    if (options.counters || (options.explain && value.get<uint64_t>() > 0))
      fmt::print("counter    {} {}\n", name, value.get<uint64_t>());
  }
}

void print(const Json& info, const InfoOptions& options) {
  bool explain = options.explain;
  fmt::print("sluice     {}\n", plain(info["version"]));
  fmt::print("host       {}, {} {}\n", plain(info["host"]["name"]), plain(info["host"]["kernel"]),
             plain(info["host"]["architecture"]));
  std::string governor =
      info["cpu"]["governor"].is_null() ? "" : ", governor " + plain(info["cpu"]["governor"]);
  fmt::print("CPUs       {} x {}{}\n", plain(info["cpu"]["usable"]), plain(info["cpu"]["model"]),
             governor);
  fmt::print("memory     {}, {} available\n", gib(info["memory"]["total_bytes"]),
             gib(info["memory"]["available_bytes"]));
  fmt::print("arena      {} of {} KiB, first extent {}, limit {} ({})\n",
             plain(info["arena"]["pages"]), info["arena"]["page_bytes"].get<uint64_t>() >> 10,
             mib(info["arena"]["extent_bytes"]), gib(info["arena"]["limit_bytes"]),
             plain(info["arena"]["limit_from"]));
  if (!plain(info["arena"]["larger_pages"]).empty())
    fmt::print("           {}\n", plain(info["arena"]["larger_pages"]));
  const Json& numa = info["numa"];
  if (numa["nodes"].is_null()) {
    fmt::print("numa       {}\n", plain(numa["obstacle"]));
  } else {
    fmt::print("numa       memory nodes {}; the arena's pages: {}{}\n",
               fmt::join(numa["nodes"].get<std::vector<int>>(), ", "), plain(numa["arena"]),
               numa["first_page"].is_null()
                   ? std::string()
                   : ", the first on node " + std::to_string(numa["first_page"].get<int>()));
  }
  fmt::print("limits     locked memory {}, open files {}\n", mib(info["limits"]["memlock_bytes"]),
             plain(info["limits"]["open_files"]));
  for (const Json& path : info["paths"]) {
    bool usable = path["usable"].get<bool>();
    std::string copies =
        usable ? fmt::format(", {} copies per fetch", path["copies_per_fetch"].get<int>()) : "";
    std::string why = explain ? ": " + plain(path["why"]) : "";
    fmt::print("path       {:<9}{}{}{}\n", plain(path["path"]), usable ? "usable" : "not usable",
               copies, why);
  }
  if (explain) fmt::print("sluice://  {}\n", plain(info["order"]));
  print_rdma(info["rdma"], explain);
  if (info.contains("way")) {
    for (const Json& found : info["way"])
      fmt::print("way        {:<11} {}\n", plain(found["check"]), plain(found["text"]));
  }
  print_ethernet(info["ethernet"], explain);
  print_tuning(info["tuning"], explain);
  print_counters(info["counters"], options);
  if (!explain) return;
  fmt::print("huge pages transparent {} (shared memory: {}), {} reserved and free\n",
             plain(info["memory"]["thp_enabled"]), plain(info["memory"]["thp_shmem_enabled"]),
             plain(info["memory"]["hugetlb_free_pages"]));
}

int run_settings(const InfoOptions& options) {
  if (options.settings_document) {
    print_settings_document();
  } else if (options.json) {
    fmt::print("{}\n", Json{{"schema", "sluice.settings/1"}, {"settings", settings_facts()}}.dump(
                           1, ' ', false, Json::error_handler_t::replace));
  } else {
    print_settings(settings_facts());
  }
  return 0;  // what cannot be written is told by main()
}

int run(const InfoOptions& options) {
  if (options.settings || options.settings_document) return run_settings(options);
  Result<ArenaFacts> arena = try_arena();
  if (!arena.ok()) {
    fmt::print(stderr, "sluice info: {}\n", arena.status().to_string());
    return 1;
  }
  Result<tuning::Tuned> tuned = tuning::read_tuning();
  if (!tuned.ok()) {
    fmt::print(stderr, "sluice info: {}\n", tuned.status().to_string());
    return 1;
  }
  Json info = collect(read_machine(), *arena, *tuned, options);
  if (options.json) {
    // What was asked about need not be UTF-8.
    fmt::print("{}\n", info.dump(1, ' ', false, Json::error_handler_t::replace));
  } else {
    print(info, options);
  }
  return 0;
}

}  // namespace

void add_info_command(CLI::App& app, int& exit_code) {
  CLI::App* info = app.add_subcommand("info", "what sluice finds on this machine");
  auto options = std::make_shared<InfoOptions>();
  CLI::Option* explain = info->add_option("--explain", options->host,
                                          "why each path is used or not; with a host, its address "
                                          "and the way there, and which path sluice:// would take");
  explain->expected(0, 1)->type_name("[HOST]");
  info->add_flag(
      "--counters", options->counters,
      "every counter by name: what is counted, by cause (the values are this process's)");
  info->add_flag("--settings", options->settings,
                 "every environment variable that sluice reads: its value and where that comes "
                 "from, and nothing else");
  info->add_flag("--settings-document", options->settings_document,
                 "the tables of docs/settings.md")
      ->group("");  // for who changes the table
  info->add_flag("--json", options->json, "print JSON, with everything");
  info->callback([options, explain, &exit_code] {
    options->explain = explain->count() > 0;
    exit_code = run(*options);
  });
}

}  // namespace sluice::tools
