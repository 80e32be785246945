// A server without a new line listens where SLUICE_GRPC_LISTEN is set; one with global callbacks of
// its own cannot have both, and calls Listen().
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include <catch2/catch.hpp>
#include <grpcpp/grpcpp.h>

#include <sluice/grpc/bridge.h>

#include "tests/plugins/grpc/service.h"

namespace sluice::test {
namespace {

std::string peer_of_a_call(const std::string& target) {
  auto stub = interop::TestService::NewStub(
      sluice::grpc::CreateChannel(target, ::grpc::InsecureChannelCredentials()));
  ::grpc::ClientContext context;
  interop::SimpleRequest request;
  request.set_fill_peer(true);
  interop::SimpleResponse response;
  const ::grpc::Status status = stub->UnaryCall(&context, request, &response);
  return status.ok() ? response.peer() : status.error_message();
}

class Own final : public ::grpc::Server::GlobalCallbacks {
 public:
  void PreSynchronousRequest(::grpc::ServerContext*) override {}
  void PostSynchronousRequest(::grpc::ServerContext*) override {}
};

}  // namespace

// The variable is read before main(): the build file sets it, or does not.
TEST_CASE("a server without a new line is reached over sluice", "[grpc][auto]") {
  if (std::getenv("SLUICE_GRPC_LISTEN") == nullptr) return;
  InteropServer first(By::kPlain), second(By::kPlain);
  CHECK_THAT(peer_of_a_call(first.target()), Catch::StartsWith("tcp:"));
  CHECK_THAT(peer_of_a_call(second.target()), Catch::StartsWith("tcp:"));
}

TEST_CASE("global callbacks of the program: refused beside the variable, and Listen() works",
          "[grpc][auto]") {
  if (std::getenv("SLUICE_GRPC_LISTEN") != nullptr) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::signal(SIGABRT, SIG_DFL);
      ::grpc::Server::SetGlobalCallbacks(new Own());
      std::_Exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));
    return;
  }
  ::grpc::Server::SetGlobalCallbacks(new Own());
  InteropServer server(By::kTcp);
  CHECK_THAT(peer_of_a_call(server.target()), Catch::StartsWith("tcp:"));
}

}  // namespace sluice::test
