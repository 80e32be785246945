// Question: what does a unary call cost over the gRPC bridge, against the same stub and message
// over gRPC's own TCP and Unix sockets?
//
//   grpc_bridge [ROUNDS] [LARGEST_MIB]
//
// Requests of each size with an empty reply, synchronous API, server in a process of its own. In
// each round every way has its turn; the figure of a way is its median round. The second line has
// what says more on a busy machine: processor time of both ends, and how often their threads went
// to sleep and were woken, by call.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include <sluice/base/clock.h>
#include <sluice/grpc/bridge.h>

#include "benchmarks/peers/payload.grpc.pb.h"

namespace {

using sluice::peers::Payload;

class Sink final : public Payload::Service {
  grpc::Status Exchange(grpc::ServerContext*, const sluice::peers::Request*,
                        sluice::peers::Reply*) override {
    return grpc::Status::OK;
  }
};

// Two servers, since a server tells of one listener: what clients of each call.
struct Targets {
  char shm[64], tcp[64], unix_socket[64];
};

std::unique_ptr<grpc::Server> serve(Sink& sink, const std::string& unix_socket, int& port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  if (!unix_socket.empty())
    builder.AddListeningPort(unix_socket, grpc::InsecureServerCredentials());
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(&sink);
  return builder.BuildAndStart();
}

int run_server(int pipe) {
  Sink sink;
  Targets targets{};
  const std::string name = "unix-abstract:sluice-grpc-bridge-" + std::to_string(getpid());
  std::snprintf(targets.unix_socket, sizeof(targets.unix_socket), "%s", name.c_str());
  int shm_port = 0, tcp_port = 0;
  auto first = serve(sink, name, shm_port), second = serve(sink, "", tcp_port);
  auto shm = sluice::grpc::Listen(first.get());
  auto tcp = sluice::grpc::Listen(second.get(), {.address = "tcp://127.0.0.1:0"});
  if (!shm.ok() || !tcp.ok()) return 1;
  std::snprintf(targets.shm, sizeof(targets.shm), "127.0.0.1:%d", shm_port);
  std::snprintf(targets.tcp, sizeof(targets.tcp), "127.0.0.1:%d", tcp_port);
  if (write(pipe, &targets, sizeof(targets)) != sizeof(targets)) return 1;
  first->Wait();
  return 0;
}

// Of this process and the server, so far.
struct Work {
  double processor_us = 0;
  double sleeps = 0;
};

struct Way {
  const char* name;
  std::unique_ptr<Payload::Stub> stub;
  std::vector<double> microseconds;
  Work work;
};

double sleeps_of(const std::string& process) {
  double sleeps = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + process + "/task")) {
    std::ifstream status(thread.path() / "status");
    std::string line;
    const std::string kKey = "voluntary_ctxt_switches:";
    while (std::getline(status, line))
      if (line.starts_with(kKey)) sleeps += std::stod(line.substr(kKey.size()));
  }
  return sleeps;
}

Work work_so_far(pid_t server) {
  clockid_t clock = 0;
  timespec own{}, theirs{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
  if (clock_getcpuclockid(server, &clock) == 0) clock_gettime(clock, &theirs);
  return {.processor_us = static_cast<double>(own.tv_sec + theirs.tv_sec) * 1e6 +
                          static_cast<double>(own.tv_nsec + theirs.tv_nsec) / 1e3,
          .sleeps = sleeps_of("self") + sleeps_of(std::to_string(server))};
}

double call(Way& way, const sluice::peers::Request& request, int calls) {
  const sluice::Instant start = sluice::now();
  for (int i = 0; i < calls; ++i) {
    grpc::ClientContext context;
    sluice::peers::Reply reply;
    const grpc::Status status = way.stub->Exchange(&context, request, &reply);
    if (!status.ok()) {
      std::fprintf(stderr, "%s: %s\n", way.name, status.error_message().c_str());
      std::exit(1);
    }
  }
  return std::chrono::duration<double, std::micro>(sluice::now() - start).count() / calls;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int run_client(const Targets& targets, pid_t server, int rounds, size_t largest) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto insecure = grpc::InsecureChannelCredentials();
  std::vector<Way> ways;
  const auto add = [&](const char* name, const std::shared_ptr<grpc::Channel>& channel) {
    ways.push_back({name, Payload::NewStub(channel), {}, {}});
  };
  add("gRPC tcp", grpc::CreateCustomChannel(targets.tcp, insecure, arguments));
  add("gRPC unix", grpc::CreateCustomChannel(targets.unix_socket, insecure, arguments));
  add("bridge shm", sluice::grpc::CreateCustomChannel(targets.shm, insecure, arguments));
  add("bridge tcp", sluice::grpc::CreateCustomChannel(targets.tcp, insecure, arguments));
  std::printf("%12s", "bytes");
  for (const Way& way : ways) std::printf(" %14s", way.name);
  std::printf("   shm/tcp gRPC  tcp/tcp gRPC\n");
  for (size_t bytes : {size_t{0}, size_t{1} << 10, size_t{64} << 10, size_t{1} << 20,
                       size_t{4} << 20, size_t{16} << 20, size_t{64} << 20}) {
    if (bytes > largest) break;
    sluice::peers::Request request;
    request.mutable_data()->assign(bytes, 'x');
    const int calls = bytes <= 64 << 10 ? 200 : bytes <= 4 << 20 ? 20 : 4;
    for (Way& way : ways) {
      way.microseconds.clear();
      way.work = {};
      call(way, request, 2);  // warm
    }
    for (int round = 0; round < rounds; ++round)
      for (Way& way : ways) {
        const Work before = work_so_far(server);
        way.microseconds.push_back(call(way, request, calls));
        const Work after = work_so_far(server);
        way.work.processor_us += (after.processor_us - before.processor_us) / calls / rounds;
        way.work.sleeps += (after.sleeps - before.sleeps) / calls / rounds;
      }
    std::printf("%12zu", bytes);
    for (const Way& way : ways) std::printf(" %11.1f us", median(way.microseconds));
    const double plain = median(ways[0].microseconds);
    std::printf("   %9.2f     %9.2f\n", plain / median(ways[2].microseconds),
                plain / median(ways[3].microseconds));
    std::printf("%12s", "");
    for (const Way& way : ways)
      std::printf(" %5.0f us %5.1f", way.work.processor_us, way.work.sleeps);
    std::printf("   processor time, sleeps\n");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  const size_t largest = static_cast<size_t>(argc > 2 ? std::atoi(argv[2]) : 64) << 20;
  int ends[2];
  if (pipe(ends) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) _exit(run_server(ends[1]));
  close(ends[1]);
  Targets targets;
  int code = 1;
  if (read(ends[0], &targets, sizeof(targets)) == sizeof(targets))
    code = run_client(targets, child, std::max(rounds, 1), largest);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return code;
}
