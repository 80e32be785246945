// The loops of `sluice perf send_lat` and `send_bw` with nothing around them: the same calls of the
// library in the same order, between two processes that are pinned as those of --self, without
// samples, control messages, plans or reports. What perf is slower than this is its own overhead
// (question perf_overhead). Knows nothing of tools/perf.
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <sluice/api/context.h>
#include <sluice/select/open.h>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"

namespace {

using namespace sluice;

constexpr uint64_t kWarmUp = 1000;
constexpr uint32_t kDepth = 128;  // operations outstanding, perf's default
constexpr TagMatch kAny{.tag = 0, .mask = uint64_t{1} << 63};

void check(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "library_loop: %s: %s\n", what, status.to_string().c_str());
  std::_Exit(bare::kExitFailed);
}

template <typename T>
T must(Result<T> result, const char* what) {
  check(result.ok() ? Status() : result.status(), what);
  return std::move(result).value();
}

Instant later() { return after(now(), std::chrono::seconds(100)); }

// A context sees the processors that its thread may use when it is opened, and this process is on
// one already: perf opens first and stays on one afterwards.
std::unique_ptr<Context> open_everywhere() {
  cpu_set_t own, all;
  CPU_ZERO(&all);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all);
  if (sched_getaffinity(0, sizeof(own), &own) != 0 || sched_setaffinity(0, sizeof(all), &all) != 0)
    bare::die("sched_setaffinity");
  std::unique_ptr<Context> context =
      must(open_context({.waiting = Waiting::kSpin}), "open_context");
  if (sched_setaffinity(0, sizeof(own), &own) != 0) bare::die("sched_setaffinity");
  return context;
}

// Set before there are two processes: their name for each other.
const pid_t owner = getpid();
std::string address(const std::string& mode) {
  const std::string port = std::to_string(20'000 + owner % 10'000);
  if (mode.starts_with("shm")) return "shm:library-loop-" + std::to_string(owner);
  if (mode.starts_with("tcp")) return "tcp://127.0.0.1:" + port;
  return mode.starts_with("udp") ? "l2://udp/127.0.0.1:" + port : "l2://lo:" + port;
}
std::string peer_address(const std::string& mode) {
  return mode.starts_with("packet")
             ? "l2://lo/00:00:00:00:00:00:" + std::to_string(20'000 + owner % 10'000)
             : address(mode);
}

// What the two processes tell each other beside the measured path.
struct Shared {
  std::atomic<bool> listening{false};
  std::atomic<bool> over{false};
};

class Side : private CompletionSink {
 public:
  explicit Side(const bare::Options& options) : options_(options), context_(open_everywhere()) {}

  void listen(Shared& shared) {
    Listener listener = must(context_->listen(address(options_.mode)), "listen");
    shared.listening = true;
    endpoint_ = must(listener.accept(later()), "accept");
  }
  void connect(const Shared& shared) {
    while (!shared.listening) {}
    endpoint_ = must(context_->connect(peer_address(options_.mode)), "connect");
  }

  // ---- a message there and one back

  void prepare_one(bool damaged) {
    out_.push_back(filled(damaged));
    in_.push_back(buffer());
    receive(0);
  }
  void echo(uint64_t steps) {
    for (uint64_t step = 0; step < steps; ++step) {
      until_arrived(step + 1);
      send(step);
      if (step + 1 < steps) receive(0);
    }
  }
  // From the step that `from` is to the one before `to`; the receive for the next one is posted.
  void ping(uint64_t from, uint64_t to) {
    for (uint64_t step = from; step < to; ++step) {
      send(step);
      if (step > 0) receive(0);
      until_arrived(step + 1);
    }
  }

  // ---- a window of messages one way

  void prepare_window(bool damaged) {
    for (uint32_t slot = 0; slot < kDepth; ++slot) out_.push_back(filled(damaged));
    idle_.resize(kDepth);
  }
  void send_all(uint64_t messages) {
    for (uint32_t slot = 0; slot < kDepth; ++slot) idle_[slot] = slot;
    first_idle_ = 0, last_idle_ = kDepth, completed_ = 0;
    uint64_t posted = 0;
    until([&] {
      while (posted < messages && first_idle_ != last_idle_) {
        const uint32_t slot = idle_[first_idle_ % kDepth];
        PostOptions how{.sink = this, .user_data = slot, .deadline = kNever};
        if (messages - posted <= kDepth) how.level = Level::kPlaced;
        auto sent = endpoint_.send(posted, out_[slot], how);
        if (!sent.ok() && sent.status().code() == Code::kTryAgain) break;
        check(sent.ok() ? Status() : sent.status(), "send");
        bare::burn_ns(options_.slow_ns);
        ++first_idle_, ++posted;
      }
      return completed_ == messages;
    });
  }
  void receive_all(uint64_t messages) {
    to_post_ = messages;
    for (uint32_t slot = 0; slot < kDepth; ++slot) {
      in_.push_back(buffer());
      if (to_post_ > 0) receive(slot), --to_post_;
    }
    until_arrived(messages);
  }

  // Words of all received buffers that are not those that were sent.
  uint64_t mismatches() const {
    uint64_t wrong = 0;
    for (const Buffer& each : in_) {
      if (each.data() != nullptr) wrong += bare::count_mismatches(each.data(), options_.size, 0);
    }
    return wrong;
  }
  void close() { (void)endpoint_.close(later()); }
  // Keeps the connection served until the other end has closed, or says that it is over.
  void serve(const std::atomic<bool>& over) {
    while (!over) context_->progress();
  }

 private:
  Buffer buffer() {
    return must(context_->allocate({static_cast<int64_t>(options_.size)}, uint8), "allocate");
  }
  Tensor filled(bool damaged) {
    Buffer payload = buffer();
    bare::fill_pattern(payload.data(), options_.size, 0);
    if (damaged) bare::flip_one_bit(payload.data(), options_.size);
    return std::move(payload).freeze();
  }
  void send(uint64_t step) {
    bare::burn_ns(options_.slow_ns);
    check(internal::status_of(endpoint_.send(step, out_[0], {.deadline = kNever})), "send");
  }
  void receive(uint32_t slot) {
    check(internal::status_of(endpoint_.receive(
              kAny, std::move(in_[slot]),
              {.sink = this, .user_data = uint64_t{kDepth} + slot, .deadline = kNever})),
          "receive");
  }
  template <typename Done>
  void until(Done&& done) {
    check(context_->wait_until(done, later()), "waiting");
  }
  void until_arrived(uint64_t count) {
    until([&] { return arrived_ >= count; });
  }
  void on_completion(Completion&& completion) noexcept override {
    check(completion.status, "completion");
    if (completion.user_data < kDepth) {
      ++completed_;
      idle_[last_idle_++ % kDepth] = static_cast<uint32_t>(completion.user_data);
      return;
    }
    const auto slot = static_cast<uint32_t>(completion.user_data - kDepth);
    in_[slot] = std::move(completion.buffers[0]);
    ++arrived_;
    if (to_post_ > 0) receive(slot), --to_post_;
  }

  const bare::Options& options_;
  std::unique_ptr<Context> context_;
  Endpoint endpoint_;
  std::vector<Tensor> out_;
  std::vector<Buffer> in_;
  std::vector<uint32_t> idle_;  // ring of slots
  uint64_t first_idle_ = 0, last_idle_ = 0, completed_ = 0;
  uint64_t arrived_ = 0, to_post_ = 0;
};

bool is_bandwidth(const bare::Options& options) { return options.mode.ends_with("_bw"); }

int far_side(const bare::Options& options, Shared& shared, bare::PeerReport& report) {
  Side side(options);
  side.listen(shared);
  const uint64_t all = kWarmUp + options.iterations;
  if (is_bandwidth(options)) {
    side.receive_all(all);
  } else {
    side.prepare_one(options.corrupt);
    side.echo(all);
  }
  report.mismatches = side.mismatches();
  report.cpu_seconds = bare::process_cpu_seconds();
  side.serve(shared.over);
  side.close();
  return 0;
}

int near_side(const bare::Options& options, Shared& shared, const bare::PeerReport& report) {
  Side side(options);
  side.connect(shared);
  const bool bandwidth = is_bandwidth(options);
  if (bandwidth) {
    side.prepare_window(options.corrupt);
    side.send_all(kWarmUp);
  } else {
    side.prepare_one(false);
    side.ping(0, kWarmUp);
  }
  const uint64_t start = bare::now_ns();
  if (bandwidth) {
    side.send_all(options.iterations);
  } else {
    side.ping(kWarmUp, kWarmUp + options.iterations);
  }
  const double seconds = static_cast<double>(bare::now_ns() - start) * 1e-9;
  // The far end writes it last.
  while (reinterpret_cast<const volatile double&>(report.cpu_seconds) == 0) {}
  const uint64_t wrong = side.mismatches() + report.mismatches;
  shared.over = true;
  side.close();
  if (wrong != 0) return bare::refuse(options, std::to_string(wrong) + " wrong words");
  const double messages = static_cast<double>(options.iterations) * (bandwidth ? 1 : 2);
  bare::Samples per_message;
  per_message.add(seconds / messages * (bandwidth ? 1 : 1e9));
  return bare::JsonLine(options)
      .raw(bandwidth ? "seconds" : "one_way_ns", per_message.json())
      .number("bytes_per_second", messages * static_cast<double>(options.size) / seconds)
      .number("cpu_seconds", bare::process_cpu_seconds() + report.cpu_seconds)
      .print_verified();
}

}  // namespace

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "library_loop";
  for (const char* path : {"shm", "tcp", "packet", "udp"}) {
    for (const char* what : {"_lat", "_bw"}) options.modes.push_back(std::string(path) + what);
  }
  options.mode = "shm_lat";
  options.iterations = 10'000;
  bare::parse_or_exit(options, argc, argv);
  auto* shared = new (bare::map_shared(sizeof(Shared))) Shared();
  return bare::run_pair(
      options, [&](bare::PeerReport& report) { return far_side(options, *shared, report); },
      [&](bare::PeerReport& report) { return near_side(options, *shared, report); });
}
