#include "tools/doctor/path_checks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include <sluice/base/mac_names.h>
#include <sluice/l2/carrier/interfaces.h>
#include <sluice/select/open.h>
#include <sluice/select/paths.h>
#include <sluice/sluice.h>
#include <sluice/verbs/devices.h>

namespace sluice::tools {
namespace {

constexpr int64_t kBytes = 64 << 10;
constexpr Tag kThere = 1, kBack = 2;
constexpr auto kPatience = std::chrono::seconds(3);
constexpr auto kLook = std::chrono::milliseconds(50);
constexpr uint64_t kArenaBytes = 64 << 20;

Result<std::unique_ptr<Context>> open_small() {
  ContextOptions options;
  options.tuning = Tuning();  // what the environment and the file say is another check's
  options.arena_options.limit_bytes = kArenaBytes;
  options.arena_options.first_extent_bytes = kArenaBytes / 4;
  return open_context(options);
}

// Until somebody comes, the deadline, or the near end has given up.
Result<Endpoint> accept(Listener& listener, const std::atomic<bool>& given_up, Instant deadline) {
  while (true) {
    Result<Endpoint> accepted = listener.accept(std::min(deadline, after(now(), kLook)));
    if (accepted.ok() || accepted.status().code() != Code::kTimedOut || given_up ||
        now() >= deadline)
      return accepted;
  }
}

// The far end: what comes is sent back.
Status echo(Context& context, Listener& listener, const std::atomic<bool>& given_up,
            Instant deadline) {
  SLUICE_TRY(Endpoint peer, accept(listener, given_up, deadline));
  SLUICE_TRY(Buffer room, context.allocate({kBytes}, uint8));
  SLUICE_TRY(Endpoint::Received received,
             peer.receive_and_wait({kThere}, std::move(room), deadline));
  SLUICE_TRY(Receipt sent,
             peer.send_and_wait(kBack, std::move(received.buffer).freeze(), deadline));
  (void)sent;
  return context.wait_until([&] { return peer.state() == EndpointState::kClosed; }, deadline);
}

Result<std::string> ask(const std::string& address, Instant deadline) {
  SLUICE_TRY(std::unique_ptr<Context> context, open_small());
  ConnectOptions options;
  options.timeout = kPatience;
  options.allow_unsealed = true;  // a secret rules out paths for programs, not for a trial
  SLUICE_TRY(Endpoint peer, context->connect(address, options));
  SLUICE_TRY(Buffer out, context->allocate({kBytes}, uint8));
  std::mt19937 random(static_cast<uint32_t>(::getpid()));
  for (int64_t i = 0; i < kBytes; ++i)
    reinterpret_cast<uint8_t*>(out.data())[i] = static_cast<uint8_t>(random());
  Tensor sent = std::move(out).freeze();
  SLUICE_TRY(Receipt receipt, peer.send_and_wait(kThere, sent, deadline));
  SLUICE_TRY(Buffer room, context->allocate({kBytes}, uint8));
  SLUICE_TRY(Endpoint::Received back, peer.receive_and_wait({kBack}, std::move(room), deadline));
  if (back.receipt.bytes != kBytes || std::memcmp(back.buffer.data(), sent.data(), kBytes) != 0) {
    return Status(Code::kCorrupt, Scope::kOperation, "sluice doctor",
                  "other bytes came back than were sent");
  }
  const EndpointInfo info = peer.info();
  std::string text =
      fmt::format("64 KiB there and back by {}, verified", to_string(info.path.path));
  if (receipt.path != info.path.path) text += fmt::format(" (bulk by {})", to_string(receipt.path));
  SLUICE_RETURN_IF_ERROR(peer.close(deadline));
  return text;
}

Finding unusable(const std::string& name, const std::string& why, const char* otherwise,
                 bool needed) {
  const auto [cause, remedy] = cause_and_remedy(why, otherwise);
  return needed ? problem(name, "not usable: " + cause, remedy)
                : note(name, "not usable: " + cause, remedy);
}

Finding check_path(const PathReport& report, bool needed) {
  const PathDescriptor& path = *find_path(report.path);
  const std::string name(path.name), remedy(path.remedy);
  if (!report.usable) return unusable(name, report.why, remedy.c_str(), needed);
  // Null: it needs a second machine.
  if (path.trial_address == nullptr) return ok(name, report.why);
  const std::string address = path.trial_address();
  Result<std::string> tried = try_path(address);
  if (tried.ok()) return ok(name, *tried);
  const Status& status = tried.status();
  const auto [cause, own_remedy] = cause_and_remedy(std::string(status.detail()), remedy);
  // Both ends are here: what the library says of a peer that does not answer is of no use.
  const bool silent = status.code() == Code::kTimedOut || status.code() == Code::kUnreachable;
  return problem(name, fmt::format("does not work: {}: {}", to_string(status.code()), cause),
                 silent ? remedy : own_remedy);
}

// Checks devices that are there. A port may be down because nobody uses it. A port that is up with
// the wrong GIDs is a mistake.
Findings check_devices(const verbs::Survey& survey) {
  Findings found;
  for (const verbs::DeviceFacts& device : survey.devices) {
    for (const verbs::PortFacts& port : device.ports) {
      const std::string name = fmt::format("{}/{}", device.name, port.number);
      const bool routable =
          std::any_of(port.gids.begin(), port.gids.end(),
                      [](const verbs::GidFacts& gid) { return gid.type != "RoCE v1"; });
      if (!port.active) {
        found.push_back(note("rdma-port", name + " is " + port.state,
                             "bring its network interface up, or see the cable: `rdma link`"));
      } else if (!port.gids.empty() && !routable) {
        found.push_back(problem(
            "rdma-gid",
            name + " has only GIDs of RoCE v1, which no router passes on and sluice does not use",
            "give its network interface an IP address"));
      }
    }
  }
  return found;
}

Findings check_ethernet(bool needed) {
  Findings found;
  bool any = false;
  for (const l2::Interface& interface : l2::survey_interfaces()) {
    if (interface.loopback) continue;
    any = any || interface.obstacle.empty();
    // One without a cable or switched off is as its owner wants it.
    if (interface.obstacle.empty() || !interface.up || !interface.carrier) continue;
    const auto [cause, remedy] =
        cause_and_remedy(interface.obstacle, "use l2://udp/ or tcp:// there");
    found.push_back(note(
        "interface", interface.name + " takes no frames of l2:// and kmod://: " + cause, remedy));
  }
  if (!any && needed)
    found.push_back(problem("interface", "no network interface can carry frames to another machine",
                            "`sluice info --explain` says what each of them lacks"));
  for (const std::string& trouble : read_peers().problems)
    found.push_back(problem("peers", "the names of peers are not read: " + trouble,
                            "mend the line, or unset SLUICE_PEERS"));
  return found;
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

const std::vector<std::string>& path_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const PathDescriptor* path : known_paths()) {
      if (path->explain != nullptr) all.emplace_back(path->name);
    }
    return all;
  }();
  return names;
}

Result<std::string> try_path(const std::string& listen_at) {
  const Instant deadline = after(now(), 2 * kPatience);
  SLUICE_TRY(std::unique_ptr<Context> context, open_small());
  ListenOptions options;
  options.allow_unsealed = true;
  SLUICE_TRY(Listener listener, context->listen(listen_at, options));
  const std::string address = listener.address();
  std::optional<Result<std::string>> answer;
  std::atomic<bool> given_up = false;
  std::thread near([&] {
    answer = ask(address, deadline);
    given_up = !answer->ok();
  });
  Status far = echo(*context, listener, given_up, deadline);
  near.join();
  if (!answer->ok()) return answer->status();
  if (!far.ok()) return far;
  return std::move(*answer);
}

Findings check_paths(const std::vector<std::string>& needed) {
  Findings found;
  for (const PathReport& report : explain_paths())
    found.push_back(
        check_path(report, contains(needed, std::string(find_path(report.path)->name))));
  Findings devices = check_devices(verbs::survey_devices());
  found.insert(found.end(), devices.begin(), devices.end());
  Findings ethernet =
      check_ethernet(contains(needed, "l2") || contains(needed, "xdp") || contains(needed, "kmod"));
  found.insert(found.end(), ethernet.begin(), ethernet.end());
  return found;
}

}  // namespace sluice::tools
