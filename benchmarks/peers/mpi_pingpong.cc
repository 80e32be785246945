// Question: what do the same exchanges cost over MPI? Run with `mpirun -np 2`.
//
// --mode latency: `--size` bytes there and back, figure one_way_ns.
// --mode bulk: `--size` bytes from rank 0 into preallocated memory of rank 1.
// --mode vgg16: the 32 tensors of VGG16 the same way, one word of each page
// read inside the timed part. Rank 1 measures and prints.
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "benchmarks/bare/pattern.h"
#include "benchmarks/bare/program.h"
#include "benchmarks/bare/vgg16_pull.h"

namespace bare {
namespace {

constexpr size_t kPage = 4096;

void send(const void* data, size_t bytes, int to) {
  MPI_Send(data, static_cast<int>(bytes), MPI_BYTE, to, 0, MPI_COMM_WORLD);
}
void receive(void* data, size_t bytes, int from) {
  MPI_Recv(data, static_cast<int>(bytes), MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int latency(const Options& options, int rank) {
  constexpr uint64_t kWarmUpRounds = 1000;
  std::vector<unsigned char> sent(options.size), received(options.size);
  if (rank == 0) {
    for (uint64_t i = 0; i < kWarmUpRounds + options.iterations; ++i) {
      receive(received.data(), options.size, 1);
      burn_ns(options.slow_ns);
      if (options.corrupt) flip_one_bit(received.data(), options.size);
      send(received.data(), options.size, 1);
    }
    return 0;
  }
  Samples one_way_ns;
  uint64_t wrong = 0, total_ns = 0;
  for (uint64_t i = 0; i < kWarmUpRounds + options.iterations; ++i) {
    fill_pattern(sent.data(), options.size, static_cast<uint32_t>(i));
    const uint64_t start = now_ns();
    send(sent.data(), options.size, 0);
    receive(received.data(), options.size, 0);
    const uint64_t took = now_ns() - start;
    wrong += sent != received ? 1 : 0;
    if (i < kWarmUpRounds) continue;
    one_way_ns.add(static_cast<double>(took) / 2);
    total_ns += took;
  }
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong answers");
  one_way_ns.sort();
  const double bytes = 2.0 * static_cast<double>(options.iterations * options.size);
  return JsonLine(options)
      .raw("one_way_ns", one_way_ns.json())
      .number("bytes_per_second", bytes / (static_cast<double>(total_ns) * 1e-9))
      .number("receiver_cpu_seconds", process_cpu_seconds())  // this rank, with set-up
      .print_verified();
}

uint32_t read_one_word_per_page(const unsigned char* data, size_t bytes) {
  uint32_t sum = 0;
  for (size_t at = 0; at < bytes; at += kPage)
    sum += *reinterpret_cast<const volatile uint32_t*>(data + at);
  return sum;
}

// One step moves all `tensors` (their bytes); bulk is a step of one tensor.
int pull(const Options& options, int rank, const std::vector<size_t>& tensors) {
  size_t total = 0;
  for (size_t bytes : tensors) total += (bytes + kPage - 1) / kPage * kPage;
  auto* memory = static_cast<unsigned char*>(map_private(total));
  Samples seconds;
  uint64_t wrong = 0;
  double total_seconds = 0;
  uint32_t seen = 0;
  for (uint64_t step = 0; step <= options.iterations; ++step) {
    if (rank == 0) fill_pattern(memory, total, static_cast<uint32_t>(step));
    if (rank == 0 && options.corrupt) flip_one_bit(memory, tensors.back() / 2);
    MPI_Barrier(MPI_COMM_WORLD);
    const uint64_t start = now_ns();
    if (rank == 0) burn_ns(options.slow_ns);
    unsigned char* at = memory;
    for (size_t bytes : tensors) {
      if (rank == 0) send(at, bytes, 1);
      if (rank == 1) receive(at, bytes, 0);
      at += (bytes + kPage - 1) / kPage * kPage;
    }
    if (rank == 0) continue;
    seen += read_one_word_per_page(memory, total);
    const double took = static_cast<double>(now_ns() - start) * 1e-9;
    at = memory;
    for (size_t bytes : tensors) {
      for (size_t word = 0; word < bytes / sizeof(uint32_t); ++word) {
        uint32_t value;
        std::memcpy(&value, at + word * sizeof value, sizeof value);
        const size_t index = static_cast<size_t>(at - memory) / sizeof value + word;
        wrong += value != pattern_word(index, static_cast<uint32_t>(step)) ? 1 : 0;
      }
      at += (bytes + kPage - 1) / kPage * kPage;
    }
    if (step == 0) continue;  // warm-up
    seconds.add(took);
    total_seconds += took;
  }
  if (rank == 0) return 0;
  if (wrong != 0) return refuse(options, std::to_string(wrong) + " wrong words");
  seconds.sort();
  const double bytes = static_cast<double>(options.iterations * options.size);
  return JsonLine(options)
      .raw("seconds", seconds.json())
      .number("bytes_per_second", bytes / total_seconds)
      .number("receiver_cpu_seconds", process_cpu_seconds())  // this rank, with set-up
      .number("words_seen", seen)
      .print_verified();
}

int run(Options& options, int rank) {
  if (!pin_to_cpu(rank)) die("sched_setaffinity");
  if (options.mode == "latency") return latency(options, rank);
  if (options.mode == "bulk") return pull(options, rank, {options.size});
  options.size = vgg16_bytes();
  std::vector<size_t> tensors;
  for (uint64_t elements : kVgg16Elements) tensors.push_back(elements * sizeof(float));
  return pull(options, rank, tensors);
}

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  bare::Options options;
  options.name = "mpi_pingpong";
  options.modes = {"latency", "bulk", "vgg16"};
  options.mode = "latency";
  options.iterations = 10'000;
  bare::parse_or_exit(options, argc, argv);
  alarm(static_cast<unsigned>(options.limit_seconds));
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != 2) {
    fprintf(stderr, "mpi_pingpong: needs mpirun -np 2\n");
    return bare::kExitUsage;
  }
  const int result = bare::run(options, rank);
  if (result != 0) MPI_Abort(MPI_COMM_WORLD, result);
  MPI_Finalize();
  return result;
}
