// Publishes a tensor again and again, changed in place, to every reader that connects.
#include <sluice/sluice.h>

#include <algorithm>
#include <cstdio>
#include <vector>

using namespace std::chrono_literals;

sluice::Result<void> publish(const char* address) {
  SLUICE_TRY(auto context, sluice::open_context());
  SLUICE_TRY(sluice::Listener listener, context->listen(address));
  std::printf("publisher: listening at %s\n", listener.address().c_str());
  std::fflush(stdout);
  sluice::Exchange exchange{*context};
  std::vector<sluice::Endpoint> readers;
  SLUICE_TRY(sluice::Buffer weights, context->allocate({1024, 1024}, sluice::float32));
  for (uint64_t step = 1;; ++step) {
    std::ranges::fill(weights.as<float>(), static_cast<float>(step));
    SLUICE_TRY(auto publication, exchange.publish({"weights", step}, std::move(weights).freeze(),
                                                  {.readers = sluice::until_retired}));
    const sluice::Instant next = sluice::from_now(50ms);
    while (context->refresh_now() < next) {
      if (auto come = listener.try_accept(); come.ok() && exchange.add(*come).ok())
        readers.push_back(std::move(*come));
      std::erase_if(readers, [](const sluice::Endpoint& reader) {
        return reader.state() == sluice::EndpointState::kClosed;
      });
      (void)context->wait(next);
    }
    publication.retire();  // nobody new gets this step
    auto home = context->run_until(publication, sluice::from_now(2s));
    std::optional<sluice::Buffer> again = home.ok() ? home->try_thaw() : std::nullopt;
    if (again) {
      weights = std::move(*again);  // every reader has released it: the same memory
    } else {
      SLUICE_TRY(weights, context->allocate({1024, 1024}, sluice::float32));
    }
  }
}

int main(int argc, char** argv) {
  sluice::Result<void> result = publish(argc > 1 ? argv[1] : "sluice://127.0.0.1:7000");
  std::fprintf(stderr, "publisher: %s\n", result.status().to_string().c_str());
  return 1;
}
