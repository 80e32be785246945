#include <sluice/select/open.h>

#include <utility>

#include <sluice/l2/carrier/frames.h>
#include <sluice/kmod/provider.h>
#include <sluice/kmod/socket.h>
#include <sluice/kmod/traits.h>
#include <sluice/l2/provider.h>
#include <sluice/l2/traits.h>
#include <sluice/l2/carrier/udp_socket.h>
#include <sluice/loopback/provider.h>
#include <sluice/select/provider.h>
#include <sluice/shm/provider.h>
#include <sluice/tcp/provider.h>
#include <sluice/tuning/tuning.h>
#include <sluice/verbs/devices.h>
#include <sluice/verbs/link.h>
#include <sluice/verbs/provider.h>

namespace sluice {

Result<std::unique_ptr<Context>> open_context(const ContextOptions& options) {
  std::shared_ptr<Arena> arena = options.arena;
  if (arena == nullptr) {
    SLUICE_TRY(std::unique_ptr<Arena> own, Arena::create(options.arena_options));
    arena = std::move(own);
  }
  ContextOptions chosen = options;
  if (!chosen.tuning) {
    SLUICE_TRY(tuning::Tuned tuned, tuning::read_tuning());
    chosen.tuning = tuned.values;
  }
  auto context = std::make_unique<Context>(chosen, std::move(arena));
  SLUICE_RETURN_IF_ERROR(context->initialise());
  auto shm = std::make_unique<shm::ShmProvider>(*context);
  auto rdma = std::make_unique<verbs::VerbsProvider>(*context);
  auto module = std::make_unique<kmod::KmodProvider>(*context);
  auto packet = std::make_unique<l2::L2Provider>(*context);
  auto tcp = std::make_unique<tcp::TcpProvider>(*context);
  auto select = std::make_unique<select::SelectProvider>(
      *context, *shm, *rdma, select::EthernetCarriers{*module, *packet}, *tcp);
  // Rings first: they are looked at in every round of a spin.
  context->add_provider(std::move(shm));
  context->add_provider(std::move(rdma));
  context->add_provider(std::move(module));
  context->add_provider(std::move(packet));
  context->add_provider(std::move(tcp));
  context->add_provider(std::move(select));
  context->add_provider(std::make_unique<loopback::LoopbackProvider>(*context));
  return context;
}

namespace {

PathReport explain_verbs() {
  verbs::Survey survey = verbs::survey_devices();
  PathReport report{.path = Path::kVerbs,
                    .usable = survey.usable(),
                    .why = survey.obstacle,
                    .properties = {.path = Path::kVerbs}};
  if (!report.usable) return report;
  const verbs::DeviceFacts& device = *survey.best_device();
  report.properties = verbs::verbs_traits(device.limits, 0).properties;
  report.why = "for peers that " + device.name + " (" + device.kind + ", port " +
               std::to_string(survey.best_port()->number) + ", " + survey.first_address() +
               ") reaches";
  if (survey.devices.size() > 1) report.why += ", or another of this machine's RDMA devices";
  return report;
}

PathReport explain_module() {
  auto usable = kmod::kmod_usable();
  return {.path = Path::kModule,
          .usable = usable.ok(),
          .why = usable.ok()
                     ? "for peers on the same Ethernet, by kmod:// addresses; " + usable->text()
                     : std::string(usable.status().detail()),
          .properties = kmod::kmod_traits().properties};
}

PathReport explain_packet() {
  Status allowed = l2::packet_sockets_allowed();
  return {.path = Path::kPacket,
          .usable = allowed.ok(),
          .why = allowed.ok() ? "for peers on the same Ethernet, by l2:// addresses"
                              : std::string(allowed.detail()),
          .properties = l2::l2_traits(Path::kPacket).properties};
}

PathReport explain_udp() {
  auto how = l2::explain_udp();
  return {.path = Path::kUdp,
          .usable = how.ok(),
          .why = how.ok()
                     ? "for every peer that an IP address reaches, by l2://udp/ addresses: " + *how
                     : std::string(how.status().detail()),
          .properties = l2::l2_traits(Path::kUdp).properties};
}

}  // namespace

std::string explain_order() {
  // The figures: docs/performance.md, "Ethernet".
  return "takes shm, rdma or tcp: the first that both ends prove to work; with SLUICE_ETHERNET=1 "
         "at both ends, between neighbours, kmod "
         "or l2 before tcp. Not by default, since no probe makes them a better single choice: "
         "either is faster than tcp at some sizes, "
         "but neither at all, and l2 needs the far program awake to answer; if you know what a "
         "connection is for, you can also ask for "
         "l2://INTERFACE/MAC:PORT or l2://udp/HOST:PORT";
}

std::vector<PathReport> explain_paths() {
  std::vector<PathReport> reports;
  reports.push_back({.path = Path::kShm,
                     .usable = true,
                     .why = "for processes of this user in this network namespace",
                     .properties = {.path = Path::kShm,
                                    .capabilities = {Capability::kViews, Capability::kZeroCopyFetch,
                                                     Capability::kSealed}}});
  reports.push_back(explain_verbs());
  reports.push_back(explain_module());
  reports.push_back(explain_packet());
  reports.push_back(explain_udp());
  reports.push_back({.path = Path::kTcp,
                     .usable = true,
                     .why = "for every peer that an IP address reaches",
                     .properties = {.path = Path::kTcp, .copies_per_fetch = 2}});
  return reports;
}

}  // namespace sluice
