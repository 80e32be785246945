// The same kernels over MPI: `mpirun -np N npb_mpi --kernel ...`. The peer of sluice_channel.cc.
#include <mpi.h>
#include <unistd.h>

#include <cstdlib>

#include "benchmarks/npb/channel.h"

namespace npb {
namespace {

class MpiChannel final : public Channel {
 public:
  MpiChannel(int rank, int size) : Channel(rank, size) {}
  ~MpiChannel() override { MPI_Wait(&posted_, MPI_STATUS_IGNORE); }
  std::string name() const override { return "Open MPI"; }
  Block allocate(size_t bytes) override {
    void* memory = nullptr;
    if (::posix_memalign(&memory, 256, bytes + 256) != 0) die("no memory");
    return {static_cast<std::byte*>(memory), bytes, std::shared_ptr<void>(memory, std::free)};
  }

 private:
  static void* at(Part part) {
    return part.block == nullptr ? nullptr : part.block->data + part.offset;
  }
  static int count(Part part) { return static_cast<int>(part.bytes); }
  void do_allreduce(Part data, Type type, Op op) override {
    const MPI_Datatype types[] = {MPI_FLOAT, MPI_DOUBLE, MPI_INT32_T, MPI_INT64_T};
    constexpr size_t kBytes[] = {4, 8, 4, 8};
    const auto t = static_cast<size_t>(type);
    MPI_Allreduce(MPI_IN_PLACE, at(data), static_cast<int>(data.bytes / kBytes[t]), types[t],
                  op == Op::kSum ? MPI_SUM : MPI_MAX, MPI_COMM_WORLD);
  }
  void do_allgather(Part mine, Part all) override {
    const bool in_place =
        at(mine) == static_cast<std::byte*>(at(all)) + static_cast<size_t>(rank()) * mine.bytes;
    MPI_Allgather(in_place ? MPI_IN_PLACE : at(mine), count(mine), MPI_BYTE, at(all), count(mine),
                  MPI_BYTE, MPI_COMM_WORLD);
  }
  void do_alltoall(Part send, Part receive) override {
    const int each = count(send) / size();
    MPI_Alltoall(at(send), each, MPI_BYTE, at(receive), each, MPI_BYTE, MPI_COMM_WORLD);
  }
  void do_alltoallv(Part send, const std::vector<uint64_t>& send_bytes, Part receive,
                    const std::vector<uint64_t>& receive_bytes) override {
    std::vector<int> counts[2], offsets[2];
    for (int side = 0; side < 2; ++side) {
      int at = 0;
      for (uint64_t bytes : side == 0 ? send_bytes : receive_bytes) {
        counts[side].push_back(static_cast<int>(bytes));
        offsets[side].push_back(at);
        at += static_cast<int>(bytes);
      }
    }
    MPI_Alltoallv(at(send), counts[0].data(), offsets[0].data(), MPI_BYTE, at(receive),
                  counts[1].data(), offsets[1].data(), MPI_BYTE, MPI_COMM_WORLD);
  }
  void do_broadcast(Part data, int root) override {
    MPI_Bcast(at(data), count(data), MPI_BYTE, root, MPI_COMM_WORLD);
  }
  void do_barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  void do_send_receive(int to, Part data, int from, Part into, uint32_t tag) override {
    MPI_Sendrecv(at(data), count(data), MPI_BYTE, to < 0 ? MPI_PROC_NULL : to,
                 static_cast<int>(tag), at(into), count(into), MPI_BYTE,
                 from < 0 ? MPI_PROC_NULL : from, static_cast<int>(tag), MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
  }
  void do_post(int to, uint32_t tag, Part data) override {
    // One is under way at most: the next waits for it.
    MPI_Wait(&posted_, MPI_STATUS_IGNORE);
    MPI_Isend(at(data), count(data), MPI_BYTE, to, static_cast<int>(tag), MPI_COMM_WORLD, &posted_);
  }

  MPI_Request posted_ = MPI_REQUEST_NULL;
};

}  // namespace
}  // namespace npb

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  npb::Arguments arguments = npb::parse(argc, argv);
  npb::check(arguments, size);
  alarm(static_cast<unsigned>(arguments.limit_seconds));
  int result = 0;
  {
    npb::MpiChannel channel(rank, size);
    result = npb::run_kernel(channel, arguments);
  }
  if (result != 0) MPI_Abort(MPI_COMM_WORLD, result);
  MPI_Finalize();
  return result;
}
