#include <sluice/tcp/provider.h>

#include <algorithm>

#include <sluice/proto/hello.h>
#include <sluice/runtime/identity.h>
#include <sluice/tcp/link.h>
#include <sluice/tcp/listener.h>

namespace sluice::tcp {
namespace {

constexpr const char* kOrigin = "tcp/provider";

Status check_requirements(const Requirements& require, const Address& address) {
  std::string why = unmet(require, link_traits().properties);
  if (why.empty()) return Status();
  return Status(Code::kUnsupported, Scope::kOperation, kOrigin,
                address.to_string() + " cannot meet the requirements: " + why +
                    "; use sluice:// or relax them");
}

}  // namespace

TcpProvider::TcpProvider(ContextCore& context)
    : context_(context),
      same_host_traits_(link_traits()),
      streams_(context),
      group_(context, &streams_),
      sessions_(context.now()) {
  group_.set_lending(lending_rules());
  same_host_traits_.credit_grows = false;
  same_host_traits_.inline_bytes = static_cast<uint32_t>(
      std::min<uint64_t>(context.tuning().tcp_eager_bytes, wire::kMaxInlineBytes));
}

TcpProvider::~TcpProvider() { shut_down(); }

Task<Result<std::shared_ptr<EndpointCore>>> TcpProvider::start_connect(
    const Address& address, const ConnectOptions& options) {
  SLUICE_CO_RETURN_IF_ERROR(check_requirements(options.require, address));
  const proto::SessionOptions session = proto::session_options(options);
  Instant deadline = after(context_.refresh_now(), options.timeout);
  SLUICE_CO_TRY(Greeting greeting,
                co_await start_greet(context_.awaits(), address, hello(session), deadline));
  SLUICE_CO_RETURN_IF_ERROR(choose(greeting, Path::kTcp));
  co_return make_endpoint(std::move(greeting), session, "tcp:// was asked for");
}

Result<std::unique_ptr<ListenerCore>> TcpProvider::listen(const Address& address,
                                                          const ListenOptions& options) {
  SLUICE_RETURN_IF_ERROR(check_requirements(options.require, address));
  const proto::SessionOptions session = proto::session_options(options);
  GreetingOptions greeting;
  greeting.backlog = options.backlog;
  greeting.introduced_as = Path::kTcp;
  auto limits = std::make_shared<proto::ListenerLimits>(context_, options, address.to_string());
  greeting.admit = [limits](const PeerIdentity& identity, const PeerIntroduction& who) {
    return limits->admit(identity, who);
  };
  serve_streams(greeting, limits);
  SLUICE_TRY(auto greetings, GreetingListener::open(context_, address,
                                                    proto::hello_for(context_, session), greeting));
  limits->set_address(greetings->address().to_string());
  auto listener = std::make_unique<TcpListener>(*this, std::move(greetings), session);
  listeners_.push_back(listener.get());
  in_use_ = true;
  return std::unique_ptr<ListenerCore>(std::move(listener));
}

wire::Hello TcpProvider::hello(const proto::SessionOptions& options) {
  wire::Hello hello = proto::hello_for(context_, options);
  if (streams_.wanted()) hello.features |= wire::kFeatureStreams;
  return hello;
}

void TcpProvider::serve_streams(GreetingOptions& greeting,
                                std::shared_ptr<proto::ListenerLimits> limits) {
  if (!streams_.wanted()) return;
  greeting.streams = &streams_;
  greeting.admit_stream = [limits = std::move(limits)](const PeerIdentity& identity) {
    return limits->admit_further(identity);
  };
}

Result<std::shared_ptr<EndpointCore>> TcpProvider::make_endpoint(
    Greeting&& greeting, const proto::SessionOptions& options, std::string reason) {
  bool same = same_host(greeting.ours, greeting.peer);
  if (same) set_same_host_options(greeting.fd());
  auto account = context_.peer_accounts().open(greeting.peer_identity());
  auto link = std::make_unique<TcpLink>(group_, greeting.take_fd(),
                                        same ? same_host_traits_ : link_traits());
  SLUICE_RETURN_IF_ERROR(link->watch());
  if (greeting.ours.has_streams) streams_.expect(*link, greeting.ours.streams_token);
  if (greeting.peer.has_streams) streams_.may_open(*link, greeting.peer.streams_token);
  auto session = sessions_.open(std::move(link), context_.link_decorator(),
                                proto::SessionParts{
                                    .arena = context_.shared_arena(),
                                    .population = &context_.population(),
                                    .mailbox = context_.mailbox(),
                                    .ours = greeting.ours,
                                    .peer = greeting.peer,
                                    .options = options,
                                    .reason = std::move(reason),
                                    .account = std::move(account),
                                });
  session->hold(std::move(greeting.ticket));
  in_use_ = true;
  return std::shared_ptr<EndpointCore>(std::move(session));
}

size_t TcpProvider::progress(Instant now) {
  size_t work = group_.progress(now) + streams_.progress();
  work += sessions_.progress(now);
  // What the sessions have just flushed is reported in the same round.
  work += group_.run_todo(now);
  for (size_t i = 0; i < listeners_.size(); ++i) work += listeners_[i]->greetings().progress(now);
  in_use_ =
      sessions_.size() > 0 || !listeners_.empty() || group_.has_work() || group_.has_remains();
  return work;
}

bool TcpProvider::begin_sleep() {
  group_.begin_sleep();
  if (group_.has_work() || sessions_.has_work() || streams_.has_work()) return false;
  return std::none_of(listeners_.begin(), listeners_.end(),
                      [](TcpListener* listener) { return listener->greetings().has_work(); });
}

Instant TcpProvider::next_timeout() {
  Instant next = std::min(group_.next_timeout(), sessions_.next_timeout());
  for (TcpListener* listener : listeners_)
    next = std::min(next, listener->greetings().next_timeout());
  return next;
}

void TcpProvider::shut_down() {
  for (TcpListener* listener : listeners_) listener->abandon();
  listeners_.clear();
  streams_.shut_down();
  sessions_.abort_all(
      Status(Code::kCancelled, Scope::kEndpoint, kOrigin, "the context was closed"));
  group_.drop_remains();
}

void TcpProvider::forget(const TcpListener& listener) { std::erase(listeners_, &listener); }

}  // namespace sluice::tcp
