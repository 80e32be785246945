// Question: what does it cost to wait for a message that comes after a while, by how long that is
// and by how long the waiter polls before it sleeps (SLUICE_TUNING=defaults,spin_ns=8us)?
//
// One process sends by the clock, polling all the time; the other waits. No answer is sent, so that
// nothing but the waiter's own way to wait decides when it sees a message.
// --mode PATH_PATTERN_WAITING: over shm, or over tcp on the loopback device;
//        steady: a message every --gap-us; bursts: eight messages 8 us apart, then --gap-us of
//        nothing; adaptive, spin or sleep.
// `one_way_ns` is from before the send to after the wait; `cpu_ns_per_message` is the waiter's CPU
// time.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>

#include <sluice/api/context.h>
#include <sluice/select/open.h>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"

namespace {

using namespace sluice;

constexpr uint64_t kWarmUpMessages = 64;
constexpr uint64_t kBurst = 8, kWithinBurstNs = 8'000;
constexpr Tag kTag = 1;
constexpr size_t kWords = 4;  // when it was sent, its number, and the pattern of that

template <typename T>
T must(Result<T> result, const char* what) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "waiting: %s: %s\n", what, result.status().to_string().c_str());
  std::_Exit(bare::kExitFailed);
}

Instant later() { return after(now(), std::chrono::seconds(100)); }

class Box final : public CompletionSink {
 public:
  void on_completion(Completion&& completion) noexcept override {
    if (!completion.status.ok()) {
      std::fprintf(stderr, "waiting: %s\n", completion.status.to_string().c_str());
      std::_Exit(bare::kExitFailed);
    }
    last = std::move(completion);
    ++count;
  }
  Completion last;
  uint64_t count = 0;
};

bool has(const bare::Options& options, const char* word) {
  return options.mode.find(word) != std::string::npos;
}

Waiting waiting_of(const bare::Options& options) {
  return has(options, "adaptive") ? Waiting::kAdaptive
         : has(options, "sleep")  ? Waiting::kSleep
                                  : Waiting::kSpin;
}

std::unique_ptr<Context> context_of(Waiting waiting) {
  return must(open_context({.arena = {},
                            .arena_options = {.first_extent_bytes = size_t{4} << 20},
                            .waiting = waiting}),
              "open_context");
}

// Set before there are two processes: their name for the path.
const pid_t owner = getpid();
std::string address_of(const bare::Options& options) {
  return has(options, "shm") ? "shm:waiting-" + std::to_string(owner)
                             : "tcp://127.0.0.1:" + std::to_string(20'000 + owner % 10'000);
}

Buffer buffer_of(Context& context) { return must(context.allocate({kWords}, uint64), "allocate"); }

// ---- who sends

uint64_t gap_after(const bare::Options& options, uint64_t message) {
  return has(options, "bursts") && message % kBurst != kBurst - 1 ? kWithinBurstNs
                                                                  : options.gap_us * 1000;
}

int send_by_the_clock(const bare::Options& options, int ready) {
  auto context = context_of(Waiting::kSpin);
  Listener listener = must(context->listen(address_of(options)), "listen");
  if (write(ready, "", 1) != 1) bare::die("telling that it listens");
  Endpoint endpoint = must(listener.accept(later()), "accept");
  Box out;
  uint64_t due = bare::now_ns();
  for (uint64_t i = 0; i < kWarmUpMessages + options.iterations; ++i) {
    Buffer message = buffer_of(*context);
    auto words = message.as<uint64_t>();
    bare::fill_pattern(&words[2], 2 * sizeof(uint64_t), static_cast<uint32_t>(i));
    if (options.corrupt && i == kWarmUpMessages + options.iterations / 2)
      bare::flip_one_bit(&words[2], 2 * sizeof(uint64_t));
    words[1] = i;
    while (bare::now_ns() < due) (void)context->progress();
    words[0] = bare::now_ns();
    bare::burn_ns(options.slow_ns);
    // A message that is late is not followed by a crowd that makes up for it.
    due = bare::now_ns() + gap_after(options, i);
    must(endpoint.send(kTag, std::move(message).freeze(), {.sink = &out, .deadline = later()}),
         "send");
  }
  if (!context
           ->wait_until([&] { return out.count == kWarmUpMessages + options.iterations; }, later())
           .ok())
    bare::die("sending");
  (void)endpoint.close(later());
  return 0;
}

// ---- who waits

int wait_for_each(const bare::Options& options, int ready) {
  char byte;
  if (read(ready, &byte, 1) != 1) bare::die("waiting for the listener");
  auto context = context_of(waiting_of(options));
  Endpoint endpoint = must(context->connect(address_of(options)), "connect");
  Box in;
  bare::Samples one_way_ns;
  uint64_t wrong = 0;
  double cpu_before = 0;
  Buffer next = buffer_of(*context);
  for (uint64_t i = 0; i < kWarmUpMessages + options.iterations; ++i) {
    if (i == kWarmUpMessages) cpu_before = bare::process_cpu_seconds();
    must(endpoint.receive({.tag = kTag}, std::move(next), {.sink = &in, .deadline = later()}),
         "receive");
    if (!context->wait_until([&] { return in.count == i + 1; }, later()).ok()) bare::die("waiting");
    const uint64_t seen = bare::now_ns();
    next = std::move(in.last.buffers[0]);
    const auto words = next.as<uint64_t>();
    wrong += words[1] != i ? 1
                           : bare::count_mismatches(&words[2], 2 * sizeof(uint64_t),
                                                    static_cast<uint32_t>(i));
    if (i >= kWarmUpMessages) one_way_ns.add(static_cast<double>(seen - words[0]));
  }
  const double cpu = bare::process_cpu_seconds() - cpu_before;
  (void)endpoint.close(later());
  if (wrong != 0) return bare::refuse(options, std::to_string(wrong) + " wrong words");
  one_way_ns.sort();
  return bare::JsonLine(options)
      .number("gap_us", static_cast<double>(options.gap_us))
      .raw("one_way_ns", one_way_ns.json())
      .number("cpu_seconds", cpu)
      .number("cpu_ns_per_message", cpu * 1e9 / static_cast<double>(options.iterations))
      .print_verified();
}

}  // namespace

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "waiting";
  for (const char* path : {"shm", "tcp"}) {
    for (const char* pattern : {"steady", "bursts"}) {
      for (const char* wait : {"adaptive", "spin", "sleep"})
        options.modes.push_back(std::string(path) + "_" + pattern + "_" + wait);
    }
  }
  options.mode = "shm_steady_adaptive";
  options.gap_us = 50;
  options.size = kWords * sizeof(uint64_t);
  options.iterations = 2000;
  bare::parse_or_exit(options, argc, argv);
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) bare::die("pipe");
  return bare::run_pair(
      options, [&](bare::PeerReport&) { return send_by_the_clock(options, pipe_ends[1]); },
      [&](bare::PeerReport&) { return wait_for_each(options, pipe_ends[0]); });
}
