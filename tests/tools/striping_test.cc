// One run of `sluice perf` over several queue pairs, on a fabric inside the process: each
// connection carries its share, checks included, and the figures are of all of them.
#include <future>
#include <numeric>
#include <thread>

#include <catch2/catch.hpp>

#include <sluice/base/log.h>
#include <sluice/select/open.h>

#include "tests/verbs/fake_provider.h"
#include "tools/perf/run/run.h"

namespace sluice::tools {
namespace {

struct Outcome {
  Status client;
  ClientRun run;
  Status server;
  bool intact = false;
  uint64_t queue_pairs = 0;
};

Result<std::unique_ptr<Context>> small_context() {
  return open_context({.arena_options = {.limit_bytes = 64 << 20,
                                         .first_extent_bytes = 4 << 20,
                                         .receive_reserve_bytes = 1 << 20}});
}

// The server, with `strangers` connections of others that come between.
Outcome run_over_fake(const PerfOptions& perf, size_t strangers = 0) {
  verbs::FakeVerbs fake;
  verbs::use_verbs_api(&fake);
  Outcome outcome;
  std::promise<std::string> listening;
  std::thread server([&] {
    auto context = small_context();
    auto listener = (*context)->listen("rdma://127.0.0.1:0");
    listening.set_value(listener->address());
    auto accept = [&] { return listener->accept(after(now(), std::chrono::seconds(10))); };
    auto endpoint = accept();
    RunOptions options{.perf = &perf, .one_process = true, .next = accept};
    Result<bool> intact = run_server(**context, *endpoint, options);
    outcome.server = intact.status();
    outcome.intact = intact.ok() && *intact;
  });
  {
    auto context = small_context();
    std::string address = listening.get_future().get();
    auto connect = [&] { return (*context)->connect(address); };
    auto endpoint = connect();
    REQUIRE(endpoint.ok());
    std::vector<Endpoint> others;
    auto next = [&]() -> Result<Endpoint> {
      while (others.size() < strangers) {
        SLUICE_TRY(Endpoint other, connect());
        ControlChannel control(**context, other);
        (void)control.send({{"do", "join"}, {"token", 1}});
        others.push_back(std::move(other));
      }
      return connect();
    };
    RunOptions options{.perf = &perf, .one_process = true, .next = next};
    outcome.client =
        run_client(**context, *endpoint, options, outcome.run, [](const Measurement&) {});
  }
  server.join();
  outcome.queue_pairs = fake.calls("create_qp");
  verbs::use_verbs_api(nullptr);
  CHECK(fake.complaints() == "");
  return outcome;
}

PerfOptions striped(const char* test, uint32_t qps) {
  PerfOptions perf;
  perf.test = find_test(test);
  perf.sizes = {perf.test->verb == Verb::kAtomic ? Load::kAtomicBytes : uint64_t{20'000}};
  perf.iterations = 50;
  perf.tx_depth = 4;
  perf.qps = qps;
  return perf;
}

constexpr const char* kStriped[] = {"send_bw", "write_bw", "read_bw", "atomic_bw"};

TEST_CASE("a run over several queue pairs adds up what each of them carried", "[perf][striping]") {
  for (const char* test : kStriped) {
    for (uint32_t qps : {1u, 2u, 3u, 7u}) {
      INFO(test << " over " << qps);
      PerfOptions perf = striped(test, qps);
      Outcome outcome = run_over_fake(perf);
      INFO(outcome.client.to_string() << outcome.server.to_string());
      REQUIRE(outcome.client.ok());
      CHECK(outcome.server.ok());
      CHECK(outcome.intact);
      CHECK(outcome.queue_pairs == 2 * qps);
      REQUIRE(outcome.run.measurements.size() == 1);
      const Measurement& m = outcome.run.measurements[0];
      CHECK(m.path == "verbs");
      CHECK(m.iterations == 50);
      CHECK(m.latency_ns.count == 50);
      CHECK(m.payload_bytes == 50 * m.load.size_bytes);
      CHECK(m.verdict.mismatched_bytes == 0);
      // A window on each was checked.
      CHECK(m.verdict.verified_bytes >= uint64_t{4} * qps * m.load.size_bytes);
      REQUIRE(m.bytes_by_qp.size() == qps);
      for (uint64_t bytes : m.bytes_by_qp) CHECK(bytes >= 50 / qps * m.load.size_bytes);
      CHECK(std::accumulate(m.bytes_by_qp.begin(), m.bytes_by_qp.end(), uint64_t{0}) >=
            m.payload_bytes);
    }
  }
}

TEST_CASE("both directions at once over queue pairs are checked and added up", "[perf][striping]") {
  for (const char* test : {"send_bw", "write_bw", "read_bw"}) {
    for (uint32_t qps : {1u, 3u}) {
      INFO(test << " over " << qps);
      PerfOptions perf = striped(test, qps);
      perf.bidirectional = true;
      Outcome outcome = run_over_fake(perf);
      INFO(outcome.client.to_string() << outcome.server.to_string());
      REQUIRE(outcome.client.ok());
      CHECK(outcome.server.ok());
      CHECK(outcome.intact);
      const Measurement& m = outcome.run.measurements.at(0);
      CHECK(m.iterations == 50);
      CHECK(m.latency_ns.count == 50);
      CHECK(m.payload_bytes == 2 * 50 * m.load.size_bytes);
      CHECK(m.verdict.mismatched_bytes == 0);
      CHECK(m.verdict.verified_bytes >= uint64_t{2} * 4 * qps * m.load.size_bytes);
    }
  }
}

TEST_CASE("fewer operations than queue pairs leave some idle", "[perf][striping]") {
  for (const char* test : kStriped) {
    INFO(test);
    PerfOptions perf = striped(test, 5);
    perf.iterations = 3;
    perf.warmup = 0;
    Outcome outcome = run_over_fake(perf);
    INFO(outcome.client.to_string());
    REQUIRE(outcome.client.ok());
    CHECK(outcome.intact);
    CHECK(outcome.run.measurements[0].iterations == 3);
    CHECK(outcome.run.measurements[0].bytes_by_qp[4] == 0);
  }
}

TEST_CASE("a damaged byte is found on whichever queue pair it came", "[perf][striping]") {
  for (const char* test : kStriped) {
    INFO(test);
    PerfOptions perf = striped(test, 3);
    perf.corrupt = true;
    Outcome outcome = run_over_fake(perf);
    CHECK(outcome.run.corrupt);
    // In the whole window of each of them.
    CHECK(outcome.run.measurements[0].verdict.mismatched_bytes >= 3 * 4);
  }
}

TEST_CASE("connections of others do not become part of a run", "[perf][striping]") {
  Outcome outcome = run_over_fake(striped("write_bw", 3), 2);
  INFO(outcome.client.to_string() << outcome.server.to_string());
  REQUIRE(outcome.client.ok());
  CHECK(outcome.intact);
  CHECK(outcome.queue_pairs == 2 * 5);
  CHECK(outcome.run.measurements[0].bytes_by_qp.size() == 3);
}

}  // namespace
}  // namespace sluice::tools
