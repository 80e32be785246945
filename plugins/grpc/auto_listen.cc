// A server without a new line: where SLUICE_GRPC_LISTEN is set, each server that the program builds
// gets a listener. Takes gRPC's one place for global callbacks: a program with its own uses
// Listen().
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/server.h>

#include <sluice/base/log.h>
#include <sluice/base/settings.h>
#include <sluice/grpc/bridge.h>
#include <sluice/grpc/discovery.h>

namespace sluice::grpc {
namespace {

// The server that this thread builds: between the callback and the end of BuildAndStart().
thread_local ::grpc::Server* starting = nullptr;

class Callbacks final : public ::grpc::Server::GlobalCallbacks {
 public:
  void PreSynchronousRequest(::grpc::ServerContext*) override {}
  void PostSynchronousRequest(::grpc::ServerContext*) override {}
  void PreServerStart(::grpc::Server* server) override { starting = server; }
};

void listen(const ListenerOptions& options) {
  // To the end of the process: whoever wants a listener to end before its server calls Listen().
  static std::mutex mutex;
  static auto* listeners = new std::vector<std::unique_ptr<Listener>>();
  ::grpc::Server* server = std::exchange(starting, nullptr);
  if (server == nullptr) return;
  Result<std::unique_ptr<Listener>> listener = Listen(server, options);
  if (!listener.ok()) {
    return log(LogLevel::kWarning,
               "grpc: no listener for SLUICE_GRPC_LISTEN: " + listener.status().to_string());
  }
  log(LogLevel::kInfo, "grpc: listening at " + (*listener)->address());
  std::lock_guard lock(mutex);
  listeners->push_back(std::move(*listener));
}

const bool registered = [] {
  const std::string address = setting_text("SLUICE_GRPC_LISTEN").value_or("");
  if (address.empty() || switched_off()) return false;
  ListenerOptions options;
  if (address != "1") options.address = address;
  ::grpc::Server::SetGlobalCallbacks(new Callbacks());
  when_built() = [options] { listen(options); };
  return true;
}();

}  // namespace
}  // namespace sluice::grpc

// Whoever links a static library names it to the linker, or leaves this file out.
extern "C" bool sluice_grpc_auto_listen() { return sluice::grpc::registered; }
