// A server of another process that is killed during a call, and one that takes its place.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include <catch2/catch.hpp>

#include "tests/plugins/grpc/service.h"

namespace sluice::test {
namespace {

// Forked before this process has used gRPC, which does not survive it.
struct Child {
  explicit Child(By by) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      ::close(ends[0]);
      InteropServer server(by);
      const std::string target = server.target() + "\n";
      if (::write(ends[1], target.data(), target.size()) < 0) std::_Exit(1);
      server.server().Wait();
      std::_Exit(0);
    }
    ::close(ends[1]);
    pipe = ends[0];
  }
  ~Child() {
    kill();
    ::close(pipe);
  }
  std::string target() const {
    std::string read;
    for (char c; ::read(pipe, &c, 1) == 1 && c != '\n';) read.push_back(c);
    return read;
  }
  void kill() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = 0;
  }
  pid_t pid;
  int pipe;
};

}  // namespace

TEST_CASE("a server killed during a call ends it with UNAVAILABLE", "[grpc]") {
  Child over_shm(By::kShm), over_tcp(By::kTcp);
  for (Child* child : {&over_shm, &over_tcp}) {
    auto channel =
        sluice::grpc::CreateChannel(child->target(), ::grpc::InsecureChannelCredentials());
    auto stub = interop::TestService::NewStub(channel);
    ::grpc::ClientContext context;
    auto stream = stub->FullDuplexCall(&context);
    interop::StreamingOutputCallRequest request;
    request.add_response_parameters()->set_size(100'000);
    interop::StreamingOutputCallResponse response;
    REQUIRE(stream->Write(request));
    REQUIRE(stream->Read(&response));
    child->kill();
    CHECK_FALSE(stream->Read(&response));
    ::grpc::Status status = stream->Finish();
    CHECK(status.error_code() == ::grpc::StatusCode::UNAVAILABLE);
    CHECK_THAT(status.error_message(), Catch::StartsWith("sluice: "));
    // The next call finds nobody, as by plain gRPC.
    ::grpc::ClientContext again;
    interop::Empty nothing;
    CHECK(stub->EmptyCall(&again, nothing, &nothing).error_code() ==
          ::grpc::StatusCode::UNAVAILABLE);
  }
}

}  // namespace sluice::test
