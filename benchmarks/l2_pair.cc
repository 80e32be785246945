// sluice over l2:// between the two ends of the wire of benchmarks/wire.py: the answer to the
// questions l2_latency and l2_bulk, beside bare/frame_pingpong, frame_bulk and udp_bulk. Modes shm_ and lo_ (TCP over the
// loopback device) take no wire: both ends in one network.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include <sluice/api/context.h>
#include <sluice/base/counters.h>
#include <sluice/select/open.h>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/bare/wire.h"

namespace {

using namespace sluice;
using bare::End;

constexpr uint64_t kWarmUpRounds = 200;
constexpr Tag kTag = 1;

struct Mode {
  bool udp = false, bulk = false, tcp = false, shm = false, lo = false;
  Waiting waiting = Waiting::kSpin;
};

Mode parse(const std::string& text) {
  auto has = [&](const char* word) { return text.find(word) != std::string::npos; };
  return {.udp = has("udp"), .bulk = has("bulk"), .tcp = has("tcp"), .shm = has("shm"), .lo = has("lo_"), .waiting = has("sleep") ? Waiting::kSleep : has("adaptive") ? Waiting::kAdaptive : Waiting::kSpin};
}

template <typename T>
T must(Result<T> result, const char* what) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "l2_pair: %s: %s\n", what, result.status().to_string().c_str());
  std::_Exit(bare::kExitFailed);
}

class Box final : public CompletionSink {
 public:
  void on_completion(Completion&& completion) noexcept override {
    if (!completion.status.ok()) {
      std::fprintf(stderr, "l2_pair: %s\n", completion.status.to_string().c_str());
      std::_Exit(bare::kExitFailed);
    }
    last = std::move(completion);
    ++count;
  }
  Completion last;
  uint64_t count = 0;
};

Instant later() { return after(now(), std::chrono::seconds(100)); }

// One end: a context, and the connection to the other.
struct Side {
  Side(const Mode& mode, End end, uint64_t size) : size(size) {
    if (!mode.shm && !mode.lo) bare::enter(end);
    ArenaOptions arena{.first_extent_bytes = size_t{256} << 20};
    context = must(open_context({.arena = {}, .arena_options = arena, .waiting = mode.waiting}), "open_context");
  }
  Buffer buffer() { return must(context->allocate({static_cast<int64_t>(size)}, uint8), "allocate"); }
  void receive(Buffer&& into, Box& box) { must(endpoint.receive({.tag = kTag}, std::move(into), {.sink = &box, .deadline = later()}), "receive"); }
  void send(const Tensor& tensor, Box& box, Level level = Level::kPlaced) {
    must(endpoint.send(kTag, tensor, {.sink = &box, .deadline = later(), .level = level}), "send");
  }
  void until(const Box& box, uint64_t count) {
    if (!context->wait_until([&] { return box.count >= count; }, later()).ok()) bare::die("waiting");
  }
  uint64_t size;
  std::unique_ptr<Context> context;
  Endpoint endpoint;
};

// Set before there are two processes: their names for each other.
const pid_t owner = getpid();
std::string shm_address() { return "shm:l2-pair-" + std::to_string(owner); }
std::string loopback_address() { return "tcp://127.0.0.1:" + std::to_string(20'000 + owner % 10'000); }
std::string listen_address(const Mode& mode) { return mode.shm ? shm_address() : mode.lo ? loopback_address() : mode.tcp ? "tcp://10.9.0.2:7000" : mode.udp ? "l2://udp/10.9.0.2:7000" : "l2://far:7000"; }
std::string connect_address(const Mode& mode) { return mode.shm || mode.lo ? listen_address(mode) : mode.tcp ? "tcp://10.9.0.2:7000" : mode.udp ? "l2://udp/10.9.0.2:7000" : "l2://near/02:00:00:00:00:0b:7000"; }

// ---- ping-pong

int echo(const bare::Options& options, Side& side, bare::PeerReport& report) {
  Box in, out;
  Buffer next = side.buffer();
  for (uint64_t i = 0; i < kWarmUpRounds + options.iterations; ++i) {
    side.receive(std::move(next), in);
    side.until(in, i + 1);
    bare::burn_ns(options.slow_ns);
    Buffer got = std::move(in.last.buffers[0]);
    if (options.corrupt && i == kWarmUpRounds + options.iterations / 2) bare::flip_one_bit(got.bytes().data(), options.size);
    Tensor answer = std::move(got).freeze();
    if (i + 1 == kWarmUpRounds + options.iterations) report.cpu_seconds = bare::process_cpu_seconds();
    side.send(answer, out, Level::kSourceReusable);
    next = side.buffer();
  }
  side.until(out, kWarmUpRounds + options.iterations);
  (void)side.endpoint.close(later());
  return 0;
}

int measure_pingpong(const bare::Options& options, Side& side, const bare::PeerReport& report) {
  Box in, out;
  bare::Samples one_way_ns;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < kWarmUpRounds + options.iterations; ++i) {
    Buffer payload = side.buffer();
    auto* words = reinterpret_cast<unsigned char*>(payload.bytes().data());
    bare::fill_pattern(words, options.size, static_cast<uint32_t>(i));
    words[0] = static_cast<unsigned char>(i * 7 + 1);
    Tensor tensor = std::move(payload).freeze();
    side.receive(side.buffer(), in);
    const uint64_t start = bare::now_ns();
    side.send(tensor, out, Level::kSourceReusable);
    side.until(in, i + 1);
    const uint64_t took = bare::now_ns() - start;
    if (i < kWarmUpRounds) continue;
    one_way_ns.add(static_cast<double>(took) / 2);
    wrong += std::memcmp(in.last.buffers[0].bytes().data(), tensor.bytes().data(), options.size) != 0 ? 1 : 0;
  }
  if (wrong != 0) return bare::refuse(options, std::to_string(wrong) + " wrong payloads");
  one_way_ns.sort();
  return bare::JsonLine(options).raw("one_way_ns", one_way_ns.json()).number("cpu_seconds", bare::process_cpu_seconds() + report.cpu_seconds).print_verified();
}

// ---- bulk: message by message, each checked

// Messages that the far end has made: what it takes to make one is not timed.
using Made = std::atomic<uint64_t>;

int send_bulk(const bare::Options& options, Side& side, Made& made, bare::PeerReport& report) {
  Box go, out;
  side.size = 1;
  for (uint64_t i = 0; i < options.iterations; ++i) side.receive(side.buffer(), go);
  side.size = options.size;
  Buffer reused = side.buffer();
  for (uint64_t i = 0; i < options.iterations; ++i) {
    bare::fill_pattern(reused.bytes().data(), options.size, static_cast<uint32_t>(i));
    if (options.corrupt) bare::flip_one_bit(reused.bytes().data(), options.size);
    Tensor tensor = std::move(reused).freeze();
    made.store(i + 1);
    side.until(go, i + 1);
    const double before = bare::process_cpu_seconds();
    bare::burn_ns(options.slow_ns);
    side.send(tensor, out);
    side.until(out, i + 1);
    report.cpu_seconds += bare::process_cpu_seconds() - before;
    out.last = {};
    reused = std::move(tensor.try_thaw().value());
  }
  (void)side.endpoint.close(later());
  return 0;
}

int measure_bulk(const bare::Options& options, Side& side, const Made& made, const bare::PeerReport& report) {
  Box in, out;
  bare::Samples seconds;
  uint64_t wrong = 0;
  double total = 0, cpu = 0;
  side.size = 1;
  Tensor go = side.buffer().freeze();
  side.size = options.size;
  Buffer into = side.buffer();
  for (uint64_t i = 0; i < options.iterations; ++i) {
    side.receive(std::move(into), in);
    while (made.load() <= i) {
    }
    const double cpu_before = bare::process_cpu_seconds();
    const uint64_t start = bare::now_ns();
    side.send(go, out);
    side.until(in, i + 1);
    const double took = static_cast<double>(bare::now_ns() - start) * 1e-9;
    cpu += bare::process_cpu_seconds() - cpu_before;
    into = std::move(in.last.buffers[0]);
    wrong += bare::count_mismatches(into.bytes().data(), options.size, static_cast<uint32_t>(i));
    std::memset(into.bytes().data(), 0, options.size);
    seconds.add(took);
    total += took;
  }
  if (wrong != 0) return bare::refuse(options, std::to_string(wrong) + " wrong words");
  seconds.sort();
  const double bytes = static_cast<double>(options.iterations * options.size), both = cpu + report.cpu_seconds;
  return bare::JsonLine(options)
      .raw("seconds", seconds.json())
      .number("bytes_per_second", bytes / total)
      .number("cpu_seconds", both)
      .number("cpu_seconds_per_gb", both / (bytes * 1e-9))
      .print_verified();
}

void tell_counters(const char* who) {
  if (std::getenv("L2_PAIR_COUNTERS") == nullptr) return;
  for (const auto& [name, value] : read_counters()) {
    if (value != 0) std::fprintf(stderr, "%s %.*s %llu\n", who, static_cast<int>(name.size()), name.data(), static_cast<unsigned long long>(value));
  }
}

int far_side(const bare::Options& options, const Mode& mode, int ready, Made& made, bare::PeerReport& report) {
  Side side(mode, End::kFar, options.size);
  Listener listener = must(side.context->listen(listen_address(mode)), "listen");
  if (write(ready, "", 1) != 1) bare::die("telling that it listens");
  side.endpoint = must(listener.accept(later()), "accept");
  int result = mode.bulk ? send_bulk(options, side, made, report) : echo(options, side, report);
  tell_counters("far");
  return result;
}

int near_side(const bare::Options& options, const Mode& mode, int ready, const Made& made, const bare::PeerReport& report) {
  Side side(mode, End::kNear, options.size);
  char byte;
  if (read(ready, &byte, 1) != 1) bare::die("waiting for the listener");
  side.endpoint = must(side.context->connect(connect_address(mode)), "connect");
  int result = mode.bulk ? measure_bulk(options, side, made, report) : measure_pingpong(options, side, report);
  tell_counters("near");
  (void)side.endpoint.close(later());
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "l2_pair";
  for (const char* carrier : {"packet", "udp", "tcp", "shm", "lo"}) {
    for (const char* wait : {"spin", "sleep", "adaptive"}) options.modes.push_back(std::string(carrier) + "_" + wait);
    options.modes.push_back(std::string(carrier) + "_bulk");
    options.modes.push_back(std::string(carrier) + "_bulk_adaptive");
  }
  options.mode = "packet_spin";
  options.iterations = 10'000;
  bare::parse_or_exit(options, argc, argv);
  const Mode mode = parse(options.mode);
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) bare::die("pipe");
  auto* made = new (bare::map_shared(sizeof(Made))) Made(0);
  return bare::run_pair(
      options, [&](bare::PeerReport& report) { return far_side(options, mode, pipe_ends[1], *made, report); },
      [&](bare::PeerReport& report) { return near_side(options, mode, pipe_ends[0], *made, report); });
}
