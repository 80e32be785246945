// Question: what do the library's operations make of a long line (benchmarks/wire.py --delay)?
// Beside bare/line_bulk. The near end receives, and says what has come since it was ready.
//
// --mode messages: messages of --size bytes, --under-way of them at once, each end with default
//        options but a longer deadline.
//        fetches: tensors of that size, fetched into buffers by key; as many fetches at once.
//        With _sleep behind it: the ends sleep while they wait.
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

// To the far end: it stops; it begins. From it: it has made its tensor.
constexpr Tag kStop = 2, kGo = 3, kReady = 4;
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

void tell(Side& side, Tag tag) {
  Box out;
  bench::must(side.endpoint.send(tag, byte_of(side).freeze(), {.sink = &out}), "send");
  side.until(out, 1);
}

void hear(Side& side, Tag tag) {
  Box in;
  bench::must(side.endpoint.receive({.tag = tag}, byte_of(side), {.sink = &in}), "receive");
  side.until(in, 1);
}

// Until the near end has said that it is enough.
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
  tell(side, kReady);
  hear(side, kGo);
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
  hear(side, kReady);
  for (uint64_t i = 0; i < depth_of(options); ++i) refill.post(side.buffer());
  const double before = bare::process_cpu_seconds();
  bare::LineMeter meter(options.iterations);
  bench::must(side.endpoint.send(kGo, byte_of(side).freeze(), {}), "send");
  side.until([&] { return !meter.saw(side.endpoint.counters().bytes_received); });
  const double cpu = bare::process_cpu_seconds() - before;
  uint64_t wrong = bare::count_mismatches(refill.last, options.size, 0);
  tell(side, kStop);
  refill.over = true;
  if (wrong != 0) return bare::refuse(options, std::to_string(wrong) + " wrong words");
  while (report.cpu_seconds == 0) side.context->progress();
  return meter.print(options, cpu + report.cpu_seconds);
}

// ---- fetches

int publish_tensor(const bare::Options& options, Side& side, bare::PeerReport& report) {
  Exchange exchange(*side.context);
  if (Status added = exchange.add(side.endpoint); !added.ok()) bench::give_up("add", added);
  const Publication published = bench::must(
      exchange.publish({kName, 1}, patterned(options, side), {.readers = sluice::until_retired}),
      "publish");
  tell(side, kReady);
  return until_stopped(side, report, [] {});
}

int fetch_tensors(const bare::Options& options, Side& side, const bare::PeerReport& report) {
  Exchange exchange(*side.context);
  if (Status added = exchange.add(side.endpoint); !added.ok()) bench::give_up("add", added);
  std::deque<FetchInto> under_way;
  const auto fetch = [&](Buffer&& into) {
    under_way.push_back(exchange.fetch_into({kName, 1}, std::move(into), later()));
  };
  std::vector<Buffer> buffers;
  for (uint64_t i = 0; i < depth_of(options); ++i) buffers.push_back(side.buffer());
  hear(side, kReady);
  const double before = bare::process_cpu_seconds();
  bare::LineMeter meter(options.iterations);
  for (Buffer& buffer : buffers) fetch(std::move(buffer));
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
  tell(side, kStop);
  if (wrong != 0) return bare::refuse(options, std::to_string(wrong) + " wrong words");
  while (report.cpu_seconds == 0) side.context->progress();
  return meter.print(options, cpu + report.cpu_seconds);
}

}  // namespace

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "line_pair";
  options.size = 1u << 20;
  options.iterations = 8;
  options.under_way = 16;
  options.modes = {"messages", "fetches", "messages_sleep", "fetches_sleep"};
  options.mode = "messages";
  bare::parse_or_exit(options, argc, argv);
  const bool sleeps = options.mode.ends_with("_sleep");
  const bench::Way way{.carrier = bench::Carrier::kTcp,
                       .waiting = sleeps ? Waiting::kSleep : Waiting::kAdaptive};
  const bool fetches = options.mode.starts_with("fetches");
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
