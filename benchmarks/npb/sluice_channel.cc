// The channel over sluice, and the program's main: forks the ranks, which meet at fresh addresses.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <random>

#include <sluice/collective/group.h>
#include <sluice/select/open.h>

#include "benchmarks/npb/channel.h"

namespace npb {
namespace {

using sluice::Region;

class SluiceChannel final : public Channel {
 public:
  SluiceChannel(sluice::Context& context, std::unique_ptr<sluice::Group> group,
                sluice::Duration limit)
      : Channel(group->rank(), group->size()),
        context_(context),
        group_(std::move(group)),
        deadline_(sluice::after(sluice::now(), limit)) {}

  std::string name() const override {
    return "sluice " + std::string(sluice::to_string(group_->path()));
  }
  Block allocate(size_t bytes) override {
    sluice::Result<sluice::Buffer> buffer = context_.arena().allocate(std::max<size_t>(bytes, 1));
    if (!buffer.ok()) die(buffer.status().to_string());
    auto keep = std::make_shared<sluice::Buffer>(std::move(*buffer));
    return {keep->data(), bytes, keep};
  }
  sluice::Status close() { return group_->close(deadline_); }

 private:
  static Region region(Part part) {
    if (part.block == nullptr || part.block->keep == nullptr) return Region();
    return Region(*static_cast<sluice::Buffer*>(part.block->keep.get()), part.offset, part.bytes);
  }
  static void must(const sluice::Result<sluice::Receipt>& result) {
    if (!result.ok()) die(result.status().to_string());
  }
  void do_allreduce(Part data, Type type, Op op) override {
    constexpr sluice::DataType kTypes[] = {sluice::float32, sluice::float64, sluice::int32,
                                           sluice::int64};
    must(group_->allreduce_and_wait(
        region(data), kTypes[static_cast<int>(type)],
        op == Op::kSum ? sluice::ReduceOp::kSum : sluice::ReduceOp::kMax, deadline_));
  }
  void do_allgather(Part mine, Part all) override {
    must(group_->allgather_and_wait(region(mine), region(all), deadline_));
  }
  void do_alltoall(Part send, Part receive) override {
    must(group_->alltoall_and_wait(region(send), region(receive), deadline_));
  }
  void do_alltoallv(Part send, const std::vector<uint64_t>& send_bytes, Part receive,
                    const std::vector<uint64_t>& receive_bytes) override {
    must(group_->alltoallv_and_wait(region(send), send_bytes, region(receive), receive_bytes,
                                    deadline_));
  }
  void do_broadcast(Part data, int root) override {
    must(group_->broadcast_and_wait(region(data), root, deadline_));
  }
  void do_barrier() override { must(group_->barrier_and_wait(deadline_)); }
  void do_send_receive(int to, Part data, int from, Part into, uint32_t tag) override {
    must(group_->send_receive_and_wait(to, region(data), from, region(into), tag, deadline_));
  }
  void do_post(int to, uint32_t tag, Part data) override {
    const sluice::Status posted = group_->post(to, tag, region(data).as_tensor(), deadline_);
    if (!posted.ok()) die(posted.to_string());
  }

  sluice::Context& context_;
  std::unique_ptr<sluice::Group> group_;
  sluice::Instant deadline_;
};

int run_rank(const Arguments& arguments, int rank, const std::vector<std::string>& addresses) {
  const auto limit = std::chrono::seconds(arguments.limit_seconds);
  sluice::Result<std::unique_ptr<sluice::Context>> context = sluice::open_context();
  if (!context.ok()) die(context.status().to_string());
  auto group = sluice::Group::open(**context,
                                   {.rank = rank, .size = arguments.ranks, .addresses = addresses},
                                   sluice::after(sluice::now(), limit));
  if (!group.ok()) die(group.status().to_string());
  SluiceChannel channel(**context, std::move(*group), limit);
  const int result = run_kernel(channel, arguments);
  if (sluice::Status closed = channel.close(); !closed.ok() && result == 0)
    std::fprintf(stderr, "npb: closing: %s\n", closed.to_string().c_str());
  return result;
}

// Fresh names for paths of one host; free ports for the others.
std::vector<std::string> addresses_for(const Arguments& arguments) {
  std::random_device random;
  const uint32_t mark = random();
  std::vector<std::string> addresses;
  for (int rank = 0; rank < arguments.ranks; ++rank) {
    if (arguments.path == "shm") {
      addresses.push_back("shm:npb-" + std::to_string(mark) + "-" + std::to_string(rank));
    } else if (arguments.path == "tcp") {
      // Below the ephemeral ports; a port that is taken is told by listen().
      addresses.push_back("tcp://127.0.0.1:" +
                          std::to_string(10000 + (mark % 20000) + static_cast<uint32_t>(rank)));
    } else {
      usage("--path " + arguments.path + ": give shm or tcp");
    }
  }
  return addresses;
}

int run_all(const Arguments& arguments) {
  const std::vector<std::string> addresses = addresses_for(arguments);
  const pid_t parent = ::getpid();
  std::vector<pid_t> children;
  for (int rank = 1; rank < arguments.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) die("cannot fork");
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::alarm(static_cast<unsigned>(arguments.limit_seconds));
      ::_exit(run_rank(arguments, rank, addresses));
    }
    children.push_back(child);
  }
  ::alarm(static_cast<unsigned>(arguments.limit_seconds));
  int result = run_rank(arguments, 0, addresses);
  for (pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (result == 0 && status != 0) result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  }
  return result;
}

}  // namespace
}  // namespace npb

int main(int argc, char** argv) {
  const npb::Arguments arguments = npb::parse(argc, argv);
  npb::check(arguments, arguments.ranks);
  return npb::run_all(arguments);
}
