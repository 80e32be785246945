// Questions: what does it cost to make memory known to a device, and to take that back; and what
// does a cache of such registrations save, by how often it has what is asked for?
//
// --mode mlock     mlock(2): pages stay in memory, no device knows them
//        io_uring  a fixed buffer of an io_uring: pinned for direct access, as for a device
//        verbs     ibv_reg_mr of the first RDMA device
// Without --hit-percent an iteration registers and deregisters --size bytes, and nothing is moved.
// With it an iteration moves one of 16 buffers of --size bytes by a copy, the fastest transfer there is. In
// so many cases of a hundred its registration is there; else another is let go for it and it is
// registered. Both are of this same buffer, so that all shares of hits touch the same memory in the
// same order and differ in nothing but what registering costs.
#include <infiniband/verbs.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"

namespace bare {
namespace {

constexpr size_t kRegistered = 16;

[[noreturn]] void nothing_to_run_on(const char* why) {
  std::fprintf(stderr, "registration: %s\n", why);
  std::exit(kExitNothingToRunOn);
}

// One way to register, with a place for each buffer that is.
class Registrar {
 public:
  virtual ~Registrar() = default;
  virtual void take(size_t place, void* memory, size_t bytes) = 0;
  virtual void let_go(size_t place) = 0;
  // The field of /proc/self/status that says how much is pinned (proc(5)).
  virtual const char* field() const { return "VmPin:"; }
};

class Mlock final : public Registrar {
 public:
  void take(size_t place, void* memory, size_t bytes) override {
    if (mlock(memory, bytes) != 0) nothing_to_run_on("mlock is refused: ulimit -l is too small");
    of_[place] = {memory, bytes};
  }
  void let_go(size_t place) override {
    if (munlock(of_[place].iov_base, of_[place].iov_len) != 0) die("munlock");
  }
  const char* field() const override { return "VmLck:"; }

 private:
  std::array<iovec, kRegistered> of_{};
};

// A ring for each place: its buffers come and go together. Nothing is ever submitted.
class FixedBuffers final : public Registrar {
 public:
  FixedBuffers() {
    for (int& ring : rings_) {
      io_uring_params parameters{};
      ring = static_cast<int>(syscall(SYS_io_uring_setup, 1, &parameters));
      if (ring < 0) nothing_to_run_on("no io_uring: sysctl kernel.io_uring_disabled, or a filter of system calls");
    }
  }
  void take(size_t place, void* memory, size_t bytes) override {
    iovec segment{memory, bytes};
    if (syscall(SYS_io_uring_register, rings_[place], IORING_REGISTER_BUFFERS, &segment, 1) != 0) die("IORING_REGISTER_BUFFERS (ulimit -l)");
  }
  void let_go(size_t place) override {
    if (syscall(SYS_io_uring_register, rings_[place], IORING_UNREGISTER_BUFFERS, nullptr, 0) != 0) die("IORING_UNREGISTER_BUFFERS");
  }

 private:
  std::array<int, kRegistered> rings_{};
};

class Verbs final : public Registrar {
 public:
  Verbs() {
    ibv_device** devices = ibv_get_device_list(nullptr);
    if (devices == nullptr || devices[0] == nullptr) nothing_to_run_on("no RDMA device (a guest has one: sluice lab run -- COMMAND)");
    context_ = ibv_open_device(devices[0]);
    ibv_free_device_list(devices);
    if (context_ == nullptr) die("ibv_open_device");
    domain_ = ibv_alloc_pd(context_);
    if (domain_ == nullptr) die("ibv_alloc_pd");
  }
  void take(size_t place, void* memory, size_t bytes) override {
    of_[place] = ibv_reg_mr(domain_, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    if (of_[place] == nullptr) die("ibv_reg_mr (ulimit -l)");
  }
  void let_go(size_t place) override {
    errno = ibv_dereg_mr(of_[place]);
    if (errno != 0) die("ibv_dereg_mr");
  }

 private:
  ibv_context* context_;
  ibv_pd* domain_;
  std::array<ibv_mr*, kRegistered> of_{};
};

std::unique_ptr<Registrar> registrar_of(const std::string& mode) {
  if (mode == "mlock") return std::make_unique<Mlock>();
  if (mode == "io_uring") return std::make_unique<FixedBuffers>();
  return std::make_unique<Verbs>();
}

uint64_t pinned_kib(const char* field) {
  FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) die("/proc/self/status");
  char line[256];
  uint64_t kib = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, field, std::strlen(field)) == 0) std::sscanf(line + std::strlen(field), "%" SCNu64, &kib);
  }
  std::fclose(file);
  return kib;
}

// What is registered must be held by the kernel, or the figure is of nothing.
bool holds_pages(Registrar& registrar, void* memory, size_t bytes) {
  const uint64_t before = pinned_kib(registrar.field());
  registrar.take(0, memory, bytes);
  const uint64_t after = pinned_kib(registrar.field());
  registrar.let_go(0);
  return after > before;
}

int report(const Options& options, Samples& seconds, double total, double cpu, uint64_t registrations) {
  seconds.sort();
  const double bytes = static_cast<double>(options.iterations * options.size);
  JsonLine line(options);
  if (options.hit_percent != kNoHitPercent) line.number("hit_percent", static_cast<double>(options.hit_percent));
  return line.number("registrations", static_cast<double>(registrations))
      .raw("seconds", seconds.json())
      .number("bytes_per_second", bytes / total)
      .number("cpu_seconds", cpu)
      .print_verified();
}

int register_and_let_go(const Options& options, Registrar& registrar) {
  void* memory = map_private(options.size);
  fill_pattern(memory, options.size, 3);
  if (!holds_pages(registrar, memory, options.size)) return refuse(options, "nothing is pinned by it");
  Samples seconds;
  double total = 0;
  const double cpu_before = process_cpu_seconds();
  for (uint64_t i = 0; i < options.iterations; ++i) {
    const uint64_t start = now_ns();
    registrar.take(0, memory, options.size);
    burn_ns(options.slow_ns);
    registrar.let_go(0);
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    seconds.add(took);
    total += took;
  }
  const double cpu = process_cpu_seconds() - cpu_before;
  if (options.corrupt) flip_one_bit(memory, options.size);
  if (count_mismatches(memory, options.size, 3) != 0) return refuse(options, "the memory that was registered");
  return report(options, seconds, total, cpu, options.iterations);
}

int move_by_cache(const Options& options, Registrar& registrar) {
  std::array<void*, kRegistered> buffers;
  for (size_t i = 0; i < kRegistered; ++i) {
    buffers[i] = map_private(options.size);
    fill_pattern(buffers[i], options.size, static_cast<uint32_t>(i));
  }
  void* destination = map_private(options.size);
  if (!holds_pages(registrar, buffers[0], options.size)) return refuse(options, "nothing is pinned by it");
  for (size_t i = 0; i < kRegistered; ++i) registrar.take(i, buffers[i], options.size);
  Samples seconds;
  uint64_t random = 1, misses = 0, wrong = 0;
  double total = 0, cpu = 0;
  for (uint64_t i = 0; i < options.iterations; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const size_t buffer = (random >> 60) % kRegistered;
    const bool hits = (random >> 33) % 100 < options.hit_percent;
    const double cpu_before = process_cpu_seconds();
    const uint64_t start = now_ns();
    if (!hits) {
      registrar.let_go(buffer);
      registrar.take(buffer, buffers[buffer], options.size);
      ++misses;
    }
    std::memcpy(destination, buffers[buffer], options.size);
    burn_ns(options.slow_ns);
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    cpu += process_cpu_seconds() - cpu_before;
    if (options.corrupt && i == options.iterations / 2) flip_one_bit(destination, options.size);
    wrong += count_mismatches(destination, options.size, static_cast<uint32_t>(buffer));
    seconds.add(took);
    total += took;
  }
  for (size_t i = 0; i < kRegistered; ++i) registrar.let_go(i);
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong words");
  return report(options, seconds, total, cpu, misses);
}

int run(const Options& options) {
  if (!pin_to_cpu(0)) die("sched_setaffinity");
  alarm(static_cast<unsigned>(options.limit_seconds));
  const std::unique_ptr<Registrar> registrar = registrar_of(options.mode);
  return options.hit_percent == kNoHitPercent ? register_and_let_go(options, *registrar) : move_by_cache(options, *registrar);
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  bare::Options options;
  options.name = "registration";
  options.modes = {"mlock", "io_uring", "verbs"};
  options.mode = "io_uring";
  options.caches = true;
  options.size = 1u << 20;
  options.iterations = 100;
  bare::parse_or_exit(options, argc, argv);
  return bare::run(options);
}
