// Question: what is a cache of registrations worth by how long it is until a buffer is asked for
// again, and by what it lets go when it is full?
//
// --buffers of --size bytes are asked for in turns, each moved by a copy: until one is asked for
// again, all others are. The cache has 16 places. --mode io_uring_lru     lets go what was used
// longest ago
//                          io_uring_random  lets go any
//                          io_uring_arena   as many places as buffers: all are registered once,
//                          before verbs_...        likewise, with ibv_reg_mr
// What is asked for and is not registered is, in the place of what is let go. `hit_percent` is what
// the cache had.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/bare/registrar.h"

namespace bare {
namespace {

constexpr size_t kPlaces = 16;
constexpr size_t kNowhere = ~size_t{0};

enum class Eviction { kOldest, kAny };

// Which buffer is in which place, and who goes.
class Cache {
 public:
  Cache(Registrar& registrar, size_t places, Eviction eviction, size_t buffers)
      : registrar_(registrar),
        eviction_(eviction),
        place_of_(buffers, kNowhere),
        in_(places, kNowhere),
        used_(places, 0) {}
  // Whether the buffer was registered already. It is now.
  bool want(size_t buffer, void* memory, size_t bytes) {
    const bool hit = place_of_[buffer] != kNowhere;
    if (!hit) {
      const size_t place = empty_ < in_.size() ? empty_++ : free_one();
      registrar_.take(place, memory, bytes);
      in_[place] = buffer;
      place_of_[buffer] = place;
    }
    used_[place_of_[buffer]] = ++turn_;
    return hit;
  }
  void let_go_all() {
    for (size_t place = 0; place < empty_; ++place) registrar_.let_go(place);
  }

 private:
  size_t free_one() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    const size_t place =
        eviction_ == Eviction::kAny
            ? (random_ >> 33) % in_.size()
            : static_cast<size_t>(std::min_element(used_.begin(), used_.end()) - used_.begin());
    registrar_.let_go(place);
    place_of_[in_[place]] = kNowhere;
    return place;
  }
  Registrar& registrar_;
  Eviction eviction_;
  std::vector<size_t> place_of_, in_;
  std::vector<uint64_t> used_;
  size_t empty_ = 0;
  uint64_t turn_ = 0, random_ = 1;
};

std::vector<void*> filled_buffers(const Options& options) {
  std::vector<void*> buffers(options.buffers);
  for (size_t i = 0; i < buffers.size(); ++i) {
    buffers[i] = map_private(options.size);
    fill_pattern(buffers[i], options.size, static_cast<uint32_t>(i));
  }
  return buffers;
}

int run(const Options& options) {
  if (!pin_to_cpu(0)) die("sched_setaffinity");
  alarm(static_cast<unsigned>(options.limit_seconds));
  const std::string way = options.mode.substr(0, options.mode.rfind('_')),
                    policy = options.mode.substr(way.size() + 1);
  const size_t places = policy == "arena" ? std::max<size_t>(kPlaces, options.buffers) : kPlaces;
  const std::unique_ptr<Registrar> registrar = registrar_of(way, places);
  const std::vector<void*> buffers = filled_buffers(options);
  void* destination = map_private(options.size);
  if (!holds_pages(*registrar, buffers[0], options.size))
    return refuse(options, "nothing is pinned by it");
  Cache cache(*registrar, places, policy == "random" ? Eviction::kAny : Eviction::kOldest,
              buffers.size());
  // Two turns of all before the clock starts: the cache is as it stays.
  const uint64_t warm_up = 2 * buffers.size();
  Samples seconds;
  uint64_t hits = 0, wrong = 0;
  double total = 0, cpu = 0;
  for (uint64_t i = 0; i < warm_up + options.iterations; ++i) {
    const size_t buffer = i % buffers.size();
    const double cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    const bool hit = cache.want(buffer, buffers[buffer], options.size);
    std::memcpy(destination, buffers[buffer], options.size);
    burn_ns(options.slow_ns);
    const double took = static_cast<double>(now_ns() - start) * 1e-9,
                 used = process_cpu_seconds() - cpu_before;
    if (options.corrupt && i == warm_up) flip_one_bit(destination, options.size);
    wrong += count_mismatches(destination, options.size, static_cast<uint32_t>(buffer));
    if (i < warm_up) continue;
    cpu += used;
    hits += hit ? 1 : 0;
    seconds.add(took);
    total += took;
  }
  cache.let_go_all();
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong words");
  seconds.sort();
  return JsonLine(options)
      .number("buffers", static_cast<double>(options.buffers))
      .number("hit_percent",
              100 * static_cast<double>(hits) / static_cast<double>(options.iterations))
      .raw("seconds", seconds.json())
      .number("bytes_per_second", static_cast<double>(options.iterations * options.size) / total)
      .number("cpu_seconds", cpu)
      .print_verified();
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "registration_reuse";
  for (const char* way : {"io_uring", "verbs"}) {
    for (const char* policy : {"lru", "random", "arena"})
      options.modes.push_back(std::string(way) + "_" + policy);
  }
  options.mode = "io_uring_lru";
  options.size = 64u << 10;
  options.buffers = 16;
  options.iterations = 2000;
  bare::parse_or_exit(options, argc, argv);
  return bare::run(options);
}
