// Every collective against the same done naively, over one path.
#include <algorithm>
#include <complex>
#include <cstring>
#include <random>

#include <catch2/catch.hpp>

#include "tests/collective/ranks.h"

namespace sluice::test {
namespace {

const int kSizes[] = {1, 2, 3, 4, 5, 8};
// Elements: none, one, fewer than ranks, around the 32 KiB that fit a slot, many.
const size_t kCounts[] = {0, 1, 3, 1000, 4096, 4097, 8192, 8193, 50'001};

// Small whole numbers, so that every order of summing gives the same bits.
template <typename T>
T value_of(int rank, size_t index, uint32_t seed) {
  const uint32_t mixed = static_cast<uint32_t>(index * 2654435761u + seed * 97 +
                                               static_cast<uint32_t>(rank) * 40503u) >>
                         7;
  if constexpr (std::is_same_v<T, std::complex<double>> || std::is_same_v<T, std::complex<float>>)
    return T(static_cast<float>(mixed % 5), static_cast<float>(mixed / 8 % 3));
  else
    return static_cast<T>(static_cast<int>(mixed % 13) - 4);
}

template <typename T>
T combined(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kSum) return a + b;
  if (op == ReduceOp::kProduct) return a * b;
  if constexpr (std::is_arithmetic_v<T>)
    return op == ReduceOp::kMin ? std::min(a, b) : std::max(a, b);
  return a;
}

template <typename T>
T expected(ReduceOp op, int size, size_t index, uint32_t seed) {
  T result = value_of<T>(0, index, seed);
  for (int rank = 1; rank < size; ++rank)
    result = combined(op, result, value_of<T>(rank, index, seed));
  return result;
}

template <typename T>
void check_reductions(Rank& self, DataType dtype, ReduceOp op, size_t count, uint32_t seed) {
  Buffer buffer = self.allocate(count * sizeof(T));
  T* data = reinterpret_cast<T*>(buffer.data());
  auto fill = [&] {
    for (size_t i = 0; i < count; ++i) data[i] = value_of<T>(self.rank(), i, seed);
  };
  const Region region(buffer, 0, count * sizeof(T));
  const std::string what = dtype.to_string() + " op " + std::to_string(static_cast<int>(op)) +
                           " of " + std::to_string(count);
  fill();
  self.ok(self.group.allreduce_and_wait(region, dtype, op, soon()), "allreduce " + what);
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += data[i] != expected<T>(op, self.size(), i, seed);
  self.check(wrong == 0, std::to_string(wrong) + " wrong elements: allreduce " + what);

  const int root = static_cast<int>(seed) % self.size();
  fill();
  self.ok(self.group.reduce_and_wait(region, dtype, op, root, soon()), "reduce " + what);
  wrong = 0;
  for (size_t i = 0; i < count; ++i)
    wrong += data[i] != (self.rank() == root ? expected<T>(op, self.size(), i, seed)
                                             : value_of<T>(self.rank(), i, seed));
  self.check(wrong == 0, std::to_string(wrong) + " wrong elements: reduce " + what);
}

unsigned char byte_of(int from, int to, size_t index) {
  return static_cast<unsigned char>(from * 31 + to * 7 + static_cast<int>(index % 251));
}

}  // namespace

TEST_CASE("reductions of float64 give what a serial loop gives, for every number of ranks") {
  for (int size : kSizes) {
    auto failures = run_ranks(size, [](Rank& self) {
      uint32_t seed = 0;
      for (size_t count : kCounts)
        check_reductions<double>(self, float64, ReduceOp::kSum, count, ++seed);
    });
    INFO(size << " ranks\n" << joined(failures));
    CHECK(failures.empty());
  }
}

TEST_CASE("reductions of every dtype and operation give what a serial loop gives") {
  auto failures = run_ranks(3, [](Rank& self) {
    uint32_t seed = 100;
    for (size_t count : {size_t{1}, size_t{777}, size_t{20'000}}) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        check_reductions<float>(self, float32, op, count, ++seed);
        check_reductions<double>(self, float64, op, count, ++seed);
        check_reductions<int32_t>(self, int32, op, count, ++seed);
        check_reductions<int64_t>(self, int64, op, count, ++seed);
      }
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct}) {
        check_reductions<std::complex<float>>(self, complex64, op, count, ++seed);
        check_reductions<std::complex<double>>(self, complex128, op, count, ++seed);
      }
    }
  });
  INFO(joined(failures));
  CHECK(failures.empty());
}

TEST_CASE("an allreduce of reals gives every rank the same bits") {
  for (size_t count : {size_t{1000}, size_t{30'000}}) {
    auto failures = run_ranks(4, [count](Rank& self) {
      std::mt19937 random(static_cast<uint32_t>(self.rank()) + 1);
      Buffer data = self.allocate(count * 4), all = self.allocate(count * 4 * 4);
      for (size_t i = 0; i < count; ++i)
        reinterpret_cast<float*>(data.data())[i] = static_cast<float>(random()) * 1e-9f;
      self.ok(self.group.allreduce_and_wait(Region(data, 0, count * 4), float32, ReduceOp::kSum,
                                            soon()),
              "allreduce");
      self.ok(self.group.allgather_and_wait(Region(data, 0, count * 4), Region(all, 0, count * 16),
                                            soon()),
              "allgather");
      for (int rank = 0; rank < 4; ++rank)
        self.check(std::memcmp(all.data() + static_cast<size_t>(rank) * count * 4, data.data(),
                               count * 4) == 0,
                   "rank " + std::to_string(rank) + " has other bits");
    });
    INFO(joined(failures));
    CHECK(failures.empty());
  }
}

TEST_CASE("memory that is not from an arena is reduced all the same") {
  auto failures = run_ranks(3, [](Rank& self) {
    std::vector<double> mine(20'000, self.rank() + 1.0);
    // One rank lends what peers cannot map: all ranks then send messages.
    Buffer buffer = self.rank() == 1 ? Buffer::wrap(
                                           mine.data(), mine.size() * 8, [](void*) {}, nullptr)
                                           .value()
                                     : self.allocate(mine.size() * 8);
    auto* data = reinterpret_cast<double*>(buffer.data());
    for (int round = 0; round < 3; ++round) {
      std::fill(data, data + mine.size(), self.rank() + 1.0);
      self.ok(self.group.allreduce_and_wait(Region(buffer, 0, mine.size() * 8), float64,
                                            ReduceOp::kSum, soon()),
              "allreduce");
      self.check(std::all_of(data, data + mine.size(), [](double v) { return v == 6.0; }), "sum");
    }
  });
  INFO(joined(failures));
  CHECK(failures.empty());
}

TEST_CASE("broadcast, allgather and alltoall move every byte to its place") {
  for (int size : kSizes) {
    auto failures = run_ranks(size, [](Rank& self) {
      const auto ranks = static_cast<size_t>(self.size());
      for (size_t bytes :
           {size_t{0}, size_t{1}, size_t{5000}, size_t{32768}, size_t{32769}, size_t{300'000}}) {
        const int root = static_cast<int>(bytes) % self.size();
        Buffer one = self.allocate(bytes), all = self.allocate(bytes * ranks),
               sent = self.allocate(bytes * ranks);
        for (size_t i = 0; i < bytes; ++i) one.data()[i] = std::byte{byte_of(self.rank(), 0, i)};
        self.ok(self.group.broadcast_and_wait(Region(one, 0, bytes), root, soon()), "broadcast");
        size_t wrong = 0;
        for (size_t i = 0; i < bytes; ++i) wrong += one.data()[i] != std::byte{byte_of(root, 0, i)};
        self.check(wrong == 0, "broadcast of " + std::to_string(bytes));

        // In place: each rank's part lies where it belongs.
        const auto mine = static_cast<size_t>(self.rank());
        for (size_t i = 0; i < bytes; ++i)
          all.data()[mine * bytes + i] = std::byte{byte_of(self.rank(), 1, i)};
        self.ok(self.group.allgather_and_wait(Region(all, mine * bytes, bytes),
                                              Region(all, 0, bytes * ranks), soon()),
                "allgather");
        wrong = 0;
        for (size_t r = 0; r < ranks; ++r)
          for (size_t i = 0; i < bytes; ++i)
            wrong += all.data()[r * bytes + i] != std::byte{byte_of(static_cast<int>(r), 1, i)};
        self.check(wrong == 0, "allgather of " + std::to_string(bytes));

        for (size_t r = 0; r < ranks; ++r)
          for (size_t i = 0; i < bytes; ++i)
            sent.data()[r * bytes + i] = std::byte{byte_of(self.rank(), static_cast<int>(r), i)};
        self.ok(self.group.alltoall_and_wait(Region(sent, 0, bytes * ranks),
                                             Region(all, 0, bytes * ranks), soon()),
                "alltoall");
        wrong = 0;
        for (size_t r = 0; r < ranks; ++r)
          for (size_t i = 0; i < bytes; ++i)
            wrong += all.data()[r * bytes + i] !=
                     std::byte{byte_of(static_cast<int>(r), self.rank(), i)};
        self.check(wrong == 0, "alltoall of " + std::to_string(bytes));
      }
      self.ok(self.group.barrier_and_wait(soon()), "barrier");
    });
    INFO(size << " ranks\n" << joined(failures));
    CHECK(failures.empty());
  }
}

TEST_CASE("alltoallv moves parts of any size, empty ones among them") {
  for (int size : {2, 3, 5}) {
    auto failures = run_ranks(size, [](Rank& self) {
      for (uint32_t seed = 1; seed <= 4; ++seed) {
        auto bytes_of = [&](int from, int to) -> uint64_t {
          std::mt19937 random(seed * 1000 + static_cast<uint32_t>(from * 16 + to));
          return random() % 3 == 0 ? 0 : random() % 70'000;
        };
        std::vector<uint64_t> out, in;
        uint64_t out_sum = 0, in_sum = 0;
        for (int r = 0; r < self.size(); ++r) {
          out.push_back(bytes_of(self.rank(), r));
          in.push_back(bytes_of(r, self.rank()));
          out_sum += out.back();
          in_sum += in.back();
        }
        Buffer from = self.allocate(out_sum), to = self.allocate(in_sum);
        size_t at = 0;
        for (int r = 0; r < self.size(); ++r)
          for (size_t i = 0; i < out[static_cast<size_t>(r)]; ++i)
            from.data()[at++] = std::byte{byte_of(self.rank(), r, i)};
        self.ok(self.group.alltoallv_and_wait(Region(from, 0, out_sum), out, Region(to, 0, in_sum),
                                              in, soon()),
                "alltoallv");
        size_t wrong = 0;
        at = 0;
        for (int r = 0; r < self.size(); ++r)
          for (size_t i = 0; i < in[static_cast<size_t>(r)]; ++i)
            wrong += to.data()[at++] != std::byte{byte_of(r, self.rank(), i)};
        self.check(wrong == 0, std::to_string(wrong) + " wrong bytes");
      }
    });
    INFO(size << " ranks\n" << joined(failures));
    CHECK(failures.empty());
  }
}

TEST_CASE("several collectives are under way at once") {
  auto failures = run_ranks(3, [](Rank& self) {
    constexpr size_t kBytes = 160'000;
    std::vector<Buffer> buffers;
    std::vector<Task<Group::Outcome>> tasks;
    for (int i = 0; i < 6; ++i) {
      buffers.push_back(self.allocate(kBytes));
      auto* data = reinterpret_cast<int64_t*>(buffers.back().data());
      std::fill(data, data + kBytes / 8, self.rank() + i);
    }
    for (int i = 0; i < 6; ++i)
      tasks.push_back(self.group.allreduce(
          Region(buffers[static_cast<size_t>(i)], 0, i % 2 == 0 ? kBytes : 800), int64,
          ReduceOp::kSum, soon()));
    for (int i = 5; i >= 0; --i)
      self.ok(self.context.run_until(tasks[static_cast<size_t>(i)], soon()), "allreduce");
    for (int i = 0; i < 6; ++i)
      self.check(
          reinterpret_cast<int64_t*>(buffers[static_cast<size_t>(i)].data())[99] == 3 * i + 3,
          "sum of " + std::to_string(i));
  });
  INFO(joined(failures));
  CHECK(failures.empty());
}

TEST_CASE("ranks that meet at rank 0 find each other, and exchange messages") {
  auto failures = run_ranks(
      4,
      [](Rank& self) {
        for (size_t bytes : {size_t{8}, size_t{200'000}}) {
          Buffer out = self.allocate(bytes), in = self.allocate(bytes);
          std::memset(out.data(), self.rank() + 1, bytes);
          const int right = (self.rank() + 1) % 4, left = (self.rank() + 3) % 4;
          self.ok(self.group.send_receive_and_wait(right, Region(out, 0, bytes), left,
                                                   Region(in, 0, bytes), 7, soon()),
                  "send_receive");
          self.check(in.data()[bytes - 1] == std::byte(left + 1), "what came");
        }
        // Another tag does not get in the way; the wrong size is told.
        Buffer word = self.allocate(8);
        if (self.rank() == 0) {
          self.ok(self.group.send_and_wait(1, 5, Region(word, 0, 4), soon()), "send");
          self.ok(self.group.post(1, 6, Region(word, 0, 8).as_tensor(), soon()), "post");
          self.ok(self.group.post(1, 8, Region(word, 0, 8).as_tensor(), soon()), "post");
        } else if (self.rank() == 1) {
          self.ok(self.group.receive_and_wait(0, 6, Region(word, 0, 8), soon()), "receive");
          self.fails(self.group.receive_and_wait(0, 5, Region(word, 0, 8), soon()).status(),
                     Code::kInvalidArgument, "rank 0 sent 4 bytes, not 8");
          const Status small =
              self.group.receive_and_wait(0, 8, Region(word, 0, 4), soon()).status();
          self.fails(small, Code::kInvalidArgument, "receive: rank 0: the message has 8 bytes");
          self.check(small.detail().find("lost") == std::string_view::npos, small.to_string());
          self.ok(self.group.receive_and_wait(0, 8, Region(word, 0, 8), soon()), "receive");
        }
        self.ok(self.group.barrier_and_wait(soon()), "barrier");
      },
      {.bootstrap = true});
  INFO(joined(failures));
  CHECK(failures.empty());
}

TEST_CASE("receipts say the path, and ranks of one host read in place") {
  auto failures = run_ranks(2, [](Rank& self) {
    constexpr size_t kBytes = 1 << 20;
    Buffer data = self.allocate(kBytes);
    auto done =
        self.group.allreduce_and_wait(Region(data, 0, kBytes), float32, ReduceOp::kSum, soon());
    self.ok(done, "allreduce");
    if (!done.ok()) return;
    self.check(to_string(done->path) == collective_path(),
               "path " + std::string(to_string(done->path)));
    self.check(self.group.one_host() == (collective_path() != "tcp"), "one_host");
    // The other's share is copied here once; ours is reduced where it lies.
    if (self.group.one_host())
      self.check(done->copied_bytes == kBytes / 2,
                 std::to_string(done->copied_bytes) + " bytes copied");
  });
  INFO(joined(failures));
  CHECK(failures.empty());
}

}  // namespace sluice::test
