// Question: what does a unary call cost over the gRPC bridge, against the same stub and message
// over gRPC's own TCP and Unix sockets?
//
//   grpc_bridge [ROUNDS] [LARGEST_MIB] [WAY]
//
// WAY, such as "bridge shm", leaves only that one besides gRPC's TCP.
//
// Requests of each size with an empty reply, synchronous API, server in a process of its own. In
// each round every way has its turn; the figure of a way is its median round. The second line has
// what a busy machine changes less: processor time of both ends by call.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

struct Way {
  const char* name;
  std::unique_ptr<Payload::Stub> stub;
  std::vector<double> microseconds;
  double processor_us;  // of both ends, by call
};

// Of this process and the server, so far.
double processor_time(pid_t server) {
  clockid_t clock = 0;
  timespec own{}, theirs{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
  if (clock_getcpuclockid(server, &clock) == 0) clock_gettime(clock, &theirs);
  return static_cast<double>(own.tv_sec + theirs.tv_sec) * 1e6 +
         static_cast<double>(own.tv_nsec + theirs.tv_nsec) / 1e3;
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

struct Question {
  int rounds;
  size_t largest;
  std::string way;  // empty: all
};

int run_client(const Targets& targets, pid_t server, const Question& question) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto insecure = grpc::InsecureChannelCredentials();
  std::vector<Way> ways;
  const auto add = [&](const char* name, const std::shared_ptr<grpc::Channel>& channel) {
    if (!ways.empty() && !question.way.empty() && question.way != name) return;
    ways.push_back({name, Payload::NewStub(channel), {}, 0});
  };
  add("gRPC tcp", grpc::CreateCustomChannel(targets.tcp, insecure, arguments));
  add("gRPC unix", grpc::CreateCustomChannel(targets.unix_socket, insecure, arguments));
  add("bridge shm", sluice::grpc::CreateCustomChannel(targets.shm, insecure, arguments));
  add("bridge tcp", sluice::grpc::CreateCustomChannel(targets.tcp, insecure, arguments));
  const int rounds = question.rounds;
  std::printf("%12s", "bytes");
  for (const Way& way : ways) std::printf(" %14s", way.name);
  for (size_t i = 1; i < ways.size(); ++i) std::printf("   gRPC tcp / %s", ways[i].name);
  std::printf("\n");
  for (size_t bytes : {size_t{0}, size_t{1} << 10, size_t{64} << 10, size_t{1} << 20,
                       size_t{4} << 20, size_t{16} << 20, size_t{64} << 20}) {
    if (bytes > question.largest) break;
    sluice::peers::Request request;
    request.mutable_data()->assign(bytes, 'x');
    const int calls = bytes <= 64 << 10 ? 200 : bytes <= 4 << 20 ? 20 : 4;
    for (Way& way : ways) {
      way.microseconds.clear();
      way.processor_us = 0;
      call(way, request, 2);  // warm
    }
    for (int round = 0; round < rounds; ++round)
      for (Way& way : ways) {
        const double before = processor_time(server);
        way.microseconds.push_back(call(way, request, calls));
        way.processor_us += (processor_time(server) - before) / calls / rounds;
      }
    std::printf("%12zu", bytes);
    for (const Way& way : ways) std::printf(" %11.1f us", median(way.microseconds));
    const double plain = median(ways[0].microseconds);
    for (size_t i = 1; i < ways.size(); ++i)
      std::printf("   %*.2f", static_cast<int>(std::strlen(ways[i].name)) + 11,
                  plain / median(ways[i].microseconds));
    std::printf("\n");
    std::printf("%12s", "");
    for (const Way& way : ways) std::printf(" %11.1f us", way.processor_us);
    std::printf("   processor time\n");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Question question{.rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 7, 1),
                          .largest = static_cast<size_t>(argc > 2 ? std::atoi(argv[2]) : 64) << 20,
                          .way = argc > 3 ? argv[3] : ""};
  int ends[2];
  if (pipe(ends) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) _exit(run_server(ends[1]));
  close(ends[1]);
  Targets targets;
  int code = 1;
  if (read(ends[0], &targets, sizeof(targets)) == sizeof(targets))
    code = run_client(targets, child, question);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return code;
}
