// Question: what does one operation cost as peers, keys and waiting fetches grow in number?
//
// All ends are contexts of this one process and thread, which takes turns with them: nothing is
// measured but the library's own work and the system calls that it makes.
// --mode idle_PATH (shm, tcp, udp, l2, loopback): a round trip of 64 bytes between two contexts,
//        beside --size connections to the answering context that nobody uses; also the memory,
//        descriptors and mappings of each of those. (udp is l2://udp; l2 needs CAP_NET_RAW.)
//        waiting_PATH: the same, and on each of those somebody waits for a message: it is asked
//        each second whether it is there.
//        keys: publishing and fetching one tensor under --size new names, one after the other; also
//        the names that the exchanges hold at the end.
//        fetches: publishing and fetching one tensor beside --size fetches of other keys that wait.
//        allocate: --size MiB are allocated and freed in the turns of a context, whose peer sends
//        64 bytes over TCP meanwhile and waits for the answer; then both by the calls that block.
//        fresh: a tensor of --size MiB is fetched by one that brings no memory, over TCP, likewise;
//        and its memory is freed.
//        allocate_small, fresh_small: the same, and the kernel may give this process no transparent
//        huge pages.
#include <dirent.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <sluice/api/allocating.h>
#include <sluice/exchange/exchange.h>
#include <sluice/select/open.h>
#include <sluice/select/progress_thread.h>

#include "benchmarks/bare/program.h"

namespace {

using namespace sluice;

constexpr uint64_t kWarmUp = 256;
constexpr Tag kTag = 1;
constexpr uint32_t kMostPeers = 100'000;

template <typename T>
T must(Result<T> result, const char* what) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "growth: %s: %s\n", what, result.status().to_string().c_str());
  std::_Exit(bare::kExitFailed);
}
void must(const Status& status, const char* what) {
  must(status.ok() ? Result<int>(0) : Result<int>(status), what);
}

Instant later() { return after(now(), std::chrono::seconds(300)); }

std::unique_ptr<Context> context_of() {
  ContextOptions options;
  options.arena_options = {.first_extent_bytes = size_t{4} << 20};
  options.waiting = Waiting::kSleep;  // while connecting; what is timed polls by itself
  options.peer_limits.connections = {kMostPeers, kMostPeers};
  return must(open_context(options), "open_context");
}

class Box final : public CompletionSink {
 public:
  void on_completion(Completion&& completion) noexcept override {
    must(completion.status, "an operation");
    last = std::move(completion);
    ++count;
  }
  PostOptions options() { return {.sink = this, .deadline = later()}; }
  Completion last;
  uint64_t count = 0;
};

// Two contexts joined by a path, and a third whose connections to the first are idle.
struct Crowd {
  std::unique_ptr<Context> server = context_of(), client = context_of(), idlers = context_of();
  Listener listener;
  Endpoint near, far;
  std::vector<Endpoint> idle;

  // One connection more, from `from`. connect() blocks: the server has a thread meanwhile.
  std::pair<Endpoint, Endpoint> join(Context& from) {
    ProgressThread thread(*server);
    Endpoint asked = must(from.connect(listener.address()), "connect");
    Endpoint answered =
        thread.run([&](Context&) { return must(listener.accept(later()), "accept"); });
    thread.stop();
    return {std::move(asked), std::move(answered)};
  }
  explicit Crowd(const std::string& scheme) {
    const std::string address = scheme == "tcp"   ? "tcp://127.0.0.1:0"
                                : scheme == "udp" ? "l2://udp/127.0.0.1:0"
                                : scheme == "l2"  ? "l2://lo:0"
                                                  : scheme + ":growth-" + std::to_string(getpid());
    ListenOptions options;
    options.max_connections = options.max_connections_by_address = kMostPeers;
    listener = must(server->listen(address, options), "listen");
    std::tie(near, far) = join(*client);
  }
  void add_idle(uint64_t count) {
    ProgressThread thread(*server);
    for (uint64_t i = 0; i < count; ++i) {
      idle.push_back(must(idlers->connect(listener.address()), "connect"));
      idle.push_back(
          thread.run([&](Context&) { return must(listener.accept(later()), "accept"); }));
    }
    thread.stop();
  }
  template <typename Done>
  void until(Done&& done) {
    const Instant end = later();
    for (uint64_t turn = 1; !done(); ++turn) {
      client->progress();
      server->progress();
      if (turn % 64 == 0) idlers->progress();  // it answers those who ask
      if (turn % 4096 == 0 && now() > end)
        must(Status(Code::kTimedOut, Scope::kOperation, "growth", "a turn"), "wait");
    }
  }
};

bool flip_a_bit = false;  // --corrupt, once

Tensor tensor_of(Context& context, uint64_t value) {
  Buffer buffer = must(context.allocate({8}, uint64), "allocate");
  std::fill_n(buffer.as<uint64_t>().data(), 8, value);
  if (std::exchange(flip_a_bit, false)) buffer.as<uint64_t>()[7] ^= 1;
  return std::move(buffer).freeze();
}

void check(const Tensor& tensor, uint64_t value) {
  if (tensor.as<uint64_t>().size() == 8 && tensor.as<uint64_t>()[7] == value) return;
  std::fprintf(stderr, "growth: the payload did not verify: it is not what was sent\n");
  std::_Exit(bare::kExitCorrupt);
}

// Kernel's counts of this process: resident bytes; these, where a page that is mapped twice counts
// once; open descriptors; mappings.
uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}
uint64_t proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  uint64_t kib = 0;
  for (std::string word; file >> word;) {
    if (word == "Pss:" && file >> kib) break;
  }
  return kib * 1024;
}
uint64_t mappings() {
  std::ifstream file("/proc/self/maps");
  uint64_t count = 0;
  for (std::string line; std::getline(file, line);) ++count;
  return count;
}
uint64_t descriptors() {
  uint64_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// Descriptors for `connections`, both ends of each in this process.
void raise_limit(uint64_t connections) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t needed = connections * 2 + 64;
  if (limit.rlim_cur >= needed) return;
  limit.rlim_cur = needed;
  limit.rlim_max = std::max(limit.rlim_max, needed);
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  std::fprintf(stderr, "growth: %llu descriptors are needed; type: ulimit -n %llu\n",
               static_cast<unsigned long long>(needed), static_cast<unsigned long long>(needed));
  std::_Exit(bare::kExitNothingToRunOn);
}

// Times iterations after a warm-up, in nanoseconds each.
template <typename Iteration>
bare::Samples samples_of(const bare::Options& options, Iteration&& iteration) {
  bare::Samples samples;
  for (uint64_t i = 0; i < kWarmUp + options.iterations; ++i) {
    const uint64_t start = bare::now_ns();
    iteration(i);
    bare::burn_ns(options.slow_ns);
    if (i >= kWarmUp) samples.add(static_cast<double>(bare::now_ns() - start));
  }
  samples.sort();
  return samples;
}

void run_idle(const bare::Options& options, bare::JsonLine& line) {
  raise_limit(options.size);
  Crowd crowd(options.mode.substr(options.mode.find('_') + 1));
  Box sent, came, answered, returned, waiting;
  const uint64_t bytes_before = proportional_bytes(), descriptors_before = descriptors();
  const uint64_t mappings_before = mappings();
  crowd.add_idle(options.size);
  const uint64_t bytes = proportional_bytes() - bytes_before;
  const uint64_t opened = descriptors() - descriptors_before;
  const uint64_t mapped = mappings() - mappings_before;
  if (options.mode.starts_with("waiting_")) {
    for (size_t i = 0; i < crowd.idle.size(); ++i) {
      Context& owner = i % 2 == 0 ? *crowd.idlers : *crowd.server;
      Buffer room = must(owner.allocate({8}, uint64), "allocate");
      must(crowd.idle[i].receive({.tag = kTag}, std::move(room), waiting.options()).status(),
           "receive");
    }
  }
  bare::Samples samples = samples_of(options, [&](uint64_t i) {
    auto receive = [&](Endpoint& at, Context& context, Box& box) {
      Buffer room = must(context.allocate({8}, uint64), "allocate");
      must(at.receive({.tag = kTag}, std::move(room), box.options()).status(), "receive");
    };
    receive(crowd.far, *crowd.server, came);
    receive(crowd.near, *crowd.client, returned);
    must(crowd.near.send(kTag, tensor_of(*crowd.client, i), sent.options()).status(), "send");
    crowd.until([&] { return came.count == i + 1; });
    check(std::move(came.last.buffers[0]).freeze(), i);
    must(crowd.far.send(kTag, tensor_of(*crowd.server, i), answered.options()).status(), "send");
    crowd.until([&] { return returned.count == i + 1 && sent.count == i + 1; });
    check(std::move(returned.last.buffers[0]).freeze(), i);
  });
  line.raw("round_trip_ns", samples.json());
  // Both ends of a connection are here: a process has half of it.
  const double ends = 2.0 * static_cast<double>(std::max<uint64_t>(options.size, 1));
  line.number("bytes_by_idle_end", static_cast<double>(bytes) / ends);
  line.number("descriptors_by_idle_end", static_cast<double>(opened) / ends);
  line.number("mappings_by_idle_end", static_cast<double>(mapped) / ends);
}

// Publishes and fetches one tensor; `name` of that turn.
template <typename Name>
bare::Samples fetches(const bare::Options& options, Crowd& crowd, Exchange& near, Exchange& far,
                      Name&& name) {
  return samples_of(options, [&](uint64_t i) {
    const std::string key = name(i);
    Fetch fetch = near.fetch({key, i}, later());
    must(far.publish({key, i}, tensor_of(*crowd.server, i)).status(), "publish");
    crowd.until([&] { return fetch.ready(); });
    check(must(fetch.take(), "fetch").value, i);
  });
}

void run_keys(const bare::Options& options, bare::JsonLine& line) {
  Crowd crowd("loopback");
  Exchange near(*crowd.client), far(*crowd.server);
  must(near.add(crowd.near), "add");
  must(far.add(crowd.far), "add");
  uint64_t made = 0;
  auto next = [&](uint64_t) { return "a name of ordinary length/" + std::to_string(made++); };
  bare::Options before = options;
  before.iterations = options.size;  // as many names before the clock starts
  (void)fetches(before, crowd, near, far, next);
  const uint64_t bytes = resident_bytes();
  bare::Samples samples = fetches(options, crowd, near, far, next);
  line.raw("fetch_ns", samples.json());
  line.number("names", static_cast<double>(made));
  line.number("names_held", static_cast<double>(near.key_count() + far.key_count()));
  line.number("bytes_resident", static_cast<double>(bytes));
}

void run_fetches(const bare::Options& options, bare::JsonLine& line) {
  auto context = context_of();
  // Without endpoints: fetches of the publishing program itself, which any publication may serve.
  Exchange exchange(*context);
  std::vector<Fetch> waiting;
  for (uint64_t i = 0; i < options.size; ++i)
    waiting.push_back(exchange.fetch({"later" + std::to_string(i % 10'000), i}, later()));
  bare::Samples samples = samples_of(options, [&](uint64_t i) {
    Fetch fetch = exchange.fetch({"now", i}, later());
    must(exchange.publish({"now", i}, tensor_of(*context, i)).status(), "publish");
    if (!fetch.ready())
      must(Status(Code::kInternal, Scope::kOperation, "growth", "not served"), "fetch");
    check(must(fetch.take(), "fetch").value, i);
  });
  line.raw("fetch_ns", samples.json());
}

// Turns of the server until `over`, each timed, and what its peer waits for an answer meanwhile.
template <typename Over>
void time_turns(const std::string& name, const bare::Options& options, Crowd& crowd,
                bare::JsonLine& line, Over&& over) {
  bare::Samples turns, answers;
  const uint64_t start = bare::now_ns();
  auto turn = [&] {
    const uint64_t before = bare::now_ns();
    crowd.server->progress();
    bare::burn_ns(options.slow_ns);
    turns.add(static_cast<double>(bare::now_ns() - before));
    crowd.client->prepare_to_sleep();  // so that it looks at its socket in each turn
    crowd.client->progress();
  };
  Box sent, came, answered, returned;
  uint64_t i = 0;
  for (; !over(); ++i) {
    auto receive = [&](Endpoint& at, Context& context, Box& box) {
      Buffer room = must(context.allocate({8}, uint64), "allocate");
      must(at.receive({.tag = kTag}, std::move(room), box.options()).status(), "receive");
    };
    receive(crowd.far, *crowd.server, came);
    receive(crowd.near, *crowd.client, returned);
    const uint64_t asked = bare::now_ns();
    must(crowd.near.send(kTag, tensor_of(*crowd.client, i), sent.options()).status(), "send");
    while (came.count == i && !over()) turn();
    crowd.until([&] { return came.count == i + 1; });
    check(std::move(came.last.buffers[0]).freeze(), i);
    must(crowd.far.send(kTag, tensor_of(*crowd.server, i), answered.options()).status(), "send");
    while (returned.count == i && !over()) turn();
    crowd.until([&] { return returned.count == i + 1 && sent.count == i + 1; });
    check(std::move(returned.last.buffers[0]).freeze(), i);
    answers.add(static_cast<double>(bare::now_ns() - asked));
  }
  line.number((name + "_seconds").c_str(), static_cast<double>(bare::now_ns() - start) / 1e9);
  turns.sort();
  answers.sort();
  line.raw((name + "_turn_ns").c_str(), turns.json());
  line.raw((name + "_answer_ns").c_str(), answers.json());
}

void run_allocate(const bare::Options& options, bare::JsonLine& line) {
  if (options.mode == "allocate_small" && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0)
    bare::die("prctl(PR_SET_THP_DISABLE)");
  Crowd crowd("tcp");
  const size_t bytes = size_t{options.size} << 20;
  std::string pages;
  {
    Allocating allocating = start_allocate(*crowd.server, bytes);
    time_turns("allocate", options, crowd, line, [&] { return allocating.ready(); });
    Buffer buffer = must(allocating.take(), "start_allocate");
    const auto place = crowd.server->arena().locate(buffer.data(), bytes);
    std::fill_n(buffer.data(), 64, std::byte{1});
    pages = to_string(crowd.server->arena().extents_over(place->arena_offset, bytes).back().pages);
  }
  (void)start_trim(*crowd.server);
  time_turns("free", options, crowd, line,
             [&] { return crowd.server->arena().freeing_bytes() == 0; });
  uint64_t start = bare::now_ns();
  Buffer buffer = must(crowd.server->arena().allocate(bytes), "allocate");
  line.number("blocking_allocate_seconds", static_cast<double>(bare::now_ns() - start) / 1e9);
  buffer = Buffer();
  start = bare::now_ns();
  (void)crowd.server->arena().trim();
  line.number("blocking_free_seconds", static_cast<double>(bare::now_ns() - start) / 1e9);
  line.text("pages", pages);
}

// Nobody brings memory for it: the server's arena must grow.
void run_fresh(const bare::Options& options, bare::JsonLine& line) {
  if (options.mode == "fresh_small" && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0)
    bare::die("prctl(PR_SET_THP_DISABLE)");
  Crowd crowd("tcp");
  Exchange near(*crowd.client), far(*crowd.server);
  must(near.add(crowd.near), "add");
  must(far.add(crowd.far), "add");
  const size_t bytes = size_t{options.size} << 20;
  Buffer source = must(crowd.client->arena().allocate(bytes), "allocate");
  auto words = [&](std::byte* data, size_t at) { return reinterpret_cast<uint64_t*>(data + at); };
  for (size_t at = 0; at < bytes; at += 4096) *words(source.data(), at) = at;
  must(near.publish({"w", 1}, std::move(source).freeze()).status(), "publish");
  std::string pages;
  {
    Fetch fetch = far.fetch({"w", 1}, later());
    time_turns("fetch", options, crowd, line, [&] { return fetch.ready(); });
    const Tensor tensor = must(fetch.take(), "fetch").value;
    uint64_t wrong = 0;
    for (size_t at = 0; at < bytes; at += 4096)
      wrong += *words(const_cast<std::byte*>(tensor.data()), at) == at ? 0 : 1;
    if (wrong != 0) bare::die("wrong words");
    pages = to_string(crowd.server->arena().locate(tensor.data(), bytes)->first.pages);
  }
  (void)start_trim(*crowd.server);
  time_turns("free", options, crowd, line,
             [&] { return crowd.server->arena().freeing_bytes() == 0; });
  line.text("pages", pages);
}

}  // namespace

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "growth";
  options.modes = {"idle_shm",      "idle_tcp",         "idle_udp",    "idle_l2",
                   "idle_loopback", "waiting_shm",      "waiting_tcp", "waiting_udp",
                   "waiting_l2",    "waiting_loopback", "keys",        "fetches",
                   "allocate",      "allocate_small",   "fresh",       "fresh_small"};
  options.mode = "idle_tcp";
  options.size = 100;
  options.iterations = 5'000;
  bare::parse_or_exit(options, argc, argv);
  alarm(static_cast<unsigned>(options.limit_seconds));
  flip_a_bit = options.corrupt;
  bare::JsonLine line(options);
  if (options.mode == "keys") {
    run_keys(options, line);
  } else if (options.mode == "fetches") {
    run_fetches(options, line);
  } else if (options.mode.starts_with("allocate")) {
    run_allocate(options, line);
  } else if (options.mode.starts_with("fresh")) {
    run_fresh(options, line);
  } else {
    run_idle(options, line);
  }
  line.number("cpu_seconds", bare::process_cpu_seconds());
  return line.print_verified();
}
