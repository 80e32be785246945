// The side that programs connect to.
#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>

#include "tools/proxy/link.h"
#include "tools/proxy/loop.h"
#include "tools/proxy/proxy.h"
#include "tools/proxy/sockets.h"

#include <sluice/runtime/context_core.h>
#include <sluice/runtime/event_handler.h>

namespace sluice::tools::proxy {
namespace {

using namespace std::chrono_literals;

constexpr Duration kConnectTime = 3s;
constexpr Duration kFirstRetry = 100ms;
constexpr Duration kLongestRetry = 5s;
constexpr Duration kFarewell = 2s;
// Programs taken in one turn.
constexpr int kAcceptsPerTurn = 32;
constexpr Duration kNoDescriptorPause = 100ms;

class Client final : private EventHandler {
 public:
  Client(Loop& loop, const ProxyOptions& options) : loop_(loop), options_(options) {}
  ~Client() { stop_accepting(); }

  Status open() {
    SLUICE_TRY(auto places, find_addresses(options_.listen));
    SLUICE_TRY(programs_, ListeningSocket::open(places[0]));
    // A wrong address of the other proxy is told now, not tried for ever.
    SLUICE_TRY(Address to, Address::parse(options_.to));
    (void)to;
    connect(loop_.context().refresh_now());
    while (link_ && !link_->is_ready() && !link_->failed() && !loop_.ending()) turn();
    if (fatal_.ok()) {
      loop_.say(fmt::format("listening at {}, forwarding to {}", programs_.text(), options_.to));
      accept_from_now();
    }
    return fatal_;
  }

  Outcome run() {
    while (!loop_.ending() && fatal_.ok()) turn();
    stop_accepting();
    programs_ = ListeningSocket();
    const Instant end = after_seconds(loop_.context().refresh_now(), options_.grace_seconds);
    while (link_ && link_->open_streams() > 0 && !link_->failed() && !loop_.hurried() &&
           loop_.context().refresh_now() < end)
      step(end);
    drop_link(ResetReason::kEnding);
    return {loop_.totals(), path_};
  }
  const Status& fatal() const { return fatal_; }

 private:
  void turn() {
    const Instant now = loop_.context().refresh_now();
    if (!link_ && now >= retry_at_) connect(now);
    if (!accepting_ && accept_at_ != kNever && now >= accept_at_) accept_from_now();
    step(std::min(link_ ? kNever : retry_at_, accepting_ ? kNever : accept_at_));
  }

  void step(Instant until) {
    const Instant next = link_ ? link_->turn(loop_.context().now()) : kNever;
    if (link_ && link_->failed()) return lose_link();
    loop_.wait(std::min(until, next));
    if (!link_) return;
    if (link_->is_ready() && !announced_) announce();
    if (std::string why = link_->take_refusal(); !why.empty()) refused(why);
  }

  void announce() {
    announced_ = true;
    retry_ = kFirstRetry;
    const EndpointInfo info = link_->info();
    path_ = std::string(to_string(info.path.path));
    loop_.say(fmt::format("connected to {} by {}", options_.to, path_text(info)));
  }

  void refused(const std::string& why) {
    std::string line = refusals_.line("a connection is refused: " + why, loop_.context().now());
    if (!line.empty()) loop_.say(line);
  }

  void connect(Instant now) {
    ConnectOptions how;
    how.timeout = kConnectTime;
    how.silence_limit = 15s;
    how.secret_file = options_.secret_file;
    Result<Endpoint> endpoint = loop_.context().connect(options_.to, how);
    if (!endpoint.ok()) {
      // Who is refused at the first attempt will be refused again; who is absent may come. Later an
      // interface may be down, or a secret's file be written anew: that passes.
      const Code code = endpoint.code();
      const bool lasting = code == Code::kAccessDenied || code == Code::kUnsupported ||
                           code == Code::kInvalidArgument;
      if (lasting && away_why_.empty()) {
        fatal_ = endpoint.status();
        return;
      }
      return away(endpoint.status(), now);
    }
    link_ = std::make_unique<Link>(loop_.context(), std::move(*endpoint), loop_.totals(),
                                   LinkOptions{options_.window, options_.most_connections, {}});
    announced_ = false;
    if (Status started = link_->start(); !started.ok()) lose_link();
  }

  // There is no link; the next attempt is later each time.
  void away(const Status& why, Instant now) {
    const std::string text(why.detail().empty() ? to_string(why.code()) : why.detail());
    if (text != away_why_)
      loop_.say(fmt::format("no way to {}: {}; trying again until there is", options_.to, text));
    away_why_ = text;
    retry_at_ = after(std::max(now, loop_.context().refresh_now()), retry_);
    retry_ = std::min(retry_ * 2, kLongestRetry);
  }

  void lose_link() {
    const Status why = link_->failure();
    drop_link(ResetReason::kSocket);
    away_why_.clear();
    away(why, loop_.context().refresh_now());
  }

  void drop_link(ResetReason reason) {
    if (!link_) return;
    Link* const links[] = {link_.get()};
    finish(loop_.context(), links, reason, after(loop_.context().refresh_now(), kFarewell));
    // What still refers to it lives until the process ends.
    if (!link_->is_settled()) (void)link_.release();
    link_.reset();
  }

  void accept_from_now() {
    accepting_ = ContextCore::of(loop_.context()).watch(programs_.fd(), EPOLLIN, this).ok();
    accept_at_ = kNever;
  }
  void stop_accepting() {
    if (std::exchange(accepting_, false))
      ContextCore::of(loop_.context()).unwatch(programs_.fd(), this);
  }

  void on_event(uint32_t) noexcept override {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      Descriptor program = programs_.accept();
      if (!program) return out_of_descriptors(errno);
      Totals& totals = loop_.totals();
      if (!link_ || !link_->is_ready()) {
        ++totals.refused_away;
        refused("the other proxy is away" + (away_why_.empty() ? "" : ": " + away_why_));
        close_hard(program);
      } else if (totals.open >= options_.most_connections) {
        ++totals.refused_many;
        refused(fmt::format("{} are open, the most that --connections allows", totals.open));
        close_hard(program);
      } else {
        link_->open(std::move(program));
      }
    }
  }

  void out_of_descriptors(int error) {
    if (error != EMFILE && error != ENFILE && error != ENOMEM && error != ENOBUFS) return;
    refused("no file descriptors are left; raise ulimit -n");
    stop_accepting();
    accept_at_ = after(loop_.context().now(), kNoDescriptorPause);
  }

  Loop& loop_;
  const ProxyOptions& options_;
  ListeningSocket programs_;
  std::unique_ptr<Link> link_;
  Status fatal_;
  std::string away_why_, path_;
  Sparingly refusals_;
  Duration retry_ = kFirstRetry;
  Instant retry_at_{};
  Instant accept_at_ = kNever;
  bool accepting_ = false;
  bool announced_ = false;
};

}  // namespace

Result<Outcome> run_client(const ProxyOptions& options) {
  SLUICE_TRY(std::unique_ptr<Loop> loop, Loop::open(options));
  Client client(*loop, options);
  SLUICE_RETURN_IF_ERROR(client.open());
  Outcome outcome = client.run();
  SLUICE_RETURN_IF_ERROR(client.fatal());
  return outcome;
}

}  // namespace sluice::tools::proxy
