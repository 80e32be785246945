#include <sluice/grpc/discovery.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include <grpc/grpc.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/impl/server_initializer.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <sluice/allocator/arena.h>
#include <sluice/base/settings.h>
#include <sluice/grpc/message.h>
#include <sluice/runtime/identity.h>

namespace sluice::grpc {
namespace {

using ::grpc::ByteBuffer;

// Servers cannot be asked for their services: a question with this process's secret number, which
// nobody outside can guess, ties the service that gets it to an announcer.
std::mutex attach_mutex;
struct Attaching {
  std::shared_ptr<Announcer> announcer;
  std::optional<int64_t> receive_limit;  // told by the server's service
};
std::map<std::string, Attaching> attaching;

// As gRPC reads it from a server's arguments.
int64_t receive_limit_of(const ::grpc::ChannelArguments& arguments) {
  int64_t limit = GRPC_DEFAULT_MAX_RECV_MESSAGE_LENGTH;
  const grpc_channel_args all = arguments.c_channel_args();
  for (size_t i = 0; i < all.num_args; ++i) {
    const grpc_arg& argument = all.args[i];
    if (argument.type != GRPC_ARG_INTEGER) continue;
    if (std::strcmp(argument.key, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH) == 0)
      limit = argument.value.integer;
    if (std::strcmp(argument.key, GRPC_ARG_MINIMAL_STACK) == 0 && argument.value.integer != 0)
      return -1;
  }
  return std::max<int64_t>(limit, -1);
}

class HoldReactor final : public ::grpc::ServerWriteReactor<ByteBuffer> {
 public:
  // A server waits for such calls when it shuts down.
  explicit HoldReactor(bool own) {
    if (!own)
      Finish(::grpc::Status(::grpc::StatusCode::PERMISSION_DENIED,
                            "for the server's own process alone"));
  }
  void OnCancel() override { Finish(::grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }
};

class Discovery final : public ::grpc::Service {
 public:
  Discovery() {
    AddMethod(new ::grpc::internal::RpcServiceMethod(
        kFindMethod, ::grpc::internal::RpcMethod::NORMAL_RPC, nullptr));
    MarkMethodCallback(
        0, new ::grpc::internal::CallbackUnaryHandler<ByteBuffer, ByteBuffer>(
               [this](::grpc::CallbackServerContext* context, const ByteBuffer* question,
                      ByteBuffer* answer) { return find(context, *question, answer); }));
    AddMethod(new ::grpc::internal::RpcServiceMethod(
        kHoldMethod, ::grpc::internal::RpcMethod::SERVER_STREAMING, nullptr));
    MarkMethodCallback(1,
                       new ::grpc::internal::CallbackServerStreamingHandler<ByteBuffer, ByteBuffer>(
                           [](::grpc::CallbackServerContext* context, const ByteBuffer*) {
                             return new HoldReactor(context->peer() == kPeerInProcess);
                           }));
  }
  // Before the server starts.
  void set_receive_limit(int64_t limit) { receive_limit_ = limit; }

 private:
  ::grpc::ServerUnaryReactor* find(::grpc::CallbackServerContext* context,
                                   const ByteBuffer& question, ByteBuffer* answer) {
    ::grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const std::string secret = text_of(question);
    std::shared_ptr<Announcer> announcer;
    {
      std::lock_guard lock(attach_mutex);
      auto attach = secret.empty() ? attaching.end() : attaching.find(secret);
      if (attach != attaching.end()) {
        announcer_ = attach->second.announcer;
        attach->second.receive_limit = receive_limit_;
      }
      announcer = announcer_.lock();
    }
    Announcement announcement;
    if (announcer && secret.empty())
      announcement = (*announcer)(properties_of(*context->auth_context()));
    *answer = buffer_of(encode(announcement));
    reactor->Finish(::grpc::Status::OK);
    return reactor;
  }

  int64_t receive_limit_ = GRPC_DEFAULT_MAX_RECV_MESSAGE_LENGTH;
  std::weak_ptr<Announcer> announcer_;  // attach_mutex
};

class DiscoveryPlugin final : public ::grpc::ServerBuilderPlugin {
 public:
  std::string name() override { return "sluice.discovery"; }
  // The server outlives neither its builder nor this: the service belongs to the process.
  void UpdateServerBuilder(::grpc::ServerBuilder* builder) override {
    static std::mutex mutex;
    static auto* services = new std::vector<std::unique_ptr<Discovery>>();
    std::lock_guard lock(mutex);
    services->push_back(std::make_unique<Discovery>());
    service_ = services->back().get();
    builder->RegisterService(service_);
  }
  void UpdateChannelArguments(::grpc::ChannelArguments* arguments) override {
    service_->set_receive_limit(receive_limit_of(*arguments));
  }
  void InitServer(::grpc::ServerInitializer*) override {}
  void Finish(::grpc::ServerInitializer*) override {
    if (when_built()) when_built()();
  }
  void ChangeArguments(const std::string&, void*) override {}

 private:
  Discovery* service_ = nullptr;
};

// Before main(): every server that is built from now on has the service.
[[maybe_unused]] const bool registered = [] {
  if (switched_off()) return false;
  ::grpc::ServerBuilder::InternalAddPluginFactory(
      [] { return std::unique_ptr<::grpc::ServerBuilderPlugin>(new DiscoveryPlugin()); });
  return true;
}();

}  // namespace

Properties properties_of(const ::grpc::AuthContext& context) {
  Properties properties;
  if (!context.IsPeerAuthenticated()) return properties;
  for (auto property = context.begin(); property != context.end(); ++property) {
    properties.emplace_back(std::string((*property).first.data(), (*property).first.size()),
                            std::string((*property).second.data(), (*property).second.size()));
  }
  return properties;
}

std::function<void()>& when_built() {
  static std::function<void()> hook;
  return hook;
}

std::optional<int64_t> announce(::grpc::Server* server,
                                const std::shared_ptr<Announcer>& announcer) {
  std::string secret(32, '\0');
  fill_random(std::as_writable_bytes(std::span(secret)));
  {
    std::lock_guard lock(attach_mutex);
    attaching.emplace(secret, Attaching{announcer, std::nullopt});
  }
  ::grpc::ClientContext context;
  ByteBuffer answer;
  const std::shared_ptr<::grpc::Channel> channel =
      server->InProcessChannel(::grpc::ChannelArguments());
  const ::grpc::Status status = ::grpc::internal::BlockingUnaryCall<ByteBuffer, ByteBuffer>(
      channel.get(),
      ::grpc::internal::RpcMethod(kFindMethod, ::grpc::internal::RpcMethod::NORMAL_RPC), &context,
      buffer_of(secret), &answer);
  std::lock_guard lock(attach_mutex);
  const auto attached = attaching.extract(secret);
  return status.ok() ? attached.mapped().receive_limit : std::nullopt;
}

ByteBuffer buffer_of(std::string_view text) {
  return copy_of(std::as_bytes(std::span(text.data(), text.size())));
}

std::string text_of(const ByteBuffer& buffer) {
  ::grpc::Slice slice;
  if (!buffer.Valid() || !buffer.DumpToSingleSlice(&slice).ok()) return {};
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

std::string host_of(const std::string& peer) {
  const size_t scheme = peer.find(':');
  const size_t port = peer.rfind(':');
  if (scheme == std::string::npos || port <= scheme) return "127.0.0.1";
  std::string host = peer.substr(scheme + 1, port - scheme - 1);
  if (peer.starts_with("ipv4:")) return host;
  if (!peer.starts_with("ipv6:")) return "127.0.0.1";
  if (host.starts_with("%5B") && host.ends_with("%5D"))
    host = "[" + host.substr(3, host.size() - 6) + "]";
  return host;
}

std::string at_host(const std::string& address, const std::string& host) {
  for (std::string_view nowhere : {"//0.0.0.0:", "//[::]:"}) {
    const size_t at = address.find(nowhere);
    if (at != std::string::npos) {
      return address.substr(0, at + 2) + host + address.substr(at + nowhere.size() - 1);
    }
  }
  return address;
}

bool switched_off() { return setting_is("SLUICE_GRPC", "off"); }

}  // namespace sluice::grpc
