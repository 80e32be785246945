// gRPC over sluice without a fork: a channel for clients, a line for servers. Stubs, services,
// deadlines, metadata and interceptors stay as they are. docs/grpc.md is the guide.
#ifndef SLUICE_GRPC_BRIDGE_H_
#define SLUICE_GRPC_BRIDGE_H_

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_interceptor.h>

#include <sluice/allocator/buffer.h>
#include <sluice/base/result.h>

namespace sluice::grpc {

// What a channel with credentials other than insecure ones does.
enum class SecureChannel : uint8_t {
  kPlain,   // all calls go by gRPC's own connection
  kSealed,  // paths that nobody else can read are used: shared memory of one user
  kAny,     // also paths in the clear. The channel's own call credentials are not sent on them
};

struct ChannelOptions {
  SecureChannel secure = SecureChannel::kPlain;
};

// As grpc::CreateChannel(), with the user's own target. The server is asked over this very channel
// where its sluice listener is; while there is none, all calls go by gRPC's own connection.
// SLUICE_GRPC=off: always.
// A target may force a path: shm://host:50051, rdma://..., l2://... or tcp://..., with the port of
// the server's gRPC. Then no call goes by gRPC's own connection: where the path cannot be had,
// calls end with UNAVAILABLE, and the text says why. Messages of stubs must be protobuf messages or
// ByteBuffers.
std::shared_ptr<::grpc::Channel> CreateChannel(
    const std::string& target, const std::shared_ptr<::grpc::ChannelCredentials>& credentials);
std::shared_ptr<::grpc::Channel> CreateCustomChannel(
    const std::string& target, const std::shared_ptr<::grpc::ChannelCredentials>& credentials,
    const ::grpc::ChannelArguments& arguments, const ChannelOptions& options = {});
// The user's interceptors see bridged calls like all others.
std::shared_ptr<::grpc::Channel> CreateCustomChannelWithInterceptors(
    const std::string& target, const std::shared_ptr<::grpc::ChannelCredentials>& credentials,
    const ::grpc::ChannelArguments& arguments,
    std::vector<std::unique_ptr<::grpc::experimental::ClientInterceptorFactoryInterface>>
        interceptors,
    const ChannelOptions& options = {});

// Memory that tensors of messages are sent from without a copy, of this process's bridges.
// Errors: as Arena::allocate().
Result<Buffer> allocate(std::span<const int64_t> shape, DataType dtype);

struct ListenerOptions {
  // Where it listens: sluice://, tcp:// or rdma:// with a port, 0 for any free one. Clients are
  // told it by the server's gRPC port, with 0.0.0.0 and [::] replaced by the host that they called.
  std::string address = "sluice://0.0.0.0:0";
  // Most calls of one connection at once; more end with RESOURCE_EXHAUSTED.
  uint32_t max_calls = 4096;
};

// Carries what arrives over sluice into a server. Requires: ends before the server does.
class Listener {
 public:
  class Core;
  explicit Listener(std::unique_ptr<Core> core);
  ~Listener();  // as Shutdown() with no time left

  // Where it listens; empty if SLUICE_GRPC=off.
  const std::string& address() const;
  // Tells clients to make no new calls, waits for those in flight, and ends those that are left at
  // the deadline. Call it before Server::Shutdown(), which cuts them off. Blocks: until then.
  void Shutdown(std::chrono::system_clock::time_point deadline);

 private:
  std::unique_ptr<Core> core_;
};

// Call it after ServerBuilder::BuildAndStart(). Errors: as Context::listen(); kWrongState (the
// server was built before this library was loaded).
Result<std::unique_ptr<Listener>> Listen(::grpc::Server* server,
                                         const ListenerOptions& options = {});

// The caller as it really is: of a bridged call the path and address by which it came, such as
// "shm:pid 4711" or "tcp:127.0.0.1:40120", where context.peer() says nothing of use. Of any other
// call context.peer().
std::string peer(const ::grpc::ServerContextBase& context);

// Who calls, as far as it is proved.
struct Auth {
  bool bridged = false;  // false: the rest is what gRPC says of its own connection
  bool sealed = false;   // nobody else can read the path: shared memory of one user, encryption
  // What gRPC proved of the client on its own connection, by which a bridged client got its token:
  // of TLS such as {"x509_common_name", "worker-7"}. As ::grpc::AuthContext has it.
  std::vector<std::pair<std::string, std::string>> properties;
};
Auth auth(const ::grpc::ServerContextBase& context);

}  // namespace sluice::grpc

#endif  // SLUICE_GRPC_BRIDGE_H_
