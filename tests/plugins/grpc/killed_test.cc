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
  // A successor starts its server when it is told at which port.
  explicit Child(By by, bool successor = false) {
    int ends[2], told[2];
    REQUIRE(::pipe(ends) == 0);
    REQUIRE(::pipe(told) == 0);
    pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      ::close(ends[0]);
      ::close(told[1]);
      int port = 0;
      if (successor && ::read(told[0], &port, sizeof(port)) != sizeof(port)) std::_Exit(1);
      InteropServer server(by, -1, port);
      const std::string target = server.target() + "\n";
      if (::write(ends[1], target.data(), target.size()) < 0) std::_Exit(1);
      server.server().Wait();
      std::_Exit(0);
    }
    ::close(ends[1]);
    ::close(told[0]);
    pipe = ends[0];
    tell = told[1];
  }
  ~Child() {
    kill();
    ::close(pipe);
    ::close(tell);
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
  int pipe, tell;
};

}  // namespace

TEST_CASE("a server killed during a call ends it with UNAVAILABLE", "[grpc]") {
  Child over_shm(By::kShm), over_tcp(By::kTcp), next(By::kShm, true);
  std::string target;
  for (Child* child : {&over_shm, &over_tcp}) {
    auto channel =
        sluice::grpc::CreateChannel(target = child->target(), ::grpc::InsecureChannelCredentials());
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
    interop::Empty nothing;
    {
      ::grpc::ClientContext again;
      CHECK(stub->EmptyCall(&again, nothing, &nothing).error_code() ==
            ::grpc::StatusCode::UNAVAILABLE);
    }
    if (child != &over_tcp) continue;
    // The same channel finds the server that takes its place, and the bridge that it has.
    const int port = std::stoi(target.substr(target.rfind(':') + 1));
    REQUIRE(::write(next.tell, &port, sizeof(port)) == sizeof(port));
    CHECK(next.target() == target);
    const auto late = std::chrono::system_clock::now() + std::chrono::seconds(30);
    interop::SimpleResponse found;
    while (!found.peer().starts_with("shm:") && std::chrono::system_clock::now() < late) {
      ::grpc::ClientContext waiting;
      waiting.set_wait_for_ready(true);
      waiting.set_deadline(late);
      interop::SimpleRequest who;
      who.set_fill_peer(true);
      CHECK(stub->UnaryCall(&waiting, who, &found).ok());
    }
    CHECK_THAT(found.peer(), Catch::StartsWith("shm:"));
  }
}

}  // namespace sluice::test
