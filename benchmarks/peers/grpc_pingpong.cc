// Question: what does a unary gRPC call cost one way at 64 B, and how fast does
// it pull a large reply that is copied into preallocated memory?
//
// --mode tcp, unix: echo of `--size` bytes, figure one_way_ns (half a call).
// --mode tcp_pull, unix_pull: empty request, reply of `--size` bytes, figure seconds.
// Synchronous API, insecure credentials, default threads: what a user starts with.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/peers/payload.grpc.pb.h"

namespace bare {
namespace {

namespace peers = sluice::peers;

// Shared by the two processes. `port` is 1 for a Unix socket, which has none.
struct Meeting {
  std::atomic<int> port{0};
  std::atomic<bool> done{false};
};

bool over_unix(const Options& options) { return options.mode.starts_with("unix"); }
bool is_pull(const Options& options) { return options.mode.ends_with("pull"); }

class PayloadService final : public peers::Payload::Service {
 public:
  explicit PayloadService(const Options& options) : options_(options) {
    pattern_.resize(options.size);
    fill_pattern(pattern_.data(), pattern_.size(), 1);
    if (options.corrupt) flip_one_bit(pattern_.data(), pattern_.size());
  }

  grpc::Status Exchange(grpc::ServerContext*, const peers::Request* request,
                        peers::Reply* reply) override {
    burn_ns(options_.slow_ns);
    if (request->reply_bytes() != 0) {
      reply->set_data(pattern_.data(), std::min<size_t>(request->reply_bytes(), pattern_.size()));
      return grpc::Status::OK;
    }
    reply->set_data(request->data());
    if (options_.corrupt) flip_one_bit(reply->mutable_data()->data(), reply->data().size());
    return grpc::Status::OK;
  }

 private:
  const Options& options_;
  std::string pattern_;
};

std::string unix_address(pid_t owner) {
  return "unix-abstract:sluice-grpc-pingpong-" + std::to_string(owner);
}

int serve(const Options& options, Meeting& meeting) {
  PayloadService service(options);
  grpc::ServerBuilder builder;
  builder.SetMaxSendMessageSize(-1);
  int port = 1;
  if (over_unix(options))
    builder.AddListeningPort(unix_address(getppid()), grpc::InsecureServerCredentials());
  else
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return kExitFailed;
  meeting.port.store(port);
  while (!meeting.done.load()) usleep(1000);
  server->Shutdown();
  return 0;
}

std::string server_address(const Options& options, Meeting& meeting) {
  while (meeting.port.load() == 0) usleep(1000);
  if (over_unix(options)) return unix_address(getpid());
  return "127.0.0.1:" + std::to_string(meeting.port.load());
}

int finish(const Options& options, Samples& samples, double total_ns, uint64_t wrong) {
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong replies");
  samples.sort();
  const double bytes = static_cast<double>(options.iterations * options.size);
  return JsonLine(options)
      .raw(is_pull(options) ? "seconds" : "one_way_ns", samples.json())
      .number("bytes_per_second", (is_pull(options) ? 1 : 2) * bytes / (total_ns * 1e-9))
      .number("receiver_cpu_seconds",
              process_cpu_seconds())  // this side; the server's is not known yet
      .print_verified();
}

// Calls before the timed ones: connection, first allocations.
constexpr uint64_t kWarmUpCalls = 20;

int measure(const Options& options, Meeting& meeting) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto channel = grpc::CreateCustomChannel(server_address(options, meeting),
                                                 grpc::InsecureChannelCredentials(), arguments);
  const auto stub = peers::Payload::NewStub(channel);
  auto* placed = static_cast<unsigned char*>(map_private(options.size));
  const uint64_t warm_up = is_pull(options) ? 1 : kWarmUpCalls;
  Samples samples;
  double total_ns = 0;
  uint64_t wrong = 0;
  peers::Request request;
  peers::Reply reply;
  for (uint64_t i = 0; i < warm_up + options.iterations; ++i) {
    const uint32_t seed = is_pull(options) ? 1 : static_cast<uint32_t>(i);
    if (is_pull(options)) {
      request.set_reply_bytes(options.size);
    } else {
      request.mutable_data()->resize(options.size);
      fill_pattern(request.mutable_data()->data(), options.size, seed);
    }
    grpc::ClientContext context;
    const uint64_t start = now_ns();
    const grpc::Status status = stub->Exchange(&context, request, &reply);
    if (status.ok() && reply.data().size() == options.size)
      std::memcpy(placed, reply.data().data(), options.size);
    const auto took = static_cast<double>(now_ns() - start);
    if (!status.ok()) {
      fprintf(stderr, "grpc_pingpong: %s\n", status.error_message().c_str());
      return kExitFailed;
    }
    wrong += count_mismatches(placed, options.size, seed) != 0 ? 1 : 0;
    std::memset(placed, 0, options.size);
    if (i < warm_up) continue;
    samples.add(is_pull(options) ? took * 1e-9 : took / 2);
    total_ns += took;
  }
  meeting.done.store(true);
  return finish(options, samples, total_ns, wrong);
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "grpc_pingpong";
  options.modes = {"tcp", "unix", "tcp_pull", "unix_pull"};
  options.mode = "tcp";
  options.iterations = 2000;
  bare::parse_or_exit(options, argc, argv);
  auto* meeting = new (bare::map_shared(sizeof(bare::Meeting))) bare::Meeting;
  return bare::run_pair(
      options, [&](bare::PeerReport&) { return bare::serve(options, *meeting); },
      [&](bare::PeerReport&) { return bare::measure(options, *meeting); });
}
