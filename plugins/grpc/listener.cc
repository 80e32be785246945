// The server's line: a sluice listener whose calls are made again on the in-process channel.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <grpc/grpc.h>
#include <grpc/slice.h>

#include <sluice/base/counters.h>
#include <sluice/grpc/bridge.h>
#include <sluice/grpc/context_thread.h>
#include <sluice/grpc/discovery.h>
#include <sluice/grpc/server_call.h>
#include <sluice/grpc/whole_call.h>
#include <sluice/runtime/identity.h>
#include <sluice/spi/endpoint_core.h>

namespace sluice::grpc {
namespace {

constexpr const char* kOrigin = "grpc/listener";
constexpr char kPeerKey[] = "sluice-peer";
constexpr char kProofKey[] = "sluice-proof-bin";
constexpr char kAuthKey[] = "sluice-auth-bin";  // sealed or not, then keys and values
// Certificates can be long; what does not fit into a call's metadata is left out.
constexpr size_t kPropertyBytes = 4 << 10;
// Tokens that were given out and not used: the oldest is forgotten.
constexpr size_t kMostTokens = 1024;
// How long a new connection may take to show its token.
constexpr Duration kHelloTime = std::chrono::seconds(5);
// How long connections are waited for that were told to end.
constexpr Duration kCloseTime = std::chrono::seconds(2);

// Frames that a client has not taken: it is not read from beyond that. 64 packets; one that reads
// has 16 receives posted.
constexpr size_t kMostUntaken = 64 * kPacketBytes;
// The same for bytes of responses that it may fetch and has not.
constexpr uint64_t kMostLent = uint64_t{1} << 30;

Counter calls_served("grpc.calls_served");
Counter calls_refused("grpc.calls_refused");
Counter strangers_refused("grpc.strangers_refused");

// Random, of this process: tells peer() which metadata is ours. It is no secret from services, and
// one that passes metadata on tells it to others, who call on the ordinary port: see said().
const std::string& proof() {
  static const std::string random = [] {
    std::string bytes(16, '\0');
    fill_random(std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }();
  return random;
}

// Given to clients over the gRPC port, each good for one connection. Thread: any.
class Tokens {
 public:
  Token make(const Properties& caller) {
    Token token;
    fill_random(token);
    std::lock_guard lock(mutex_);
    given_.emplace_back(token, caller);
    if (given_.size() > kMostTokens) given_.pop_front();
    return token;
  }
  // Whom it was given to; nothing: nobody.
  std::optional<Properties> take(const Token& token) {
    std::lock_guard lock(mutex_);
    auto found = std::find_if(given_.begin(), given_.end(),
                              [&](const auto& given) { return given.first == token; });
    if (found == given_.end()) return std::nullopt;
    Properties caller = std::move(found->second);
    given_.erase(found);
    return caller;
  }

 private:
  std::mutex mutex_;
  std::deque<std::pair<Token, Properties>> given_;
};

std::string encode_auth(bool sealed, const Properties& properties) {
  std::string out(1, sealed ? '1' : '0');
  for (const auto& [key, value] : properties) {
    if (key.size() + value.size() > kPropertyBytes - std::min(kPropertyBytes, out.size())) continue;
    for (const std::string* text : {&key, &value}) {
      out.push_back(static_cast<char>(text->size() & 0xff));
      out.push_back(static_cast<char>(text->size() >> 8));
      out += *text;
    }
  }
  return out;
}

// Requires: encode_auth() made it.
Auth decode_auth(std::string_view in) {
  Auth auth{.bridged = true, .sealed = in.starts_with('1'), .properties = {}};
  const auto text = [&] {
    const size_t length =
        static_cast<uint8_t>(in[0]) | static_cast<size_t>(static_cast<uint8_t>(in[1])) << 8;
    std::string read(in.substr(2, length));
    in.remove_prefix(2 + length);
    return read;
  };
  in.remove_prefix(1);
  while (!in.empty()) {
    std::string key = text();
    auth.properties.emplace_back(std::move(key), text());
  }
  return auth;
}

// gRPC ends the process of whoever sends metadata that its rules forbid; a peer must not.
const char* flaw_of(const Frame& headers) {
  const auto slice = [](const std::string& text) {
    return grpc_slice_from_static_buffer(text.data(), text.size());
  };
  if (headers.text.size() < 2 || headers.text[0] != '/' ||
      grpc_header_nonbin_value_is_legal(slice(headers.text)) == 0)
    return "Malformed method name";
  for (const auto& [key, value] : headers.metadata) {
    if (key.empty() || key[0] == ':' || key.starts_with("grpc-") || key == "te" ||
        key == "content-type" || key == "host" || grpc_header_key_is_legal(slice(key)) == 0)
      return "metadata with a key that is not allowed";
    if (grpc_is_binary_header(slice(key)) == 0 &&
        grpc_header_nonbin_value_is_legal(slice(value)) == 0)
      return "metadata with a value that is not allowed";
  }
  return nullptr;
}

// Of one peer. Thread: the context thread's.
class Session final : public std::enable_shared_from_this<Session>,
                      public ServerCallHost,
                      private Connection::Owner {
 public:
  Session(std::shared_ptr<ContextThread> thread, Tokens& tokens, uint32_t max_calls)
      : thread_(std::move(thread)), tokens_(tokens), max_calls_(max_calls) {}

  void start(Endpoint endpoint, std::shared_ptr<::grpc::Channel> channel) {
    channel_ = std::move(channel);
    const EndpointInfo info = endpoint.info();
    const size_t scheme = info.peer.find("://");  // the path says it already
    const std::string where =
        scheme == std::string::npos ? info.peer : info.peer.substr(scheme + 3);
    about_the_peer_ = {{kPeerKey, std::string(to_string(info.path.path)) + ":" + where},
                       {kProofKey, proof()}};
    sealed_ = info.path.capabilities.has(Capability::kSealed);
    connection_ = std::make_unique<Connection>(thread_->context(), std::move(endpoint),
                                               static_cast<Connection::Owner&>(*this));
    connection_->stop_reading_beyond(kMostUntaken, kMostLent);
    hello_deadline_ = now() + kHelloTime;
  }
  void set_receive_limit(int64_t bytes) { receive_limit_ = bytes; }
  // Calls that the client made before it heard are still served; it ends the connection itself.
  void go_away() {
    if (connection_) connection_->send({.kind = FrameKind::kGoAway});
  }
  // The server shuts down: gRPC 1.51 does not survive a call in its process from now on.
  void make_no_calls() { channel_.reset(); }
  void close() {
    for (auto& [stream, call] : std::unordered_map(calls_)) call->cancel();
    if (connection_) connection_->close();
  }
  // It did not say who it is in time.
  void check(Instant time) {
    if (!known_ && connection_ && time >= hello_deadline_) connection_->close();
  }
  Instant next_timeout() const { return known_ || !connection_ ? kNever : hello_deadline_; }
  bool ended() const { return connection_ == nullptr && calls_.empty(); }

  void post(std::function<void()> work) override { thread_->post(std::move(work)); }
  void run_soon(std::function<void()> work) override { thread_->run_soon(std::move(work)); }
  Arena& arena() override { return thread_->arena(); }
  Connection* connection() override { return connection_.get(); }
  int64_t receive_limit() const override { return receive_limit_; }
  void remove(uint32_t stream) override { calls_.erase(stream); }

 private:
  void on_frame(const Frame& frame) override {
    if (!known_) return on_hello(frame);
    if (frame.kind == FrameKind::kHeaders) return on_headers(frame);
    auto found = calls_.find(frame.stream);
    if (found != calls_.end()) {
      auto call = found->second;
      return call->on_frame(frame);
    }
    if (frame.stream == 0 || frame.stream > last_stream_)
      return connection_->refuse("a frame of a call that was never made");
    // Of a call that just ended here: the client has not heard yet.
    connection_->drop_parts(frame);
  }
  void on_packet_end() override {
    for (auto& call : std::exchange(new_calls_, {})) call->begin();
  }
  void on_hello(const Frame& frame) {
    std::optional<Properties> caller;
    if (frame.kind == FrameKind::kHello && frame.version == kBridgeVersion)
      caller = tokens_.take(frame.token);
    if (!caller) {
      strangers_refused.add();
      return connection_->refuse("no token of this server");
    }
    if (sealed_ || !caller->empty())
      about_the_peer_.emplace_back(kAuthKey, encode_auth(sealed_, *caller));
    known_ = true;
    connection_->send({.kind = FrameKind::kWelcome, .version = kBridgeVersion});
  }
  void on_headers(const Frame& frame) {
    if (frame.stream <= last_stream_)
      return connection_->refuse("a call's number that was used before");
    last_stream_ = frame.stream;
    if (!channel_) {
      return refuse_call(frame, ::grpc::StatusCode::UNAVAILABLE, "the server is shutting down");
    }
    if (calls_.size() >= max_calls_) {
      return refuse_call(frame, ::grpc::StatusCode::RESOURCE_EXHAUSTED,
                         "more calls at once than ListenerOptions::max_calls");
    }
    if (const char* flaw = flaw_of(frame)) {
      return refuse_call(
          frame, flaw[0] == 'M' ? ::grpc::StatusCode::UNIMPLEMENTED : ::grpc::StatusCode::INTERNAL,
          flaw);
    }
    calls_served.add();
    Frame headers = frame;
    std::erase_if(headers.metadata,
                  [](const auto& entry) { return entry.first.starts_with("sluice-"); });
    std::shared_ptr<BridgedCall> call;
    if (frame.whole) {
      call = std::make_shared<WholeCall>(shared_from_this(), channel_, headers, about_the_peer_);
    } else {
      auto any = std::make_shared<ServerCall>(shared_from_this(), frame.stream);
      any->start(std::make_shared<GenericStub>(channel_), headers, about_the_peer_);
      call = std::move(any);
    }
    calls_.emplace(frame.stream, call);
    new_calls_.push_back(std::move(call));
  }
  void refuse_call(const Frame& headers, ::grpc::StatusCode code, const char* why) {
    calls_refused.add();
    connection_->send({.kind = FrameKind::kStatus,
                       .stream = headers.stream,
                       .text = why,
                       .code = static_cast<uint32_t>(code)});
  }
  void on_closed(const Status&) override {
    std::unique_ptr<Connection> ended = std::move(connection_);
    new_calls_.clear();
    for (auto& [stream, call] : std::unordered_map(calls_)) call->cancel();
  }

  const std::shared_ptr<ContextThread> thread_;
  Tokens& tokens_;
  const uint32_t max_calls_;
  int64_t receive_limit_ = -1;
  std::shared_ptr<::grpc::Channel> channel_;  // null once no calls may be made
  Metadata about_the_peer_;
  std::unique_ptr<Connection> connection_;
  std::unordered_map<uint32_t, std::shared_ptr<BridgedCall>> calls_;
  std::vector<std::shared_ptr<BridgedCall>> new_calls_;  // of the packet that is being read
  uint32_t last_stream_ = 0;
  Instant hello_deadline_ = kNever;
  bool known_ = false;
  bool sealed_ = false;
};

}  // namespace

class Listener::Core final : private ProgressHook {
 public:
  Core(std::shared_ptr<ContextThread> thread, const ListenerOptions& options)
      : thread_(std::move(thread)), options_(options) {}

  Status start(::grpc::Server* server);
  void shut_down(Instant deadline);
  const std::string& address() const { return address_; }

 private:
  // Runs on a thread of gRPC's when the server shuts down: no call may be made from then on.
  class Sentinel final : public ::grpc::ClientReadReactor<::grpc::ByteBuffer> {
   public:
    explicit Sentinel(Core& core) : core_(core) {}
    void start(::grpc::Channel& channel);
    void OnReadDone(bool) override {}
    void OnDone(const ::grpc::Status&) override {
      core_.thread_->post([core = &core_] {
        core->for_calls_.reset();
        for (auto& session : core->sessions_) session->make_no_calls();
        core->go_away();
      });
      done_.set_value();
    }
    void end() {
      context_.TryCancel();
      done_.get_future().wait();
    }

   private:
    Core& core_;
    ::grpc::ClientContext context_;
    ::grpc::ByteBuffer question_, answer_;
    std::promise<void> done_;
  };

  void go_away();
  void close_sessions();
  size_t progress(Instant now) override;
  Instant next_timeout() override;

  const std::shared_ptr<ContextThread> thread_;
  const ListenerOptions options_;
  std::string address_;
  // Shared with the announcer: gRPC's threads may be asking when this ends.
  const std::shared_ptr<Tokens> tokens_ = std::make_shared<Tokens>();
  std::shared_ptr<Announcer> announcer_;
  std::shared_ptr<::grpc::Channel> channel_;
  std::shared_ptr<::grpc::Channel> for_calls_;  // null once the server shuts down
  std::unique_ptr<Sentinel> sentinel_;
  sluice::Listener listener_;
  int64_t receive_limit_ = -1;  // the server's, of a message; -1: none
  std::vector<std::shared_ptr<Session>> sessions_;
  bool going_away_ = false;
  bool shut_down_ = false;
};

void Listener::Core::Sentinel::start(::grpc::Channel& channel) {
  question_ = buffer_of("");
  ::grpc::internal::ClientCallbackReaderFactory<::grpc::ByteBuffer>::Create(
      &channel,
      ::grpc::internal::RpcMethod(kHoldMethod, ::grpc::internal::RpcMethod::SERVER_STREAMING),
      &context_, &question_, this);
  StartRead(&answer_);
  StartCall();
}

Status Listener::Core::start(::grpc::Server* server) {
  std::promise<Status> listening;
  thread_->run_apart([&] {
    Result<sluice::Listener> listener = thread_->context().listen(options_.address);
    if (listener.ok()) {
      listener_ = std::move(*listener);
      address_ = listener_.address();
      thread_->context().add_hook(this);
    }
    listening.set_value(listener.status());
  });
  Status status = listening.get_future().get();
  if (!status.ok()) {
    shut_down_ = true;
    thread_->stop([] {});
    return status;
  }
  // The server's own limits hold: it checks what it is given here as on its port.
  ::grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  channel_ = server->InProcessChannel(arguments);
  sentinel_ = std::make_unique<Sentinel>(*this);
  sentinel_->start(*channel_);
  thread_->post([this] { for_calls_ = channel_; });
  announcer_ =
      std::make_shared<Announcer>([tokens = tokens_, address = address_](const Properties& caller) {
        return Announcement{.token = tokens->make(caller), .address = address};
      });
  if (const std::optional<int64_t> limit = announce(server, announcer_)) {
    thread_->post([this, limit] {
      receive_limit_ = *limit;
      for (auto& session : sessions_) session->set_receive_limit(*limit);
    });
    return Status();
  }
  shut_down(now());
  return Status(Code::kWrongState, Scope::kOperation, kOrigin,
                "the server was built while SLUICE_GRPC was off, or before this library was "
                "loaded: clients cannot find its listener");
}

size_t Listener::Core::progress(Instant) {
  size_t work = 0;
  const Instant time = thread_->context().now();
  while (listener_) {
    Result<Endpoint> endpoint = listener_.try_accept();
    if (!endpoint.ok()) break;
    auto session = std::make_shared<Session>(thread_, *tokens_, options_.max_calls);
    session->set_receive_limit(receive_limit_);
    session->start(std::move(*endpoint), for_calls_);
    sessions_.push_back(std::move(session));
    ++work;
  }
  for (auto& session : sessions_) session->check(time);
  std::erase_if(sessions_, [](const auto& session) { return session->ended(); });
  return work;
}

Instant Listener::Core::next_timeout() {
  Instant next = kNever;
  for (const auto& session : sessions_) next = std::min(next, session->next_timeout());
  return next;
}

void Listener::Core::go_away() {
  if (std::exchange(going_away_, true)) return;
  listener_.close();
  listener_ = sluice::Listener();
  for (auto& session : sessions_) session->go_away();
}

void Listener::Core::close_sessions() {
  for (auto& session : std::vector(sessions_)) session->close();
  (void)thread_->context().wait_until([&] { return sessions_.empty(); }, now() + kCloseTime);
  thread_->context().remove_hook(this);
}

void Listener::Core::shut_down(Instant deadline) {
  if (std::exchange(shut_down_, true)) return;
  std::promise<void> ended;
  thread_->run_apart([&] {
    go_away();
    (void)thread_->context().wait_until([&] { return sessions_.empty(); }, deadline);
    close_sessions();
    ended.set_value();
  });
  // The last reactions of calls are posted meanwhile: the context thread goes on until they have
  // come.
  ended.get_future().wait();
  sentinel_->end();
  thread_->stop([this] { for_calls_.reset(); });
}

Listener::Listener(std::unique_ptr<Core> core) : core_(std::move(core)) {}

Listener::~Listener() {
  if (core_) core_->shut_down(now());
}

const std::string& Listener::address() const {
  static const std::string kNone;
  return core_ ? core_->address() : kNone;
}

void Listener::Shutdown(std::chrono::system_clock::time_point deadline) {
  if (!core_) return;
  const auto left = std::max(deadline - std::chrono::system_clock::now(),
                             std::chrono::system_clock::duration::zero());
  // An hour at most: the largest time point has no counterpart here.
  core_->shut_down(now() + std::min<std::chrono::nanoseconds>(left, std::chrono::hours(1)));
}

Result<std::unique_ptr<Listener>> Listen(::grpc::Server* server, const ListenerOptions& options) {
  if (switched_off()) return std::make_unique<Listener>(nullptr);
  SLUICE_TRY(std::shared_ptr<ContextThread> thread, ContextThread::start());
  auto core = std::make_unique<Listener::Core>(std::move(thread), options);
  SLUICE_RETURN_IF_ERROR(core->start(server));
  return std::make_unique<Listener>(std::move(core));
}

namespace {

// What the bridge itself says of a bridged call; empty of another call, whatever it says.
std::string_view said(const ::grpc::ServerContextBase& context, const char* key) {
  if (context.peer() != kPeerInProcess) return {};
  const auto& metadata = context.client_metadata();
  const auto shown = metadata.find(kProofKey);
  const auto found = metadata.find(key);
  if (shown == metadata.end() || found == metadata.end() ||
      std::string_view(shown->second.data(), shown->second.size()) != proof())
    return {};
  return {found->second.data(), found->second.size()};
}

}  // namespace

std::string peer(const ::grpc::ServerContextBase& context) {
  const std::string_view bridged = said(context, kPeerKey);
  return bridged.empty() ? context.peer() : std::string(bridged);
}

Auth auth(const ::grpc::ServerContextBase& context) {
  if (said(context, kPeerKey).empty()) {
    Auth plain{.properties = properties_of(*context.auth_context())};
    plain.sealed = !plain.properties.empty();
    return plain;
  }
  const std::string_view proved = said(context, kAuthKey);
  return proved.empty() ? Auth{.bridged = true, .properties = {}} : decode_auth(proved);
}

}  // namespace sluice::grpc
