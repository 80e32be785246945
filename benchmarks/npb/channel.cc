#include "benchmarks/npb/channel.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "benchmarks/bare/program.h"

namespace npb {

double seconds_now() { return static_cast<double>(bare::now_ns()) * 1e-9; }

namespace {
class Timed {
 public:
  explicit Timed(double& sum) : sum_(sum), start_(seconds_now()) {}
  ~Timed() { sum_ += seconds_now() - start_; }

 private:
  double& sum_;
  double start_;
};
}  // namespace

void Channel::allreduce(Part data, Type type, Op op) {
  Timed timed(communicating_);
  do_allreduce(data, type, op);
}
void Channel::allgather(Part mine, Part all) {
  Timed timed(communicating_);
  do_allgather(mine, all);
}
void Channel::alltoall(Part send, Part receive) {
  Timed timed(communicating_);
  do_alltoall(send, receive);
}
void Channel::alltoallv(Part send, const std::vector<uint64_t>& send_bytes, Part receive,
                        const std::vector<uint64_t>& receive_bytes) {
  Timed timed(communicating_);
  do_alltoallv(send, send_bytes, receive, receive_bytes);
}
void Channel::broadcast(Part data, int root) {
  Timed timed(communicating_);
  do_broadcast(data, root);
}
void Channel::barrier() {
  Timed timed(communicating_);
  do_barrier();
}
void Channel::send(int to, uint32_t tag, Part data) { send_receive(to, data, -1, {}, tag); }
void Channel::post(int to, uint32_t tag, Part data) {
  Timed timed(communicating_);
  do_post(to, tag, data);
}
void Channel::receive(int from, uint32_t tag, Part into) { send_receive(-1, {}, from, into, tag); }
void Channel::send_receive(int to, Part data, int from, Part into, uint32_t tag) {
  Timed timed(communicating_);
  do_send_receive(to, data, from, into, tag);
}

double Channel::reduced(double value, Op op) {
  if (one_.data == nullptr) one_ = allocate(sizeof value);
  *one_.as<double>() = value;
  allreduce(whole(one_), Type::kDouble, op);
  return *one_.as<double>();
}

void Timer::start() {
  channel_.barrier();
  channel_.reset_clock();
  start_ = seconds_now();
}

void Timer::finish(Outcome& outcome) {
  const double mine = seconds_now() - start_;
  const double communicating = channel_.communicating_seconds();
  outcome.seconds = channel_.max(mine);
  outcome.share = channel_.sum(communicating / mine) / channel_.size();
}

void die(const std::string& what) {
  std::fprintf(stderr, "npb: %s\n", what.c_str());
  std::_Exit(1);
}

namespace {
constexpr const char* kUsage =
    "usage: npb --kernel is|cg|ft|lu|hpl|allreduce [--class S|W|A] [--ranks N]\n"
    "  [--path shm|tcp|loopback] [--limit SECONDS] [--corrupt]\n"
    "  hpl: [--order N] [--block 32..128] [--rows P]   allreduce: --bytes N [-n N]";
}  // namespace

void usage(const std::string& what) {
  std::fprintf(stderr, "npb: %s\n%s\n", what.c_str(), kUsage);
  std::exit(2);
}

namespace {
uint64_t number(const char* flag, const char* text, uint64_t least, uint64_t most) {
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != 0 || value < least || value > most)
    usage(std::string(flag) + " " + text + ": give a number from " + std::to_string(least) +
          " to " + std::to_string(most));
  return value;
}
}  // namespace

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") {
      std::puts(kUsage);
      std::exit(0);
    }
    if (flag == "--corrupt") {
      a.corrupt = true;
      continue;
    }
    if (i + 1 == argc) usage(flag + " needs a value");
    const char* value = argv[++i];
    if (flag == "--kernel") {
      a.kernel = value;
    } else if (flag == "--class") {
      a.problem_class = value;
    } else if (flag == "--path") {
      a.path = value;
    } else if (flag == "--ranks") {
      a.ranks = static_cast<int>(number("--ranks", value, 1, 64));
    } else if (flag == "--order") {
      a.order = static_cast<int>(number("--order", value, 1, 20000));
    } else if (flag == "--block") {
      a.block = static_cast<int>(number("--block", value, 1, 512));
    } else if (flag == "--rows") {
      a.rows = static_cast<int>(number("--rows", value, 1, 64));
    } else if (flag == "--bytes") {
      a.bytes = number("--bytes", value, 4, uint64_t{1} << 30);
    } else if (flag == "-n") {
      a.iterations = number("-n", value, 1, 100'000'000);
    } else if (flag == "--limit") {
      a.limit_seconds = number("--limit", value, 1, 86400);
    } else {
      usage("unknown flag " + flag);
    }
  }
  if (a.problem_class != "S" && a.problem_class != "W" && a.problem_class != "A")
    usage("--class " + a.problem_class + ": give S, W or A");
  return a;
}

namespace {
struct Kernel {
  const char* name;
  Outcome (*run)(Channel&, const Arguments&);
  void (*check)(const Arguments&, int ranks);
};

const Kernel& kernel_of(const Arguments& arguments) {
  static constexpr Kernel kKernels[] = {{"is", run_is, [](const Arguments&, int) {}},
                                        {"cg", run_cg, check_cg},
                                        {"ft", run_ft, check_ft},
                                        {"lu", run_lu, check_lu},
                                        {"hpl", run_hpl, check_hpl},
                                        {"allreduce", run_allreduce, check_allreduce}};
  for (const Kernel& kernel : kKernels)
    if (arguments.kernel == kernel.name) return kernel;
  usage("--kernel '" + arguments.kernel + "': give is, cg, ft, lu, hpl or allreduce");
}
}  // namespace

void check(const Arguments& arguments, int ranks) { kernel_of(arguments).check(arguments, ranks); }

int run_kernel(Channel& channel, const Arguments& arguments) {
  const Kernel& kernel = kernel_of(arguments);
  const Outcome outcome = kernel.run(channel, arguments);
  // Rank 0 knows what was found; the others leave with it.
  const bool verified = channel.sum(outcome.verified ? 0 : 1) == 0;
  if (!verified) {
    if (!outcome.verified)
      std::fprintf(stderr, "npb: %s.%s on rank %d did not verify: %s\n", kernel.name,
                   arguments.problem_class.c_str(), channel.rank(), outcome.wrong.c_str());
    return 4;
  }
  if (channel.rank() == 0) {
    std::printf(
        "{\"name\":\"npb\",\"kernel\":\"%s\",\"class\":\"%s\",\"ranks\":%d,"
        "\"path\":\"%s\",\"seconds\":%.9g,\"mops\":%.9g,\"communication_share\":%.4f%s,"
        "\"verified\":true}\n",
        kernel.name, arguments.problem_class.c_str(), channel.size(), channel.name().c_str(),
        outcome.seconds, outcome.mops, outcome.share, outcome.more.c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace npb
