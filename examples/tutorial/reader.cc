// Takes step after step; connects again when the publisher has gone.
#include <sluice/sluice.h>

#include <cstdio>
#include <cstdlib>
#include <string>

using namespace std::chrono_literals;

sluice::Instant soon() { return sluice::from_now(5s); }

// Until `left` is 0 or the connection ends.
sluice::Result<void> fetch(sluice::Context& context, const char* address, int& left) {
  SLUICE_TRY(sluice::Endpoint publisher, context.connect(address));
  sluice::Exchange exchange{context};
  SLUICE_RETURN_IF_ERROR(exchange.add(publisher));
  // From the newest step on, and one step ahead: no more than that is kept from the publisher.
  sluice::Subscription steps =
      exchange.subscribe("weights", {.first_step = sluice::kLatest, .ahead = 1});
  while (left > 0) {
    SLUICE_TRY(auto weights, context.run_until(steps, soon()));
    std::printf("reader: step %llu by %s, copied %llu bytes\n",
                static_cast<unsigned long long>(weights.value.as<float>()[0]),
                std::string(sluice::to_string(weights.receipt.path)).c_str(),
                static_cast<unsigned long long>(weights.receipt.copied_bytes +
                                                weights.receipt.kernel_copied_bytes));
    std::fflush(stdout);
    --left;
  }
  return publisher.close(soon());
}

int main(int argc, char** argv) {
  const char* address = argc > 1 ? argv[1] : "sluice://127.0.0.1:7000";
  int left = argc > 2 ? std::atoi(argv[2]) : 1'000'000;
  auto context = sluice::open_context();
  if (!context.ok()) return 1;
  for (int attempt = 0; left > 0 && attempt < 100; ++attempt) {
    sluice::Result<void> result = fetch(**context, address, left);
    if (result.ok()) continue;
    std::fprintf(stderr, "reader: %s\n", result.status().to_string().c_str());
    (void)(*context)->wait_until([] { return false; },
                                 sluice::from_now(100ms));  // then once more
  }
  return left == 0 ? 0 : 1;
}
