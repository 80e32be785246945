#include <sluice/loopback/provider.h>

#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/proto/hello.h>
#include <sluice/proto/listener_limits.h>

namespace sluice::loopback {
namespace {

constexpr const char* kOrigin = "loopback/provider";

Counter links_polled("loopback.links_polled");

// Connections that wait for accept(), by listener name. Contexts of several threads
// meet here.
struct Port {
  // Wakes the listener's context; one is enough for any number of peers.
  struct Bell : Letter {
    std::shared_ptr<Port> port;  // while it is out
  };
  std::mutex mutex;
  std::deque<std::pair<std::shared_ptr<Wire>, wire::Hello>> waiting;
  std::shared_ptr<Mailbox> mailbox;
  std::shared_ptr<Arena> arena;
  wire::Hello hello;
  Bell bell;
  bool bell_posted = false;
  bool closed = false;
};

// Requires: port->mutex.
void ring(const std::shared_ptr<Port>& port) {
  if (port->bell_posted) return;
  port->bell_posted = true;
  port->bell.port = port;
  port->bell.open = [](Letter* letter) noexcept {
    std::shared_ptr<Port> rung = std::move(static_cast<Port::Bell*>(letter)->port);
    std::lock_guard lock(rung->mutex);
    rung->bell_posted = false;
  };
  port->bell.discard = [](Letter* letter) noexcept {
    std::shared_ptr<Port> rung = std::move(static_cast<Port::Bell*>(letter)->port);
  };
  port->mailbox->post(&port->bell);
}

Status check_requirements(const Requirements& require) {
  const std::string why = unmet(require, loopback_traits().properties);
  return why.empty() ? Status() : Status(Code::kUnsupported, Scope::kOperation, kOrigin, why);
}

std::mutex ports_mutex;
std::map<std::string, std::shared_ptr<Port>>& ports() {
  static auto* all = new std::map<std::string, std::shared_ptr<Port>>();
  return *all;
}

class LoopbackListener final : public ListenerCore {
 public:
  LoopbackListener(LoopbackProvider& provider, ContextCore& context, std::string name,
                   std::shared_ptr<Port> port, const ListenOptions& options)
      : provider_(provider),
        name_(std::move(name)),
        port_(std::move(port)),
        options_(proto::session_options(options)),
        limits_(context, options, "loopback:" + name_) {}
  ~LoopbackListener() override { close(); }

  std::shared_ptr<EndpointCore> accept() override {
    while (true) {
      std::pair<std::shared_ptr<Wire>, wire::Hello> next;
      {
        std::lock_guard lock(port_->mutex);
        if (port_->waiting.empty()) return nullptr;
        next = std::move(port_->waiting.front());
        port_->waiting.pop_front();
      }
      auto session =
          provider_.make_endpoint(std::move(next.first), 1, name_, options_, next.second);
      if (limits_.let_in(*session)) return session;
    }
  }
  std::string address() const override { return "loopback:" + name_; }
  void close() override {
    std::lock_guard all(ports_mutex);
    auto found = ports().find(name_);
    if (found != ports().end() && found->second == port_) ports().erase(found);
    std::lock_guard lock(port_->mutex);
    port_->closed = true;
    for (auto& [wire, hello] : port_->waiting) {
      std::lock_guard side(wire->mutex);
      wire->sides[1].closed = true;
      LoopbackLink::ring(wire, wire->sides[0]);
    }
    port_->waiting.clear();
  }

 private:
  LoopbackProvider& provider_;
  std::string name_;
  std::shared_ptr<Port> port_;
  proto::SessionOptions options_;
  proto::ListenerLimits limits_;
};

}  // namespace

LoopbackProvider::LoopbackProvider(ContextCore& context)
    : context_(context), sessions_(context.now()) {}

LoopbackProvider::~LoopbackProvider() { sessions_.detach_all(); }

void LoopbackProvider::shut_down() {
  sessions_.abort_all(Status(Code::kCancelled, Scope::kContext, kOrigin, "the context was closed"));
}

Result<std::shared_ptr<EndpointCore>> LoopbackProvider::connect(const Address& address,
                                                                const ConnectOptions& options) {
  proto::SessionOptions session = proto::session_options(options);
  SLUICE_RETURN_IF_ERROR(check_requirements(options.require));
  std::shared_ptr<Port> port;
  {
    std::lock_guard all(ports_mutex);
    auto found = ports().find(address.name);
    if (found != ports().end()) port = found->second;
  }
  if (port == nullptr) {
    return Status(
        Code::kUnreachable, Scope::kOperation, kOrigin,
        "nobody in this process listens at " + address.to_string() + "; start the listener first");
  }
  auto wire = std::make_shared<Wire>();
  wire->sides[0].mailbox = context_.mailbox();
  wire->sides[0].arena = context_.shared_arena();
  wire->sides[1].mailbox = port->mailbox;
  wire->sides[1].arena = port->arena;
  wire::Hello ours = proto::hello_for(context_, session);
  auto endpoint = make_endpoint(wire, 0, address.name, session, port->hello);
  std::lock_guard lock(port->mutex);
  if (port->closed)
    return Status(Code::kUnreachable, Scope::kOperation, kOrigin, "the listener has just closed");
  port->waiting.emplace_back(std::move(wire), ours);
  ring(port);
  return std::shared_ptr<EndpointCore>(endpoint);
}

Result<std::unique_ptr<ListenerCore>> LoopbackProvider::listen(const Address& address,
                                                               const ListenOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_requirements(options.require));
  proto::SessionOptions session = proto::session_options(options);
  auto port = std::make_shared<Port>();
  port->mailbox = context_.mailbox();
  port->arena = context_.shared_arena();
  port->hello = proto::hello_for(context_, session);
  std::lock_guard all(ports_mutex);
  if (!ports().emplace(address.name, port).second) {
    return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                  address.to_string() + " is taken by another listener; choose another name");
  }
  return std::unique_ptr<ListenerCore>(
      std::make_unique<LoopbackListener>(*this, context_, address.name, std::move(port), options));
}

std::shared_ptr<proto::Session> LoopbackProvider::make_endpoint(
    std::shared_ptr<Wire> wire, int side, std::string name, const proto::SessionOptions& options,
    const wire::Hello& peer) {
  auto link = std::make_unique<LoopbackLink>(rung_, std::move(wire), side, "loopback:" + name);
  LoopbackLink* raw = link.get();
  auto session =
      sessions_.open(std::move(link), context_.link_decorator(),
                     proto::SessionParts{
                         .arena = context_.shared_arena(),
                         .population = &context_.population(),
                         .mailbox = context_.mailbox(),
                         .ours = proto::hello_for(context_, options),
                         .peer = peer,
                         .options = options,
                         .reason = "loopback: was asked for",
                         .account = context_.peer_accounts().open(PeerIdentity::of_process()),
                     });
  connections_.push_back({session, raw});
  set_due(*raw);  // for what the other end has sent before
  in_use_ = true;
  return session;
}

void LoopbackProvider::set_due(LoopbackLink& link) {
  if (!std::exchange(link.marked_due, true)) due_.push_back(&link);
}

void LoopbackProvider::take_rung() {
  some_closed_ = rung_->take(taken_) || some_closed_;
  for (auto& [wire, side] : taken_) {
    LoopbackLink* link = nullptr;
    {
      std::lock_guard lock(wire->mutex);
      wire->sides[side].is_rung = false;
      link = wire->sides[side].link;
    }
    if (link != nullptr) set_due(*link);
  }
  taken_.clear();
}

size_t LoopbackProvider::progress(Instant now) {
  size_t work = 0;
  if (!rung_->empty()) take_rung();
  // A completion may call Context::progress(): the nested turn goes on with the links that this one
  // has not polled yet.
  for (size_t turns = due_.size(); turns > 0 && !due_.empty(); --turns) {
    LoopbackLink* link = due_.front();
    due_.pop_front();
    link->marked_due = false;
    links_polled.add();
    work += link->poll(now);
    if (link->due()) set_due(*link);
  }
  work += sessions_.progress(now);
  if (some_closed_) forget_closed();
  return work;
}

void LoopbackProvider::forget_closed() {
  std::erase_if(due_, [](const LoopbackLink* link) { return link->closed(); });
  some_closed_ = false;
  std::erase_if(connections_, [this](const Connection& c) {
    if (!c.link->closed()) return false;
    const bool busy = c.session->has_work();
    some_closed_ = some_closed_ || busy;
    return !busy;
  });
  // Ends that are rung hold their wires, and with them the loans of connections that are over: they
  // are taken even if no connection is left.
  in_use_ = !connections_.empty() || sessions_.size() > 0 || !rung_->empty();
}

}  // namespace sluice::loopback
