// Question: how long does it take from the start of a process until its first operation is
// complete, with default options? It opens a context, connects to a server that is there, and sends
// a message of 64 B, which is complete when it is in the receiver's buffer.
//
// --mode shm, tcp: that path. --mode sluice: sluice://, which chooses one by itself.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <sluice/sluice.h>

#include "benchmarks/bare/starts.h"

namespace {

using namespace sluice;

constexpr int64_t kMessage = 64;
constexpr std::byte kFirst{0x5a};

Instant soon() { return from_now(std::chrono::seconds(10)); }

Result<void> send_first(const std::string& address) {
  SLUICE_TRY(auto context, open_context());
  SLUICE_TRY(Endpoint server, context->connect(address));
  SLUICE_TRY(Buffer message, context->allocate({kMessage}, uint8));
  std::memset(message.data(), static_cast<int>(kFirst), kMessage);
  SLUICE_RETURN_IF_ERROR(server.send_and_wait(1, std::move(message).freeze(), soon()));
  bare::first_operation_done();
  return server.close(soon());
}

Result<void> serve_all(const bare::Options& options, int told) {
  const std::string& mode = options.mode;
  SLUICE_TRY(auto context, open_context());
  const std::string asked =
      mode == "shm" ? "shm:first-operation-" + std::to_string(::getpid()) : mode + "://127.0.0.1:0";
  SLUICE_TRY(Listener listener, context->listen(asked));
  const std::string address = listener.address();
  if (::write(told, address.data(), address.size()) < 0) std::perror("write");
  for (;;) {
    SLUICE_TRY(Endpoint peer, listener.accept(from_now(std::chrono::seconds(60))));
    SLUICE_TRY(Buffer room, context->allocate({kMessage}, uint8));
    SLUICE_TRY(auto received, peer.receive_and_wait({.tag = 1}, std::move(room), soon()));
    if (options.corrupt) received.buffer.data()[kMessage / 2] ^= std::byte{0x10};
    for (std::byte byte : received.buffer.bytes()) {
      if (byte != kFirst)
        return Status(Code::kCorrupt, Scope::kOperation, "first_operation",
                      "another message came than was sent");
    }
    (void)context->wait_until([&] { return peer.state() == EndpointState::kClosed; }, soon());
  }
}

int ended(const char* who, const Result<void>& result) {
  if (result.ok()) return 0;
  std::fprintf(stderr, "first_operation: %s: %s\n", who, result.status().to_string().c_str());
  return bare::kExitFailed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == bare::kStarted)
    return ended("the started process", send_first(argv[2]));
  bare::Options options;
  options.name = "first_operation";
  options.iterations = 40;
  options.modes = {"shm", "tcp", "sluice"};
  options.mode = "shm";
  bare::parse_or_exit(options, argc, argv);
  return bare::measure_starts(
      options, [&](int told) { return ended("the server", serve_all(options, told)); });
}
