// The client's line: a channel of gRPC's own with one interceptor, the last of the chain.
#include <cstring>
#include <typeinfo>
#include <utility>

#include <sluice/base/log.h>
#include <sluice/grpc/bridge.h>
#include <sluice/grpc/client_link.h>
#include <sluice/grpc/discovery.h>

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
  std::shared_ptr<ClientLink> link;
  if (!switched_off() && !(secure && options.secure == SecureChannel::kPlain)) {
    Result<std::shared_ptr<Helper>> helper = Helper::start();
    if (helper.ok()) {
      link = std::make_shared<ClientLink>(std::move(*helper), limits_of(arguments),
                                          secure && options.secure == SecureChannel::kSealed);
      interceptors.push_back(std::make_unique<BridgeFactory>(link));
    } else {
      log(LogLevel::kWarning,
          "grpc: calls go by gRPC's own connection: " + helper.status().to_string());
    }
  }
  std::shared_ptr<::grpc::Channel> channel =
      ::grpc::experimental::CreateCustomChannelWithInterceptors(target, credentials, arguments,
                                                                std::move(interceptors));
  if (link) link->attach(channel);
  return channel;
}

}  // namespace sluice::grpc
