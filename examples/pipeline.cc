// Three processes: a source publishes vectors, a stage doubles them, a sink adds them up.
// Every stage fetches step + 1 before it works on step, so nobody waits for a round trip.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>

#include <sluice/sluice.h>

namespace {

using namespace std::chrono_literals;

constexpr uint64_t kSteps = 100;
constexpr int64_t kLength = 1 << 16;

sluice::Instant soon() { return sluice::from_now(20s); }

sluice::Result<sluice::Endpoint> connect_soon(sluice::Context& context,
                                              const std::string& address) {
  // The stage before may not listen yet.
  sluice::Instant limit = soon();
  while (true) {
    auto endpoint = context.connect(address);
    if (endpoint.ok() || context.refresh_now() >= limit ||
        endpoint.code() != sluice::Code::kUnreachable)
      return endpoint;
  }
}

sluice::Result<void> source(const std::string& listen_at) {
  SLUICE_TRY(auto context, sluice::open_context());
  SLUICE_TRY(sluice::Listener listener, context->listen(listen_at));
  SLUICE_TRY(sluice::Endpoint next, listener.accept(soon()));
  sluice::Exchange exchange{*context};
  SLUICE_RETURN_IF_ERROR(exchange.add(next));
  for (uint64_t step = 0; step < kSteps; ++step) {
    SLUICE_TRY(sluice::Buffer buffer, context->allocate({kLength}, sluice::float32));
    std::ranges::fill(buffer.as<float>(), static_cast<float>(step));
    SLUICE_TRY(auto publication, exchange.publish({"raw", step}, std::move(buffer).freeze()));
    SLUICE_RETURN_IF_ERROR(
        context->run_until(publication, soon()));  // one in flight: the sink sets the pace
  }
  return next.close(soon());
}

sluice::Result<void> doubler(const std::string& from, const std::string& listen_at) {
  SLUICE_TRY(auto context, sluice::open_context());
  SLUICE_TRY(sluice::Listener listener, context->listen(listen_at));
  SLUICE_TRY(sluice::Endpoint before, connect_soon(*context, from));
  SLUICE_TRY(sluice::Endpoint after_us, listener.accept(soon()));
  sluice::Exchange exchange{*context};
  SLUICE_RETURN_IF_ERROR(exchange.add(before));
  SLUICE_RETURN_IF_ERROR(exchange.add(after_us));
  sluice::FetchOptions upstream{.from = &before};
  auto next = exchange.fetch({"raw", 0}, soon(), upstream);
  for (uint64_t step = 0; step < kSteps; ++step) {
    SLUICE_TRY(auto in, context->run_until(next));
    if (step + 1 < kSteps) next = exchange.fetch({"raw", step + 1}, soon(), upstream);
    SLUICE_TRY(sluice::Buffer out, context->allocate({kLength}, sluice::float32));
    std::ranges::transform(in.value.as<float>(), out.as<float>().begin(),
                           [](float v) { return 2 * v; });
    in.value = sluice::Tensor();
    SLUICE_TRY(auto publication, exchange.publish({"doubled", step}, std::move(out).freeze()));
    SLUICE_RETURN_IF_ERROR(context->run_until(publication, soon()));
  }
  SLUICE_RETURN_IF_ERROR(before.close(soon()));
  return after_us.close(soon());
}

sluice::Result<void> sink(const std::string& from) {
  SLUICE_TRY(auto context, sluice::open_context());
  SLUICE_TRY(sluice::Endpoint before, connect_soon(*context, from));
  sluice::Exchange exchange{*context};
  SLUICE_RETURN_IF_ERROR(exchange.add(before));
  double sum = 0;
  uint64_t copied = 0;
  for (uint64_t step = 0; step < kSteps; ++step) {
    SLUICE_TRY(auto in, context->run_until(exchange.fetch({"doubled", step}, soon())));
    for (float v : in.value.as<float>()) sum += v;
    copied += in.receipt.copied_bytes + in.receipt.kernel_copied_bytes;
  }
  double expected = 2.0 * kLength * (kSteps * (kSteps - 1) / 2);
  std::printf("sum %.0f (expected %.0f), bytes copied on the way into the sink: %llu\n", sum,
              expected, static_cast<unsigned long long>(copied));
  (void)before.close(soon());
  if (sum != expected)
    return sluice::Status(sluice::Code::kCorrupt, sluice::Scope::kOperation, "examples/pipeline");
  return {};
}

pid_t start(const char* name, auto stage) {
  pid_t pid = fork();  // before any context exists
  if (pid != 0) return pid;
  sluice::Result<void> result = stage();
  if (!result.ok()) std::fprintf(stderr, "%s: %s\n", name, result.status().to_string().c_str());
  std::fflush(stdout);
  _exit(result.ok() ? 0 : 1);
}

}  // namespace

int main() {
  // Not the process id: containers that share a network may each have a process 12.
  std::string name = "shm:pipeline-" + std::to_string(std::random_device()());
  pid_t stages[] = {start("source", [&] { return source(name + ".1"); }),
                    start("doubler", [&] { return doubler(name + ".1", name + ".2"); }),
                    start("sink", [&] { return sink(name + ".2"); })};
  int failed = 0;
  for (pid_t pid : stages) {
    int status = 0;
    waitpid(pid, &status, 0);
    failed |= status;
  }
  return failed != 0;
}
