// Question: what does a large payload cost by the tensor accessor over the gRPC bridge, against
// plain gRPC, gRPC as its experts use it, and a bare TCP program?
//
//   grpc_tensors [ROUNDS] [MIB...]        default: 7 rounds of 1, 16 and 64 MiB
//
// The payload goes to a server in a process of its own, which answers with nothing. Expert gRPC:
// callback API, a ByteBuffer of slices over the program's own memory, nothing parsed; in one
// message, or a stream of chunks of the best size of four. Bare TCP: send() and recv() with socket
// buffers of 4 MiB. Each way's server checks the first and last byte of every payload. In each
// round every way has its turn; figures are the median round with the fastest and the slowest,
// and the processor time of both processes.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <sluice/base/clock.h>
#include <sluice/grpc/bridge.h>

#include "benchmarks/grpc_tensors.grpc.pb.h"
#include "benchmarks/peers/payload.grpc.pb.h"

namespace {

using sluice::benchmarks::Tensors;
using sluice::peers::Payload;

constexpr char kFirst = 'f', kLast = 'l';
constexpr int kSocketBuffer = 4 << 20;

grpc::Status judge(const void* data, size_t length) {
  const char* bytes = static_cast<const char*>(data);
  if (length > 1 && bytes[0] == kFirst && bytes[length - 1] == kLast) return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::DATA_LOSS, "other bytes came");
}

class StringSink final : public Payload::Service {
  grpc::Status Exchange(grpc::ServerContext*, const sluice::peers::Request* request,
                        sluice::peers::Reply*) override {
    return judge(request->data().data(), request->data().size());
  }
};

class TensorSink final : public Tensors::Service {
  grpc::Status Take(grpc::ServerContext*, const sluice::benchmarks::Request* request,
                    sluice::benchmarks::Reply*) override {
    const sluice::Tensor tensor = request->data_tensor();
    return judge(tensor.data(), tensor.size_bytes());
  }
};

// Takes what comes as slices.
class RawSink final : public grpc::CallbackGenericService {
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    Reactor() { StartRead(&message_); }
    void OnReadDone(bool ok) override {
      if (!ok) {
        const bool good = first_ == kFirst && last_ == kLast;
        return Finish(good ? grpc::Status::OK
                           : grpc::Status(grpc::StatusCode::DATA_LOSS, "other bytes came"));
      }
      std::vector<grpc::Slice> slices;
      if (message_.Dump(&slices).ok() && !slices.empty()) {
        if (first_ == 0) first_ = static_cast<char>(*slices.front().begin());
        last_ = static_cast<char>(*(slices.back().end() - 1));
      }
      message_.Clear();
      StartRead(&message_);
    }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer message_;
    char first_ = 0, last_ = 0;
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reactor();
  }
};

struct Targets {
  char shm[64], tcp[64], unix_socket[64];
  int bare_port;
};

bool whole(int fd, bool out, char* data, size_t length) {
  while (length > 0) {
    const ssize_t moved = out ? send(fd, data, length, MSG_NOSIGNAL) : recv(fd, data, length, 0);
    if (moved <= 0) return false;
    data += moved;
    length -= static_cast<size_t>(moved);
  }
  return true;
}

void tune(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof(kSocketBuffer));
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kSocketBuffer, sizeof(kSocketBuffer));
}

// Length, payload; answers with one byte.
void serve_bare(int listening) {
  const int fd = accept(listening, nullptr, nullptr);
  tune(fd);
  std::vector<char> room;
  uint64_t length;
  while (whole(fd, false, reinterpret_cast<char*>(&length), sizeof(length))) {
    room.resize(length);
    if (!whole(fd, false, room.data(), length)) break;
    char answer = judge(room.data(), length).ok() ? 'y' : 'n';
    if (!whole(fd, true, &answer, 1)) break;
  }
  close(fd);
}

int listen_bare(int& port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  tune(fd);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd, 1) != 0) return -1;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  port = ntohs(address.sin_port);
  return fd;
}

int run_server(int pipe) {
  StringSink strings;
  TensorSink tensors;
  RawSink raw;
  Targets targets{};
  std::snprintf(targets.unix_socket, sizeof(targets.unix_socket),
                "unix-abstract:sluice-grpc-tensors-%d", getpid());
  std::vector<std::unique_ptr<grpc::Server>> servers;
  std::vector<std::unique_ptr<sluice::grpc::Listener>> listeners;
  for (const char* address : {"sluice://127.0.0.1:0", "tcp://127.0.0.1:0"}) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    if (servers.empty())
      builder.AddListeningPort(targets.unix_socket, grpc::InsecureServerCredentials());
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(&strings);
    builder.RegisterService(&tensors);
    if (servers.empty()) builder.RegisterCallbackGenericService(&raw);
    char* target = servers.empty() ? targets.shm : targets.tcp;
    servers.push_back(builder.BuildAndStart());
    std::snprintf(target, sizeof(targets.shm), "127.0.0.1:%d", port);
    auto listener = sluice::grpc::Listen(servers.back().get(), {.address = address});
    if (!listener.ok()) return 1;
    listeners.push_back(std::move(*listener));
  }
  const int bare = listen_bare(targets.bare_port);
  if (write(pipe, &targets, sizeof(targets)) != sizeof(targets)) return 1;
  serve_bare(bare);
  servers[0]->Wait();
  return 0;
}

void require(const char* way, const grpc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", way, status.error_message().c_str());
  std::exit(1);
}

// One call of the expert's: slices over `data`, in messages of `chunk` bytes.
class Chunks final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Chunks(grpc::GenericStub& stub, char* data, size_t length, size_t chunk)
      : data_(data), left_(length), chunk_(chunk) {
    grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>& prepare = stub;
    prepare.PrepareBidiStreamingCall(&context_, "/expert/Take", {}, this);
    next();
    StartRead(&answer_);
    StartCall();
  }
  void OnWriteDone(bool ok) override {
    if (ok && left_ > 0) next();
  }
  void OnDone(const grpc::Status& status) override { done_.set_value(status); }
  grpc::Status wait() { return done_.get_future().get(); }

 private:
  void next() {
    const size_t take = std::min(left_, chunk_);
    grpc::Slice slice(data_, take, grpc::Slice::STATIC_SLICE);
    message_ = grpc::ByteBuffer(&slice, 1);
    data_ += take;
    left_ -= take;
    if (left_ > 0) return StartWrite(&message_);
    StartWriteLast(&message_, grpc::WriteOptions());
  }

  grpc::ClientContext context_;
  grpc::ByteBuffer message_, answer_;
  char* data_;
  size_t left_;
  const size_t chunk_;
  std::promise<grpc::Status> done_;
};

struct Way {
  std::string name;
  std::function<void()> call;
  std::vector<double> milliseconds;
  double processor_seconds = 0, bytes = 0;
};

// Seconds of this process and the server: getrusage(2), and fields 14 and 15 of /proc/PID/stat,
// ticks.
double processor_time(pid_t server) {
  rusage mine{};
  getrusage(RUSAGE_SELF, &mine);
  double seconds = static_cast<double>(mine.ru_utime.tv_sec + mine.ru_stime.tv_sec) +
                   1e-6 * static_cast<double>(mine.ru_utime.tv_usec + mine.ru_stime.tv_usec);
  std::ifstream file("/proc/" + std::to_string(server) + "/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  for (int field = 3; fields >> text && field <= 15; ++field)
    if (field >= 14) seconds += std::stod(text) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return seconds;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// All ways, with one payload.
class Client {
 public:
  Client(const Targets& targets, pid_t server) : targets_(targets), server_(server) {
    arguments_.SetMaxReceiveMessageSize(-1);
  }

  bool run(size_t bytes, int rounds) {
    auto room =
        sluice::grpc::allocate(std::vector<int64_t>{static_cast<int64_t>(bytes)}, sluice::uint8);
    if (!room.ok()) return false;
    std::memset(room->data(), 'x', bytes);
    char* data = reinterpret_cast<char*>(room->data());
    data[0] = kFirst;
    data[bytes - 1] = kLast;
    std::vector<Way> ways;
    add_plain(ways, bytes);
    add_expert(ways, data, bytes);
    add_bare(ways, data, bytes);
    sluice::Tensor tensor = std::move(*room).freeze();
    sluice::benchmarks::Request request;
    if (!request.set_data_tensor(tensor).ok()) return false;
    for (const auto& [name, target] :
         {std::pair("accessor shm", targets_.shm), {"accessor tcp", targets_.tcp}}) {
      auto stub = std::make_shared<std::unique_ptr<Tensors::Stub>>(
          Tensors::NewStub(sluice::grpc::CreateCustomChannel(target, insecure_, arguments_)));
      ways.push_back({.name = name,
                      .call =
                          [stub, &request, name = name] {
                            grpc::ClientContext context;
                            sluice::benchmarks::Reply reply;
                            require(name, (*stub)->Take(&context, request, &reply));
                          },
                      .milliseconds = {}});
    }
    measure(ways, bytes, rounds);
    return true;
  }

 private:
  void add_plain(std::vector<Way>& ways, size_t bytes) {
    request_.mutable_data()->assign(bytes, 'x');
    request_.mutable_data()->front() = kFirst;
    request_.mutable_data()->back() = kLast;
    const auto add = [&](const char* name, const std::shared_ptr<grpc::Channel>& channel) {
      auto stub = std::make_shared<std::unique_ptr<Payload::Stub>>(Payload::NewStub(channel));
      ways.push_back({.name = name,
                      .call =
                          [stub, this, name] {
                            grpc::ClientContext context;
                            sluice::peers::Reply reply;
                            require(name, (*stub)->Exchange(&context, request_, &reply));
                          },
                      .milliseconds = {}});
    };
    add("gRPC tcp", grpc::CreateCustomChannel(targets_.tcp, insecure_, arguments_));
    add("gRPC unix", grpc::CreateCustomChannel(targets_.unix_socket, insecure_, arguments_));
    add("bridge shm", sluice::grpc::CreateCustomChannel(targets_.shm, insecure_, arguments_));
    add("bridge tcp", sluice::grpc::CreateCustomChannel(targets_.tcp, insecure_, arguments_));
  }
  void add_expert(std::vector<Way>& ways, char* data, size_t bytes) {
    for (const auto& [name, target] :
         {std::pair("tcp", targets_.shm), {"unix", targets_.unix_socket}}) {
      auto stub = std::make_shared<grpc::GenericStub>(
          grpc::CreateCustomChannel(target, insecure_, arguments_));
      for (size_t chunk : {size_t{64} << 10, size_t{512} << 10, size_t{4} << 20, bytes}) {
        if (chunk > bytes) continue;
        const std::string label = std::string("expert ") + name + " " +
                                  (chunk == bytes ? "whole" : std::to_string(chunk >> 10) + "K");
        ways.push_back({.name = label,
                        .call =
                            [=] {
                              Chunks call(*stub, data, bytes, chunk);
                              require(label.c_str(), call.wait());
                            },
                        .milliseconds = {}});
      }
    }
  }
  void add_bare(std::vector<Way>& ways, char* data, size_t bytes) {
    if (bare_ < 0) {
      bare_ = socket(AF_INET, SOCK_STREAM, 0);
      tune(bare_);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(targets_.bare_port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (connect(bare_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) std::exit(1);
    }
    ways.push_back(
        {.name = "bare tcp",
         .call =
             [this, data, bytes] {
               uint64_t length = bytes;
               char answer = 'n';
               if (!whole(bare_, true, reinterpret_cast<char*>(&length), sizeof(length)) ||
                   !whole(bare_, true, data, bytes) || !whole(bare_, false, &answer, 1) ||
                   answer != 'y')
                 std::exit(1);
             },
         .milliseconds = {}});
  }
  void measure(std::vector<Way>& ways, size_t bytes, int rounds) {
    for (Way& way : ways)
      for (int i = 0; i < 2; ++i) way.call();  // warm
    const int calls = std::max<int>(2, static_cast<int>((size_t{32} << 20) / bytes));
    for (int round = 0; round < rounds; ++round) {
      for (Way& way : ways) {
        const double before = processor_time(server_);
        const sluice::Instant start = sluice::now();
        for (int i = 0; i < calls; ++i) way.call();
        const double took =
            std::chrono::duration<double, std::milli>(sluice::now() - start).count();
        way.milliseconds.push_back(took / calls);
        way.processor_seconds += processor_time(server_) - before;
        way.bytes += static_cast<double>(bytes) * calls;
      }
    }
    const double plain = median(ways[0].milliseconds);
    double bare = 0, expert = 1e9;
    for (const Way& way : ways) {
      if (way.name == "bare tcp") bare = median(way.milliseconds);
      if (way.name.starts_with("expert")) expert = std::min(expert, median(way.milliseconds));
    }
    std::printf("%zu MiB%18s %20s %8s %12s %12s %12s %10s\n", bytes >> 20, "ms", "(min to max)",
                "GB/s", "x plain tcp", "x expert", "x bare tcp", "CPU s/GB");
    for (const Way& way : ways) {
      const double ms = median(way.milliseconds);
      const auto [least, most] =
          std::minmax_element(way.milliseconds.begin(), way.milliseconds.end());
      char range[32];
      std::snprintf(range, sizeof(range), "(%.3f to %.3f)", *least, *most);
      std::printf("%-16s %8.3f %20s %8.2f %12.2f %12.2f %12.2f %10.2f\n", way.name.c_str(), ms,
                  range, static_cast<double>(bytes) / ms / 1e6, plain / ms, expert / ms, bare / ms,
                  way.processor_seconds / way.bytes * 1e9);
    }
    std::fflush(stdout);
  }

  const Targets& targets_;
  const pid_t server_;
  grpc::ChannelArguments arguments_;
  const std::shared_ptr<grpc::ChannelCredentials> insecure_ = grpc::InsecureChannelCredentials();
  sluice::peers::Request request_;
  int bare_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 7;
  std::vector<size_t> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(static_cast<size_t>(std::atoi(argv[i])) << 20);
  if (sizes.empty()) sizes = {size_t{1} << 20, size_t{16} << 20, size_t{64} << 20};
  int ends[2];
  if (pipe(ends) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // also where the client gives up
    _exit(run_server(ends[1]));
  }
  close(ends[1]);
  Targets targets;
  int code = 1;
  if (read(ends[0], &targets, sizeof(targets)) == sizeof(targets)) {
    Client client(targets, child);
    code = 0;
    for (size_t bytes : sizes)
      if (!client.run(bytes, rounds)) code = 1;
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return code;
}
