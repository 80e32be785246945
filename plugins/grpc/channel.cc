// The client's line: a channel of gRPC's own with one interceptor, the last of the chain.
#include <cstring>
#include <optional>
#include <typeinfo>
#include <utility>

#include <sluice/base/log.h>
#include <sluice/grpc/bridge.h>
#include <sluice/grpc/client_link.h>
#include <sluice/grpc/discovery.h>
#include <sluice/select/paths.h>

namespace sluice::grpc {
namespace {

using ::grpc::experimental::ClientInterceptorFactoryInterface;
using ::grpc::experimental::ClientRpcInfo;
using ::grpc::experimental::Interceptor;
using ::grpc::experimental::InterceptorBatchMethods;

class BridgeInterceptor final : public Interceptor {
 public:
  explicit BridgeInterceptor(std::shared_ptr<ClientCall> call) : call_(std::move(call)) {}
  ~BridgeInterceptor() override { call_->abandon(); }
  void Intercept(InterceptorBatchMethods* batch) override { call_->intercept(batch); }

 private:
  const std::shared_ptr<ClientCall> call_;
};

class BridgeFactory final : public ClientInterceptorFactoryInterface {
 public:
  explicit BridgeFactory(std::shared_ptr<ClientLink> link) : link_(std::move(link)) {}
  ~BridgeFactory() override { link_->stop(); }
  Interceptor* CreateClientInterceptor(ClientRpcInfo* info) override {
    if (std::strcmp(info->method(), kFindMethod) == 0) return nullptr;
    return new BridgeInterceptor(std::make_shared<ClientCall>(link_, info));
  }

 private:
  const std::shared_ptr<ClientLink> link_;
};

MessageLimits limits_of(const ::grpc::ChannelArguments& arguments) {
  MessageLimits limits;
  const grpc_channel_args all = arguments.c_channel_args();
  for (size_t i = 0; i < all.num_args; ++i) {
    const grpc_arg& argument = all.args[i];
    if (argument.type != GRPC_ARG_INTEGER) continue;
    if (std::strcmp(argument.key, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH) == 0)
      limits.send = argument.value.integer;
    if (std::strcmp(argument.key, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH) == 0)
      limits.receive = argument.value.integer;
  }
  return limits;
}

// A target that forces a path: that path, and the target as gRPC takes it.
struct Target {
  const PathDescriptor* forced = nullptr;
  std::string plain;
};

Target read_target(const std::string& target) {
  const auto without = [&](Scheme scheme) -> std::optional<std::string> {
    const std::string prefix = std::string(to_string(scheme)) + "://";
    if (!target.starts_with(prefix)) return std::nullopt;
    return target.substr(prefix.size());
  };
  if (auto plain = without(Scheme::kSluice)) return {nullptr, *plain};
  // The first of a scheme: l2:// is frames as the kernel sends them.
  for (const PathDescriptor* path : known_paths()) {
    if (path->explain == nullptr) continue;  // not between processes
    if (auto plain = without(path->scheme)) return {path, *plain};
  }
  return {nullptr, target};
}

bool is_secure(const ::grpc::ChannelCredentials& credentials) {
  const std::shared_ptr<::grpc::ChannelCredentials> insecure = ::grpc::InsecureChannelCredentials();
  return typeid(credentials) != typeid(*insecure);
}

}  // namespace

std::shared_ptr<::grpc::Channel> CreateChannel(
    const std::string& target, const std::shared_ptr<::grpc::ChannelCredentials>& credentials) {
  return CreateCustomChannelWithInterceptors(target, credentials, ::grpc::ChannelArguments(), {});
}

std::shared_ptr<::grpc::Channel> CreateCustomChannel(
    const std::string& target, const std::shared_ptr<::grpc::ChannelCredentials>& credentials,
    const ::grpc::ChannelArguments& arguments, const ChannelOptions& options) {
  return CreateCustomChannelWithInterceptors(target, credentials, arguments, {}, options);
}

std::shared_ptr<::grpc::Channel> CreateCustomChannelWithInterceptors(
    const std::string& target, const std::shared_ptr<::grpc::ChannelCredentials>& credentials,
    const ::grpc::ChannelArguments& arguments,
    std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> interceptors,
    const ChannelOptions& options) {
  const bool secure = is_secure(*credentials);
  const Target read = read_target(target);
  const char* barred = nullptr;
  if (switched_off()) {
    barred =
        "the target forces a path, and SLUICE_GRPC=off is set where this program runs: unset it, "
        "or leave the scheme out of the target";
  }
  if (secure && options.secure == SecureChannel::kPlain) {
    barred =
        "the channel has credentials, and ChannelOptions::secure allows no path beside gRPC's: set "
        "it to kSealed or kAny, or leave the scheme out of the target";
  }
  std::shared_ptr<ClientLink> link;
  if (barred == nullptr || read.forced != nullptr) {
    Result<std::shared_ptr<ContextThread>> thread = ContextThread::start();
    if (thread.ok()) {
      link = std::make_shared<ClientLink>(
          std::move(*thread), limits_of(arguments),
          PathRule{.sealed_only = secure && options.secure == SecureChannel::kSealed,
                   .forced = read.forced,
                   .barred = barred});
      interceptors.push_back(std::make_unique<BridgeFactory>(link));
    } else if (read.forced != nullptr) {
      log(LogLevel::kWarning, "grpc: calls to " + target + " fail: " + thread.status().to_string());
      return ::grpc::CreateCustomChannel("unix:/nonexistent/see this program's log", credentials,
                                         arguments);
    } else {
      log(LogLevel::kWarning,
          "grpc: calls go by gRPC's own connection: " + thread.status().to_string());
    }
  }
  std::shared_ptr<::grpc::Channel> channel =
      ::grpc::experimental::CreateCustomChannelWithInterceptors(read.plain, credentials, arguments,
                                                                std::move(interceptors));
  if (link) link->attach(channel);
  return channel;
}

Result<Buffer> allocate(std::span<const int64_t> shape, DataType dtype) {
  SLUICE_TRY(std::shared_ptr<Arena> arena, ContextThread::shared_arena());
  return arena->allocate(shape, dtype);
}

}  // namespace sluice::grpc
