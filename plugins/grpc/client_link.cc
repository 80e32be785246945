#include <sluice/grpc/client_link.h>

#include <utility>

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <sluice/base/counters.h>
#include <sluice/base/log.h>
#include <sluice/grpc/discovery.h>

namespace sluice::grpc {
namespace {

Counter calls_bridged("grpc.calls_bridged");

// How long the server may take to say where its listener is, and that to answer.
constexpr Duration kSearchTime = std::chrono::seconds(5);
// When the server is asked again that has no bridge, or whose listener cannot be reached: it may
// have been started anew.
constexpr Duration kAskAgain = std::chrono::seconds(10);
// The same where calls fail until then.
constexpr Duration kTryAgain = std::chrono::seconds(1);

// Why a path that the target forces cannot be had, and what to do.
Status not_by(const PathDescriptor& forced, const Status& why) {
  const std::string scheme = std::string(to_string(forced.scheme)) + "://";
  const std::string needs = forced.needs.empty() ? "" : std::string(forced.needs) + "; ";
  return Status(Code::kUnreachable, Scope::kEndpoint, "grpc/client_link",
                "the target forces " + scheme + ", which cannot be had (" +
                    std::string(why.detail()) + "): " + needs +
                    "the server must listen at sluice:// or at that path "
                    "(ListenerOptions::address)");
}

}  // namespace

struct ClientLink::Search {
  ::grpc::ClientContext context;
  ::grpc::ByteBuffer question, answer;
};

ClientLink::ClientLink(std::shared_ptr<ContextThread> thread, MessageLimits limits, PathRule rule)
    : thread_(std::move(thread)), limits_(limits), rule_(rule) {
  thread_->post([this] { thread_->context().add_hook(this); });
}

void ClientLink::stop() {
  thread_->stop([this, self = shared_from_this()] {
    settle(State::kPlain, std::chrono::hours(1));
    if (connection_) {
      connection_->close();
      (void)thread_->context().wait_until([&] { return connection_ == nullptr; },
                                          now() + kSearchTime);
    }
    thread_->context().remove_hook(this);
  });
}

ClientLink::Route ClientLink::route() const {
  switch (state_.load()) {
    case State::kUp: return Route::kBridge;
    case State::kPlain:
      if (now() >= plain_until_.load()) return Route::kWait;
      return forced() ? Route::kBridge : Route::kPlain;  // where it fails
    default: return Route::kWait;
  }
}

void ClientLink::hold(std::shared_ptr<ClientCall> call) {
  const Route route = this->route();
  if (route != Route::kWait) return call->decide(route == Route::kBridge);
  mind_deadline(call);
  held_.push_back(std::move(call));
  const State state = state_.load();
  if (state != State::kSeeking && state != State::kLeaving) seek();
}

void ClientLink::seek() {
  std::shared_ptr<::grpc::Channel> channel = channel_.lock();
  // One that goes away still has calls.
  if (!channel || connection_) return settle(State::kPlain, std::chrono::seconds(1));
  if (rule_.barred != nullptr) {
    why_down_ = rule_.barred;
    return settle(State::kPlain, kAskAgain);
  }
  state_ = State::kSeeking;
  auto search = std::make_shared<Search>();
  search->context.set_deadline(std::chrono::system_clock::now() + kSearchTime);
  search->question = buffer_of("");
  ::grpc::TemplatedGenericStub<::grpc::ByteBuffer, ::grpc::ByteBuffer> stub(channel);
  stub.UnaryCall(&search->context, kFindMethod, {}, &search->question, &search->answer,
                 [self = shared_from_this(), search](::grpc::Status status) {
                   self->thread_->run_apart([self, status, answer = text_of(search->answer),
                                             host = host_of(search->context.peer())] {
                     self->on_found(status, answer, host);
                   });
                 });
}

void ClientLink::on_found(const ::grpc::Status& status, const std::string& answer,
                          const std::string& host) {
  if (state_.load() != State::kSeeking) return;
  std::optional<Announcement> found = decode_announcement(answer);
  if (!status.ok() || !found || found->address.empty()) {
    // A server that is not there yet is gRPC's matter: it has its own back-off.
    why_down_ =
        status.ok() || status.error_code() == ::grpc::StatusCode::UNIMPLEMENTED
            ? "the server has no sluice listener: it must call sluice::grpc::Listen() after "
              "BuildAndStart(), and SLUICE_GRPC=off must not be set where it runs"
            : "the server cannot be asked for its listener: " + status.error_message() +
                  "; start it, or check the target: its port is that of the server's gRPC";
    const bool absent = status.error_code() == ::grpc::StatusCode::UNAVAILABLE;
    return settle(State::kPlain, absent ? Duration(std::chrono::milliseconds(100)) : kAskAgain);
  }
  Result<Endpoint> endpoint = connect(at_host(found->address, host));
  if (!endpoint.ok()) {
    // What is wrong at this end, such as a secret's file, may leave calls in the clear that were to
    // be encrypted: that is said, once.
    const bool ours =
        endpoint.code() == Code::kInvalidArgument || endpoint.code() == Code::kAccessDenied;
    const bool loud = ours && !std::exchange(warned_, true);
    log(loud ? LogLevel::kWarning : LogLevel::kInfo,
        "grpc: " + found->address + " cannot be reached, calls " +
            (forced() ? "fail: " : "go by gRPC's own connection: ") +
            endpoint.status().to_string());
    why_down_ = endpoint.status().to_string();
    return settle(State::kPlain, forced() ? kTryAgain : kAskAgain);
  }
  if (state_.load() != State::kSeeking) return;  // stopped meanwhile
  connection_ = std::make_unique<Connection>(thread_->context(), std::move(*endpoint),
                                             static_cast<Connection::Owner&>(*this));
  next_stream_ = 1;
  connection_->send({.kind = FrameKind::kHello, .version = kBridgeVersion, .token = found->token});
  welcome_deadline_ = now() + kSearchTime;
}

Result<Endpoint> ClientLink::connect(const std::string& address) {
  ConnectOptions options;
  options.timeout = kSearchTime;
  options.require.sealed = rule_.sealed_only;
  if (forced()) options.require.path = rule_.forced->path;
  Result<Endpoint> endpoint = thread_->context().connect(address, options);
  if (forced() && endpoint.code() == Code::kUnsupported)
    return not_by(*rule_.forced, endpoint.status());
  return endpoint;
}

void ClientLink::settle(State state, Duration plain_for) {
  plain_until_ = now() + plain_for;
  state_ = state;
  auto held = std::move(held_);
  held_.clear();
  for (auto& call : held) call->decide(state == State::kUp || forced());
}

uint32_t ClientLink::add(const std::shared_ptr<ClientCall>& call) {
  if (!connection_ || !connection_->open()) return 0;
  calls_bridged.add();
  calls_.emplace(next_stream_, call);
  mind_deadline(call);
  const uint32_t stream = next_stream_++;
  // Stream numbers have 32 bits. Before they run out, the connection is replaced.
  if (stream >= streams_by_connection.load(std::memory_order_relaxed)) go_away();
  return stream;
}

void ClientLink::go_away() {
  if (std::exchange(going_away_, true)) return;
  const bool up = state_.load() == State::kUp;
  if (!up) why_down_ = "the server's listener is shutting down";
  // Where no call may go by gRPC's own connection, they wait.
  if (up && forced()) {
    state_ = State::kLeaving;
  } else {
    settle(State::kPlain, kTryAgain);
  }
  if (calls_.empty()) connection_->close();
}

void ClientLink::mind_deadline(const std::shared_ptr<ClientCall>& call) {
  if (call->deadline() != kNever) deadlines_.emplace(call->deadline(), call);
}

void ClientLink::forget_deadline(const ClientCall& call) {
  auto [first, last] = deadlines_.equal_range(call.deadline());
  while (first != last) {
    auto held = first->second.lock();
    first = !held || held.get() == &call ? deadlines_.erase(first) : std::next(first);
  }
}

void ClientLink::remove(const ClientCall& call) {
  calls_.erase(call.stream());
  forget_deadline(call);
  if (going_away_ && calls_.empty() && connection_) connection_->close();
}

void ClientLink::on_frame(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kWelcome:
      if (frame.version != kBridgeVersion) return connection_->refuse("another version");
      welcome_deadline_ = kNever;
      why_down_.clear();
      settle(State::kUp, Duration(0));
      return;
    case FrameKind::kGoAway: return go_away();
    default: break;
  }
  auto found = calls_.find(frame.stream);
  if (found != calls_.end()) {
    auto call = found->second;
    call->on_frame(frame);
  } else if (frame.stream == 0 || frame.stream >= next_stream_) {
    connection_->refuse("a frame of a call that was never made");
  } else {
    connection_->drop_parts(frame);
  }
}

void ClientLink::on_closed(const Status& why) {
  const bool leaving = state_.load() == State::kLeaving;
  const bool was_up = state_.load() == State::kUp || going_away_;
  going_away_ = false;
  welcome_deadline_ = kNever;
  if (!was_up) {
    why_down_ =
        "the listener that the server names is none of this bridge's, or of another version (" +
        std::string(why.detail()) + "): use the same version of sluice at both ends";
    log(LogLevel::kInfo, "grpc: " + why_down_);
  }
  std::unique_ptr<Connection> ended = std::move(connection_);
  if (leaving && !held_.empty()) {
    seek();
  } else {
    settle(was_up ? State::kUnknown : State::kPlain, was_up ? Duration(0) : kAskAgain);
  }
  auto calls = std::move(calls_);
  calls_.clear();
  for (auto& [stream, call] : calls) {
    call->finish_here(::grpc::Status(
        ::grpc::StatusCode::UNAVAILABLE,
        "sluice: the connection ended during the call: " + std::string(why.detail())));
  }
}

size_t ClientLink::progress(Instant) {
  if (welcome_deadline_ == kNever && deadlines_.empty()) return 0;
  const Instant time = now();
  if (time >= welcome_deadline_ && connection_) {
    welcome_deadline_ = kNever;
    connection_->close();
  }
  size_t ended = 0;
  while (!deadlines_.empty() && deadlines_.begin()->first <= time) {
    auto call = deadlines_.begin()->second.lock();
    deadlines_.erase(deadlines_.begin());
    if (call) call->on_deadline();
    ++ended;
  }
  return ended;
}

Instant ClientLink::next_timeout() {
  return deadlines_.empty() ? welcome_deadline_
                            : std::min(welcome_deadline_, deadlines_.begin()->first);
}

}  // namespace sluice::grpc
