// The side that reaches the service.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include <sluice/base/settings.h>

#include "tools/proxy/link.h"
#include "tools/proxy/loop.h"
#include "tools/proxy/proxy.h"
#include "tools/proxy/sockets.h"

namespace sluice::tools::proxy {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFarewell = 2s;
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
    while (open_streams() > 0 && !loop_.hurried() && loop_.context().refresh_now() < end) step(end);
    for (auto& each : links_) drop(each, ResetReason::kEnding);
    return {loop_.totals(), path_};
  }

 private:
  struct Other {
    std::unique_ptr<Link> link;
    std::string name;
    bool announced = false;
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
      if (each.link->failed()) lose(each);
    }
    std::erase_if(links_, [](const Other& each) { return !each.link; });
    const uint64_t refused = loop_.totals().refused_service;
    const Instant now = loop_.context().now();
    if (refused != refused_told_) {
      std::string line = refusals_.line(
          fmt::format("a connection is refused: nobody answers at {}", options_.service), now);
      if (!line.empty()) loop_.say(line);
    }
    refused_told_ = refused;
    loop_.wait(std::min(next, after(loop_.context().refresh_now(), kLook)));
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
    drop(other, ResetReason::kSocket);
  }

  void drop(Other& other, ResetReason reason) {
    // What still refers to it lives until the process ends.
    if (!other.link->finish(reason, after(loop_.context().refresh_now(), kFarewell)))
      (void)other.link.release();
    other.link.reset();
  }

  Loop& loop_;
  const ProxyOptions& options_;
  std::vector<SocketAddress> service_;
  Listener proxies_;
  std::vector<Other> links_;
  std::string path_;
  Sparingly refusals_;
  uint64_t refused_told_ = 0;
};

}  // namespace

Result<Outcome> run_server(const ProxyOptions& options) {
  SLUICE_TRY(std::unique_ptr<Loop> loop, Loop::open(options));
  Server server(*loop, options);
  SLUICE_RETURN_IF_ERROR(server.open());
  return server.run();
}

}  // namespace sluice::tools::proxy
