// Question: what do the library's operations make of a long line (benchmarks/wire.py --delay)?
// Beside bare/line_bulk. The near end receives, and says what has come since it was ready.
//
// --mode messages: messages of --size bytes, --under-way of them at once, each end with default
//        options but a longer deadline.
//        fetches: tensors of that size, fetched into buffers by key; as many fetches at once.
#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <sluice/exchange/exchange.h>

#include "benchmarks/bare/line_meter.h"
#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/library_ends.h"

namespace {

using namespace sluice;
using bench::Box;
using bench::later;
using bench::Side;

// Once it is sent the far end stops.
constexpr Tag kStop = 2;
constexpr std::string_view kName = "tensor";

uint64_t depth_of(const bare::Options& options) { return options.under_way; }

Tensor patterned(const bare::Options& options, Side& side) {
  Buffer buffer = side.buffer();
  bare::fill_pattern(buffer.bytes().data(), options.size, 0);
  if (options.corrupt) bare::flip_one_bit(buffer.bytes().data(), options.size);
  return std::move(buffer).freeze();
}

// Of what came last, all of it.
uint64_t wrong_words(const bare::Options& options, const Buffer& got) {
  return bare::count_mismatches(got.bytes().data(), options.size, 0);
}

Buffer byte_of(Side& side) { return bench::must(side.context->allocate({1}, uint8), "allocate"); }

int told(const bare::Options& options, const bare::LineMeter& meter, double cpu,
         const bare::PeerReport& report) {
  const double gb = static_cast<double>(meter.bytes()) * 1e-9;
  return bare::JsonLine(options)
      .number("seconds", meter.first_seconds())
      .number("bytes_per_second", meter.bytes_per_second())
      .number("cpu_seconds_per_gb", (cpu + report.cpu_seconds) / gb)
      .print_verified();
}

// Until the near end has said that it is enough; then its answer.
template <typename Work>
int until_stopped(Side& side, bare::PeerReport& report, Work&& work) {
  Box stop;
  bench::must(side.endpoint.receive({.tag = kStop}, byte_of(side), {.sink = &stop}), "receive");
  const double before = bare::process_cpu_seconds();
  side.until([&] {
    if (stop.count == 0) work();
    return stop.count > 0;
  });
  report.cpu_seconds = bare::process_cpu_seconds() - before;
  return 0;
}

void stop(Side& side) {
  Box out;
  side.until([&] { return true; });
  bench::must(side.endpoint.send(kStop, byte_of(side).freeze(), {.sink = &out}), "send");
  side.until(out, 1);
}

// ---- messages

// Completions that may fail once the peer has closed.
class Ends final : public CompletionSink {
 public:
  void on_completion(Completion&&) noexcept override { ++count; }
  uint64_t count = 0;
};

int send_messages(const bare::Options& options, Side& side, bare::PeerReport& report) {
  const Tensor tensor = patterned(options, side);
  static Ends out;  // outlives what the end of the connection completes
  uint64_t sent = 0;
  return until_stopped(side, report, [&] {
    while (sent - out.count < depth_of(options)) {
      bench::must(
          side.endpoint.send(bench::kTag, tensor, {.sink = &out, .level = Level::kSourceReusable}),
          "send");
      ++sent;
    }
  });
}

// Posts each buffer again as soon as it is full.
class Refill final : public CompletionSink {
 public:
  Refill(Side& side) : side_(side) {}
  void on_completion(Completion&& completion) noexcept override {
    if (over) return;
    if (!completion.status.ok()) bench::give_up("a receive", completion.status);
    ++count;
    last = completion.buffers[0].bytes().data();
    post(std::move(completion.buffers[0]));
  }
  void post(Buffer&& buffer) {
    bench::must(side_.endpoint.receive({.tag = bench::kTag}, std::move(buffer), {.sink = this}),
                "receive");
  }
  bool over = false;
  uint64_t count = 0;
  const std::byte* last = nullptr;

 private:
  Side& side_;
};

int receive_messages(const bare::Options& options, Side& side, const bare::PeerReport& report) {
  static Refill refill(side);
  const double before = bare::process_cpu_seconds();
  bare::LineMeter meter(options.iterations);
  for (uint64_t i = 0; i < depth_of(options); ++i) refill.post(side.buffer());
  side.until([&] { return !meter.saw(side.endpoint.counters().bytes_received); });
  const double cpu = bare::process_cpu_seconds() - before;
  uint64_t wrong = bare::count_mismatches(refill.last, options.size, 0);
  stop(side);
  refill.over = true;
  if (wrong != 0) return bare::refuse(options, std::to_string(wrong) + " wrong words");
  while (report.cpu_seconds == 0) side.context->progress();
  return told(options, meter, cpu, report);
}

// ---- fetches

int publish_tensor(const bare::Options& options, Side& side, bare::PeerReport& report) {
  Exchange exchange(*side.context);
  if (Status added = exchange.add(side.endpoint); !added.ok()) bench::give_up("add", added);
  const Publication published = bench::must(
      exchange.publish({kName, 1}, patterned(options, side), {.readers = sluice::until_retired}),
      "publish");
  return until_stopped(side, report, [] {});
}

int fetch_tensors(const bare::Options& options, Side& side, const bare::PeerReport& report) {
  Exchange exchange(*side.context);
  if (Status added = exchange.add(side.endpoint); !added.ok()) bench::give_up("add", added);
  std::deque<FetchInto> under_way;
  const auto fetch = [&](Buffer&& into) {
    under_way.push_back(exchange.fetch_into({kName, 1}, std::move(into), later()));
  };
  const double before = bare::process_cpu_seconds();
  bare::LineMeter meter(options.iterations);
  for (uint64_t i = 0; i < depth_of(options); ++i) fetch(side.buffer());
  uint64_t wrong = 0;
  bool checked = false;
  side.until([&] {
    while (under_way.front().ready()) {
      Placed placed = under_way.front().take();
      if (!placed.ok()) bench::give_up("a fetch", placed.status());
      under_way.pop_front();
      if (!std::exchange(checked, true)) wrong += wrong_words(options, placed.value().value);
      fetch(placed.take_buffer());
    }
    return !meter.saw(side.endpoint.counters().bytes_received);
  });
  const double cpu = bare::process_cpu_seconds() - before;
  under_way.clear();
  stop(side);
  if (wrong != 0) return bare::refuse(options, std::to_string(wrong) + " wrong words");
  while (report.cpu_seconds == 0) side.context->progress();
  return told(options, meter, cpu, report);
}

}  // namespace

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "line_pair";
  options.size = 1u << 20;
  options.iterations = 8;
  options.under_way = 16;
  options.modes = {"messages", "fetches"};
  options.mode = "messages";
  bare::parse_or_exit(options, argc, argv);
  const bench::Way way{.carrier = bench::Carrier::kTcp, .waiting = Waiting::kAdaptive};
  const bool fetches = options.mode == "fetches";
  return bench::run_ends(
      options, way,
      [&](Side& side, bare::PeerReport& report) {
        return fetches ? publish_tensor(options, side, report)
                       : send_messages(options, side, report);
      },
      [&](Side& side, const bare::PeerReport& report) {
        return fetches ? fetch_tensors(options, side, report)
                       : receive_messages(options, side, report);
      });
}
