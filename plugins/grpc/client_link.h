// What a channel knows of its server's bridge: none, sought, or a connection with calls on it.
#ifndef SLUICE_GRPC_CLIENT_LINK_H_
#define SLUICE_GRPC_CLIENT_LINK_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <grpcpp/channel.h>

#include <sluice/grpc/bridge.h>
#include <sluice/grpc/client_call.h>
#include <sluice/grpc/connection.h>
#include <sluice/grpc/context_thread.h>
#include <sluice/spi/path_descriptor.h>

namespace sluice::grpc {

// Messages larger than these are refused; -1: no limit. As gRPC's channel arguments say.
struct MessageLimits {
  int64_t send = -1;
  int64_t receive = 4 << 20;
};

// Which paths a channel may use.
struct PathRule {
  bool sealed_only = false;
  // This one alone, and not gRPC's own connection; null: any.
  const PathDescriptor* forced = nullptr;
  const char* barred = nullptr;  // why none may be used; requires: one is forced
};

class ClientLink : public std::enable_shared_from_this<ClientLink>,
                   private Connection::Owner,
                   private ProgressHook {
 public:
  enum class Route : uint8_t { kBridge, kPlain, kWait };

  ClientLink(std::shared_ptr<ContextThread> thread, MessageLimits limits, PathRule rule);
  // The channel over which the server is asked; it owns this link.
  void attach(const std::shared_ptr<::grpc::Channel>& channel) { channel_ = channel; }
  void stop();  // once, when the channel ends

  // Thread: any.
  Route route() const;
  void post(std::function<void()> work) { thread_->post(std::move(work)); }
  ContextThread& thread() { return *thread_; }
  Arena& arena() { return thread_->arena(); }
  const MessageLimits& limits() const { return limits_; }
  // No call may go by gRPC's own connection.
  bool forced() const { return rule_.forced != nullptr; }

  // Thread: the context thread's, all that follows.
  // Decides once it is known whether there is a bridge.
  void hold(std::shared_ptr<ClientCall> call);
  // The number of a new call; 0: there is no connection any more.
  uint32_t add(const std::shared_ptr<ClientCall>& call);
  void remove(const ClientCall& call);
  // Of a call that has a deadline, it is told when that is over.
  void mind_deadline(const std::shared_ptr<ClientCall>& call);
  void forget_deadline(const ClientCall& call);
  // Why there is no connection.
  const std::string& why_down() const { return why_down_; }
  // Null once the connection has ended.
  Connection* connection() { return connection_.get(); }
  bool has_calls() const { return !calls_.empty(); }
  // Calls of one connection before it is replaced. Tests set a smaller number.
  static inline std::atomic<uint32_t> streams_by_connection{uint32_t{1} << 31};

 private:
  enum class State : uint8_t {
    kUnknown,
    kSeeking,
    kUp,
    kLeaving,  // calls wait for the end of a connection that takes no new ones; the next is sought
    kPlain,
  };
  struct Search;

  void seek();
  void on_found(const ::grpc::Status& status, const std::string& answer, const std::string& host);
  Result<Endpoint> connect(const std::string& address);
  void settle(State state, Duration plain_for);
  void go_away();
  void on_frame(const Frame& frame) override;
  void on_closed(const Status& why) override;
  size_t progress(Instant now) override;
  Instant next_timeout() override;

  const std::shared_ptr<ContextThread> thread_;
  const MessageLimits limits_;
  const PathRule rule_;
  std::weak_ptr<::grpc::Channel> channel_;
  std::atomic<State> state_{State::kUnknown};
  std::atomic<Instant> plain_until_{Instant{}};

  std::vector<std::shared_ptr<ClientCall>> held_;
  std::unique_ptr<Connection> connection_;
  std::unordered_map<uint32_t, std::shared_ptr<ClientCall>> calls_;
  std::multimap<Instant, std::weak_ptr<ClientCall>> deadlines_;
  Instant welcome_deadline_ = kNever;
  uint32_t next_stream_ = 1;
  bool going_away_ = false;  // the connection takes no new calls
  bool warned_ = false;
  std::string why_down_;
};

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_CLIENT_LINK_H_
