// One server that publishes for ever, clients that fetch each step, one of them killed in the
// middle and started again. The supervisor opens no context, so that it may fork whenever it likes.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <sluice/sluice.h>

namespace {

using namespace std::chrono_literals;

constexpr int kClients = 3;
constexpr uint64_t kSteps = 40;  // that each client fetches
constexpr sluice::Tag kFirstStep = 1;

volatile sig_atomic_t stopped = 0;

sluice::Instant soon() { return sluice::from_now(20s); }

// Tells who has come the next step that it can fetch.
sluice::Status welcome(sluice::Context& context, sluice::Exchange& exchange,
                       sluice::Endpoint& client, uint64_t step) {
  SLUICE_RETURN_IF_ERROR(exchange.add(client));
  SLUICE_TRY(sluice::Buffer note, context.allocate({sizeof(step)}, sluice::uint8));
  std::memcpy(note.data(), &step, sizeof(step));
  return client.send(kFirstStep, std::move(note).freeze(), {.deadline = soon()}).status();
}

sluice::Result<void> serve(int address_pipe) {
  SLUICE_TRY(auto context, sluice::open_context());
  SLUICE_TRY(sluice::Listener listener,
             context->listen("sluice://127.0.0.1:0", {.max_connections = 100}));
  const std::string address = listener.address();
  if (write(address_pipe, address.data(), address.size()) < 0) std::perror("write");
  close(address_pipe);
  sluice::Exchange exchange{*context};
  std::vector<sluice::Endpoint> clients;
  for (uint64_t step = 0; stopped == 0; ++step) {
    SLUICE_TRY(sluice::Buffer weights, context->allocate({1 << 16}, sluice::float32));
    std::ranges::fill(weights.as<float>(), static_cast<float>(step));
    SLUICE_RETURN_IF_ERROR(exchange.publish({"weights", step}, std::move(weights).freeze(),
                                            {.readers = sluice::until_retired, .keep_steps = 16}));
    // Until the next step is due: who comes is taken, who has gone is forgotten.
    const sluice::Instant next = sluice::from_now(2ms);
    while (context->refresh_now() < next) {
      if (auto come = listener.try_accept(); come.ok()) {
        clients.push_back(std::move(come).value());
        sluice::Status told = welcome(*context, exchange, clients.back(), step + 1);
        if (!told.ok())
          std::fprintf(stderr, "server: a client went at once: %s\n", told.to_string().c_str());
      }
      (void)context->wait(next);
      std::erase_if(clients, [](const sluice::Endpoint& client) {
        return client.state() == sluice::EndpointState::kClosed;
      });
    }
  }
  std::printf("server: stopped with %zu clients left\n", clients.size());
  return {};
}

sluice::Result<void> work(int number, bool again, const std::string& address) {
  SLUICE_TRY(auto context, sluice::open_context());
  SLUICE_TRY(sluice::Endpoint server, context->connect(address));
  sluice::Exchange exchange{*context};
  SLUICE_RETURN_IF_ERROR(exchange.add(server));
  SLUICE_TRY(sluice::Buffer room, context->allocate({sizeof(uint64_t)}, sluice::uint8));
  SLUICE_TRY(auto note, server.receive_and_wait({.tag = kFirstStep}, std::move(room), soon()));
  uint64_t step;
  std::memcpy(&step, note.buffer.data(), sizeof(step));
  for (uint64_t fetched = 0; fetched < kSteps; ++fetched, ++step) {
    auto weights = context->run_until(exchange.fetch({"weights", step}, soon()), soon());
    if (weights.code() == sluice::Code::kWrongState &&
        server.state() == sluice::EndpointState::kConnected) {
      step += 8;  // we were slow: that step is retired
      continue;
    }
    SLUICE_RETURN_IF_ERROR(weights);
    if (weights->value.as<float>()[77] != static_cast<float>(step))
      return sluice::Status(sluice::Code::kCorrupt, sluice::Scope::kOperation,
                            "examples/many_clients");
    // The first client dies here the first time, with the view in its hands.
    if (number == 0 && !again && fetched >= kSteps / 2) raise(SIGKILL);
  }
  std::printf("client %d: %llu steps%s\n", number, static_cast<unsigned long long>(kSteps),
              again ? ", in its second life" : "");
  return server.close(soon());
}

int report(const char* who, const sluice::Result<void>& result) {
  if (!result.ok()) std::fprintf(stderr, "%s: %s\n", who, result.status().to_string().c_str());
  std::fflush(stdout);
  return result.ok() ? 0 : 1;
}

pid_t start_client(int number, bool again, const std::string& address) {
  const pid_t pid = fork();
  if (pid == 0) _exit(report("client", work(number, again, address)));
  return pid;
}

}  // namespace

int main() {
  int ends[2];
  if (pipe(ends) != 0) return 1;
  const pid_t server = fork();
  if (server == 0) {
    signal(SIGTERM, [](int) { stopped = 1; });
    _exit(report("server", serve(ends[1])));
  }
  close(ends[1]);
  char address[256] = {};
  if (read(ends[0], address, sizeof(address) - 1) <= 0) return 1;
  std::vector<pid_t> clients;
  for (int number = 0; number < kClients; ++number)
    clients.push_back(start_client(number, false, address));
  int failed = 0, left = kClients, status = 0;
  while (left > 0) {
    const pid_t ended = waitpid(-1, &status, 0);
    if (ended == clients[0] && WIFSIGNALED(status)) {
      std::printf("supervisor: client 0 was killed; it is started again\n");
      std::fflush(stdout);
      clients[0] = start_client(0, true, address);
      continue;
    }
    failed += status != 0 ? 1 : 0;
    if (ended == server) return 1;
    --left;
  }
  kill(server, SIGTERM);
  if (waitpid(server, &status, 0) != server || status != 0) ++failed;
  return failed != 0 ? 1 : 0;
}
