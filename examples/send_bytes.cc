// Two processes, one message: the smallest use of an endpoint. The parent listens at
// sluice://127.0.0.1, the child connects; the path is chosen by itself.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include <sluice/sluice.h>

namespace {

constexpr sluice::Tag kGreeting = 1;

sluice::Result<void> child(const std::string& address) {
  SLUICE_TRY(auto context, sluice::open_context());
  SLUICE_TRY(sluice::Endpoint parent, context->connect(address));
  std::string text = "hello from process " + std::to_string(getpid());
  SLUICE_TRY(sluice::Buffer buffer,
             context->allocate({static_cast<int64_t>(text.size())}, sluice::uint8));
  std::memcpy(buffer.data(), text.data(), text.size());
  SLUICE_TRY(sluice::Receipt receipt,
             parent.send_and_wait(kGreeting, std::move(buffer).freeze(),
                                  sluice::from_now(std::chrono::seconds(5))));
  std::printf("child: %llu bytes are in the parent's memory, by %s\n",
              static_cast<unsigned long long>(receipt.bytes),
              std::string(sluice::to_string(receipt.path)).c_str());
  return parent.close(sluice::from_now(std::chrono::seconds(2)));
}

sluice::Result<void> parent(int address_pipe) {
  SLUICE_TRY(auto context, sluice::open_context());
  SLUICE_TRY(sluice::Listener listener, context->listen("sluice://127.0.0.1:0"));
  std::string address = listener.address();
  if (write(address_pipe, address.data(), address.size()) < 0) std::perror("write");
  close(address_pipe);
  sluice::Instant deadline = sluice::from_now(std::chrono::seconds(10));
  SLUICE_TRY(sluice::Endpoint peer, listener.accept(deadline));
  SLUICE_TRY(sluice::Buffer room, context->allocate({1024}, sluice::uint8));
  SLUICE_TRY(auto received, peer.receive_and_wait({kGreeting}, std::move(room), deadline));
  std::string greeting(reinterpret_cast<const char*>(received.buffer.data()),
                       received.receipt.bytes);
  std::printf("parent: \"%s\"\n", greeting.c_str());
  std::printf("parent: the path is %s\n", peer.info().reason.c_str());
  // The child says goodbye; its close is answered by our progress.
  (void)context->wait_until([&] { return peer.state() == sluice::EndpointState::kClosed; },
                            deadline);
  return {};
}

int report(const char* who, const sluice::Result<void>& result) {
  if (result.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", who, result.status().to_string().c_str());
  return 1;
}

}  // namespace

int main() {
  std::fflush(stdout);
  int ends[2];
  if (pipe(ends) != 0) return 1;
  pid_t pid = fork();  // before any context exists
  if (pid == 0) {
    close(ends[1]);
    char address[256] = {};
    ssize_t length = read(ends[0], address, sizeof(address) - 1);
    return length > 0 ? report("child", child(std::string(address, static_cast<size_t>(length))))
                      : 1;
  }
  close(ends[0]);
  int failed = report("parent", parent(ends[1]));
  int status = 0;
  waitpid(pid, &status, 0);
  return failed != 0 || status != 0;
}
