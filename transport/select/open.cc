#include <sluice/select/open.h>

#include <utility>

#include <sluice/base/settings.h>
#include <sluice/recording/recorder.h>
#include <sluice/runtime/context_core.h>
#include <sluice/select/paths.h>
#include <sluice/select/provider.h>
#include <sluice/tcp/provider.h>
#include <sluice/tuning/tuning.h>

namespace sluice {
namespace {

Waiting waiting_of_settings() {
  if (setting_is("SLUICE_WAITING", "spin")) return Waiting::kSpin;
  if (setting_is("SLUICE_WAITING", "sleep")) return Waiting::kSleep;
  return Waiting::kAdaptive;
}

}  // namespace

Result<std::unique_ptr<Context>> open_context(const ContextOptions& options) {
  warn_of_unknown_settings();
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
  if (!chosen.waiting) chosen.waiting = waiting_of_settings();
  auto context = std::make_unique<ContextCore>(chosen, std::move(arena));
  SLUICE_RETURN_IF_ERROR(context->initialise());
  if (auto recorder = recording::open_recorder(chosen)) {
    context->add_hook(recorder.get());
    context->decorate_links(std::move(recorder));
  }
  tcp::TcpProvider* tcp = nullptr;
  std::vector<select::Candidate> candidates;
  for (const PathDescriptor* path : known_paths()) {
    if (path->open == nullptr) continue;
    std::unique_ptr<Provider> provider = path->open(*context);
    if (path->path == Path::kTcp) tcp = static_cast<tcp::TcpProvider*>(provider.get());
    if (auto choice = open_choice(*path, *context, *provider))
      candidates.push_back({path, std::move(choice)});
    context->add_provider(std::move(provider));
  }
  context->add_provider(
      std::make_unique<select::SelectProvider>(*context, std::move(candidates), *tcp));
  return std::unique_ptr<Context>(std::move(context));
}

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
  for (const PathDescriptor* path : known_paths()) {
    if (path->explain == nullptr) continue;
    PathState state = path->explain();
    reports.push_back({.path = path->path,
                       .usable = state.usable,
                       .why = std::move(state.why),
                       .properties = state.properties});
  }
  return reports;
}

}  // namespace sluice
