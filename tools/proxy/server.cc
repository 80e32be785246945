// The side that reaches the service.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/settings.h>

#include "tools/proxy/link.h"
#include "tools/proxy/loop.h"
#include "tools/proxy/proxy.h"
#include "tools/proxy/sockets.h"

namespace sluice::tools::proxy {
namespace {

using namespace std::chrono_literals;

// For a peer's goodbye; then, aborted, for what still refers to its link.
constexpr Duration kFarewell = 2s;
constexpr Duration kAborted = 1s;
// Other proxies at once, of all hosts.
constexpr uint32_t kMostLinks = 64;
// Between looks at who has connected, if nothing else happens.
constexpr Duration kLook = 1s;

class Server {
 public:
  Server(Loop& loop, const ProxyOptions& options) : loop_(loop), options_(options) {}

  Status open() {
    SLUICE_TRY(service_, find_addresses(options_.service));
    ListenOptions how;
    how.max_connections = kMostLinks;
    how.silence_limit = 15s;
    how.secret_file = options_.secret_file;
    SLUICE_TRY(proxies_, loop_.context().listen(options_.at, how));
    loop_.say(
        fmt::format("listening at {}, forwarding to {}", proxies_.address(), options_.service));
    const bool secret = !options_.secret_file.empty() || setting_text("SLUICE_L2_SECRET_FILE");
    if (secret && options_.at.starts_with("sluice://") && !setting_is("SLUICE_ETHERNET", "1"))
      loop_.say(
          "no other host gets in: with a secret sluice:// needs plain Ethernet; set "
          "SLUICE_ETHERNET=1 on both sides, or use --at l2://udp/HOST:PORT");
    return Status();
  }

  Outcome run() {
    while (!loop_.ending()) {
      accept();
      step(kNever);
    }
    const Instant end = after_seconds(loop_.context().refresh_now(), options_.grace_seconds);
    proxies_.close();
    for (const Other& each : links_) each.link->take_no_more();
    while (open_streams() > 0 && !loop_.hurried() && loop_.context().refresh_now() < end) step(end);
    close_all();
    return {loop_.totals(), path_};
  }

 private:
  struct Other {
    std::unique_ptr<Link> link;
    std::string name;
    bool announced = false;
  };
  // A link that has failed, until nothing refers to it: its peer may be silent for ever, and keeps
  // no other waiting.
  struct Closing {
    std::unique_ptr<Link> link;
    Instant until{};
    bool aborted = false;
  };

  size_t open_streams() const {
    size_t open = 0;
    for (const Other& each : links_) open += each.link->open_streams();
    return open;
  }

  void accept() {
    while (true) {
      Result<Endpoint> endpoint = proxies_.try_accept();
      if (!endpoint.ok()) return;
      const EndpointInfo info = endpoint->info();
      Other other{.link = std::make_unique<Link>(
                      loop_.context(), std::move(*endpoint), loop_.totals(),
                      LinkOptions{options_.window, options_.most_connections, service_}),
                  .name = info.peer};
      (void)other.link->start();  // what fails is seen in its turn
      links_.push_back(std::move(other));
    }
  }

  void step(Instant until) {
    Instant next = until;
    for (Other& each : links_) {
      next = std::min(next, each.link->turn(loop_.context().now()));
      if (each.link->is_ready() && !each.announced) announce(each);
      if (std::string why = each.link->take_unreachable(); !why.empty()) refused(why);
      if (each.link->failed()) lose(each);
    }
    std::erase_if(links_, [](const Other& each) { return !each.link; });
    next = std::min(next, close_lost());
    loop_.wait(std::min(next, after(loop_.context().refresh_now(), kLook)));
  }

  void refused(const std::string& why) {
    std::string line = refusals_.line("a connection is refused: " + why, loop_.context().now());
    if (!line.empty()) loop_.say(line);
  }

  void announce(Other& other) {
    other.announced = true;
    const EndpointInfo info = other.link->info();
    path_ = std::string(to_string(info.path.path));
    loop_.say(fmt::format("connected by {} to {}", path_text(info), other.name));
  }

  void lose(Other& other) {
    const Status why = other.link->failure();
    loop_.say(fmt::format("the connection to {} ended: {}", other.name,
                          why.detail().empty() ? to_string(why.code()) : why.detail()));
    other.link->end_streams(ResetReason::kSocket);
    other.link->start_close();
    closing_.push_back(
        {std::move(other.link), after(loop_.context().refresh_now(), kFarewell), false});
  }

  // When to look again at the latest.
  Instant close_lost() {
    const Instant now = loop_.context().refresh_now();
    Instant next = kNever;
    for (Closing& each : closing_) {
      if (each.link->is_settled()) {
        each.link.reset();
        continue;
      }
      if (now >= each.until) {
        if (std::exchange(each.aborted, true)) {
          (void)each.link.release();  // what still refers to it lives until the process ends
          continue;
        }
        each.link->abort();
        each.until = after(now, kAborted);
      }
      next = std::min(next, each.until);
    }
    std::erase_if(closing_, [](const Closing& each) { return !each.link; });
    return next;
  }

  // All at once: silent peers take the time of one.
  void close_all() {
    std::vector<Link*> all;
    for (Other& each : links_) all.push_back(each.link.get());
    for (Closing& each : closing_) {
      if (!each.aborted) each.link->abort();
    }
    finish(loop_.context(), all, ResetReason::kEnding,
           after(loop_.context().refresh_now(), kFarewell));
    for (Other& each : links_) closing_.push_back({std::move(each.link), Instant{}, true});
    links_.clear();
    auto settled = [&] {
      return std::all_of(closing_.begin(), closing_.end(),
                         [](const Closing& each) { return each.link->is_settled(); });
    };
    (void)loop_.context().wait_until(settled, after(loop_.context().refresh_now(), kAborted));
    for (Closing& each : closing_) {
      if (!each.link->is_settled()) (void)each.link.release();  // as in close_lost()
    }
    closing_.clear();
  }

  Loop& loop_;
  const ProxyOptions& options_;
  std::vector<SocketAddress> service_;
  Listener proxies_;
  std::vector<Other> links_;
  std::vector<Closing> closing_;
  std::string path_;
  Sparingly refusals_;
};

}  // namespace

Result<Outcome> run_server(const ProxyOptions& options) {
  SLUICE_TRY(std::unique_ptr<Loop> loop, Loop::open(options));
  Server server(*loop, options);
  SLUICE_RETURN_IF_ERROR(server.open());
  return server.run();
}

}  // namespace sluice::tools::proxy
