// The program of README.md: a test compares the two.
#include <sluice/sluice.h>

#include <cstdio>
#include <string>
#include <thread>

using namespace std::chrono_literals;

// Publishes one tensor at the address it listens at.
sluice::Result<void> serve(sluice::Context& context, sluice::Listener& listener) {
  sluice::Instant deadline = sluice::from_now(10s);
  SLUICE_TRY(sluice::Buffer weights, context.allocate({1024, 1024}, sluice::float32));
  weights.as<float>()[7] = 3;
  SLUICE_TRY(sluice::Endpoint worker, listener.accept(deadline));
  sluice::Exchange exchange{context};
  SLUICE_RETURN_IF_ERROR(exchange.add(worker));
  SLUICE_TRY(auto publication,
             exchange.publish({"fc6/weight", 1}, std::move(weights).freeze(), {.readers = 1}));
  return context.run_until(publication, deadline).status();  // until the worker has released it
}

// Fetches it: a view of the server's memory when both are on one machine.
sluice::Result<void> work(sluice::Context& context, const std::string& address) {
  sluice::Instant deadline = sluice::from_now(10s);
  SLUICE_TRY(sluice::Endpoint server, context.connect(address, {.require = sluice::zero_copy}));
  sluice::Exchange exchange{context};
  SLUICE_RETURN_IF_ERROR(exchange.add(server));
  SLUICE_TRY(auto delivery, context.run_until(exchange.fetch({"fc6/weight", 1}, deadline)));
  std::printf("%g by %s, copied %llu bytes\n", delivery.value.as<float>()[7],
              std::string(sluice::to_string(delivery.receipt.path)).c_str(),
              static_cast<unsigned long long>(delivery.receipt.copied_bytes +
                                              delivery.receipt.kernel_copied_bytes));
  delivery.value = sluice::Tensor();
  return server.close(deadline);
}

int main() {
  auto server = sluice::open_context();
  auto worker = sluice::open_context();
  if (!server.ok() || !worker.ok()) return 1;
  auto listener = (*server)->listen("sluice://127.0.0.1:0");
  if (!listener.ok()) return 1;
  sluice::Result<void> served;
  std::thread thread([&] { served = serve(**server, *listener); });
  sluice::Result<void> worked = work(**worker, listener->address());
  thread.join();
  for (const auto& result : {served.status(), worked.status()}) {
    if (!result.ok()) std::fprintf(stderr, "%s\n", result.to_string().c_str());
  }
  return served.ok() && worked.ok() ? 0 : 1;
}
