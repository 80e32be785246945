// Question: does it pay to copy with two threads, past the caches, or while the rest is still being
// received?
//
// --mode copy_one, copy_two         one thread copies --size bytes, or two one half each
//        receive_direct             --size bytes come over TCP straight to their place: no copy
//        receive_after              into another buffer, and then a copy of all
//        receive_between            likewise, but each piece is copied before the next is received
//        receive_helper             likewise, but another thread copies while the next is received
// Each but receive_direct also with _streaming: past the caches.
// Timed is from the start (of the sender, or of the copy) until all is in its place. The helper may
// run on any processor: where there are only two, it takes turns with the sender or the receiver.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/bare/sockets.h"
#include "benchmarks/bare/streaming_copy.h"

namespace bare {
namespace {

// Copied while it is still in a second-level cache; one wake of a helper (30 us) is a third of what
// it takes to copy.
constexpr size_t kPiece = 1u << 20;

constexpr size_t kLine = 64;  // halves of a copy share none

struct Memory {
  explicit Memory(const Options& options)
      : size(options.size),
        past_caches(options.mode.ends_with("_streaming")),
        source(static_cast<std::byte*>(map_private(size))),
        place(static_cast<std::byte*>(map_private(size))) {}
  void copy(size_t from, size_t to) const {
    if (past_caches) {
      copy_by_streaming(place + from, source + from, to - from);
    } else {
      std::memcpy(place + from, source + from, to - from);
    }
  }
  size_t size;
  bool past_caches;
  std::byte *source, *place;
};

// Runs on the processors that this process might use before it was kept on one.
class Helper {
 public:
  // Copies [0, arrived) as `arrived` grows, up to memory.size each round.
  Helper(const Memory& memory, const cpu_set_t& anywhere)
      : memory_(memory), thread_([this, anywhere] {
          sched_setaffinity(0, sizeof anywhere, &anywhere);
          work();
        }) {}
  ~Helper() {
    ended_.store(true);
    arrived_.fetch_add(1);
    arrived_.notify_one();
    thread_.join();
  }
  void arrived(size_t bytes) {
    arrived_.store(round_ * memory_.size + bytes);
    arrived_.notify_one();
  }
  // Until all of a round is copied; the next begins.
  void finish_round() {
    ++round_;
    for (size_t copied; (copied = copied_.load()) < round_ * memory_.size;) copied_.wait(copied);
  }

 private:
  void work() {
    for (size_t done = 0;;) {
      arrived_.wait(done);
      const size_t there = arrived_.load();
      if (ended_.load()) return;
      const size_t start = done / memory_.size * memory_.size;
      memory_.copy(done - start, there - start);
      copied_.store(done = there);
      copied_.notify_one();
    }
  }
  const Memory& memory_;
  std::atomic<size_t> arrived_{0}, copied_{0};
  std::atomic<bool> ended_{false};
  size_t round_ = 0;
  std::thread thread_;
};

// The other half of a copy, by a thread that spins for it.
class OtherHalf {
 public:
  OtherHalf(const Memory& memory, size_t half)
      : thread_([this, &memory, half] {
          pin_to_cpu(1);
          for (uint64_t done = 0;; ++done) {
            while (asked_.load() == done) {}
            if (asked_.load() == kEnd) return;
            memory.copy(half, memory.size);
            done_.store(done + 1);
          }
        }) {}
  ~OtherHalf() {
    asked_.store(kEnd);
    thread_.join();
  }
  void ask() { asked_.store(asked_.load() + 1); }
  void wait() {
    while (done_.load() != asked_.load()) {}
  }

 private:
  static constexpr uint64_t kEnd = ~uint64_t{0};
  std::atomic<uint64_t> asked_{0}, done_{0};
  std::thread thread_;
};

struct Timed {
  Samples seconds;
  double total = 0, cpu = 0;
  uint64_t wrong = 0;
};

// `move` brings the bytes of pattern `seed` to memory.place; that it did is checked outside of the
// timed part.
void time_rounds(const Options& options, Memory& memory,
                 const std::function<void(uint32_t seed)>& prepare,
                 const std::function<void()>& move, Timed& timed) {
  for (uint64_t i = 0; i < options.iterations; ++i) {
    const auto seed = static_cast<uint32_t>(i);
    prepare(seed);
    const double cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    burn_ns(options.slow_ns);
    move();
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    timed.cpu += process_cpu_seconds() - cpu_before;
    timed.seconds.add(took);
    timed.total += took;
    timed.wrong += count_mismatches(memory.place, memory.size, seed);
  }
}

int print(const Options& options, Timed& timed, double cpu) {
  if (timed.wrong != 0) return refuse(options, std::to_string(timed.wrong) + " wrong words");
  return JsonLine(options).moved(timed.seconds, timed.total, cpu).print_verified();
}

int copy(const Options& options) {
  alarm(static_cast<unsigned>(options.limit_seconds));
  Memory memory(options);
  const bool two = options.mode.starts_with("copy_two");
  const size_t half = two ? memory.size / 2 / kLine * kLine : memory.size;
  std::unique_ptr<OtherHalf> other;
  if (two) other = std::make_unique<OtherHalf>(memory, half);
  if (!pin_to_cpu(0)) die("sched_setaffinity");
  Timed timed;
  time_rounds(
      options, memory,
      [&](uint32_t seed) {
        fill_pattern(memory.source, memory.size, seed);
        if (options.corrupt) flip_one_bit(memory.source, memory.size);
      },
      [&] {
        if (two) other->ask();
        memory.copy(0, half);
        if (two) other->wait();
      },
      timed);
  return print(options, timed, timed.cpu);
}

int send_all(const Options& options, int socket, PeerReport& report) {
  auto* payload = static_cast<unsigned char*>(map_private(options.size));
  for (uint64_t i = 0; i < options.iterations; ++i) {
    fill_pattern(payload, options.size, static_cast<uint32_t>(i));
    if (options.corrupt) flip_one_bit(payload, options.size);
    unsigned char go;
    read_all(socket, &go, 1);
    const double cpu_before = process_cpu_seconds();
    write_all(socket, payload, options.size, kPiece);
    report.cpu_seconds += process_cpu_seconds() - cpu_before;
  }
  write_all(socket, "", 1);  // the report is complete
  return 0;
}

int receive_all(const Options& options, int socket, const cpu_set_t& anywhere,
                const PeerReport& report) {
  Memory memory(options);
  const auto is = [&](const char* mode) { return options.mode.starts_with(mode); };
  std::unique_ptr<Helper> helper;
  if (is("receive_helper")) helper = std::make_unique<Helper>(memory, anywhere);
  std::byte* into = is("receive_direct") ? memory.place : memory.source;
  const bool between = is("receive_between");
  Timed timed;
  time_rounds(
      options, memory, [](uint32_t) {},
      [&] {
        write_all(socket, "", 1);
        for (size_t at = 0; at < memory.size; at += kPiece) {
          const size_t end = std::min(memory.size, at + kPiece);
          read_all(socket, into + at, end - at);
          if (between) memory.copy(at, end);
          if (helper != nullptr) helper->arrived(end);
        }
        if (is("receive_after")) memory.copy(0, memory.size);
        if (helper != nullptr) helper->finish_round();
      },
      timed);
  unsigned char reported;
  read_all(socket, &reported, 1);
  return print(options, timed, timed.cpu + report.cpu_seconds);
}

int receive(const Options& options) {
  cpu_set_t anywhere;
  if (sched_getaffinity(0, sizeof anywhere, &anywhere) != 0) die("sched_getaffinity");
  const SocketPair pair = connected_pair(Family::kTcp);
  return run_pair(
      options, [&](PeerReport& report) { return send_all(options, keep(pair, true), report); },
      [&](const PeerReport& report) {
        return receive_all(options, keep(pair, false), anywhere, report);
      });
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "overlapped_copy";
  options.modes = {"receive_direct"};
  for (const char* mode :
       {"copy_one", "copy_two", "receive_after", "receive_between", "receive_helper"}) {
    options.modes.push_back(mode);
    options.modes.push_back(std::string(mode) + "_streaming");
  }
  options.mode = "copy_one";
  options.size = 64u << 20;
  options.iterations = 16;
  bare::parse_or_exit(options, argc, argv);
  return options.mode.starts_with("copy") ? bare::copy(options) : bare::receive(options);
}
