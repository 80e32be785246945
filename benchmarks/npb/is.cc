// IS: sorts integers by counting. Own code after the NPB report (RNR-94-007, 2.8) and the official
// check values (NPB 3.4, IS).
#include <algorithm>
#include <cstring>
#include <numeric>

#include "benchmarks/npb/channel.h"
#include "benchmarks/npb/random.h"

namespace npb {
namespace {

constexpr int kIterations = 10;
constexpr int kChecks = 5;

struct Problem {
  int log_keys, log_max_key;
  int64_t index[kChecks], rank[kChecks];
  // The expected rank moves with the iteration: by sign * (iteration + shift).
  int low_checks;  // checks below this one move up, the others down
  int up_shift, down_shift;
};
const Problem kS = {16, 11, {48427, 17148, 23627, 62548, 4431}, {0, 18, 346, 64917, 65463}, 3,
                    0,  0};
const Problem kW = {
    20, 16, {357773, 934767, 875723, 898999, 404505}, {1249, 11698, 1039987, 1043896, 1048018}, 2,
    -2, 0};
const Problem kA = {
    23, 19, {2112377, 662041, 5336171, 3642833, 4250760}, {104, 17523, 123928, 8288932, 8388264}, 3,
    -1, -1};

class Sorter {
 public:
  Sorter(Channel& channel, const Problem& problem)
      : channel_(channel),
        problem_(problem),
        keys_in_all_(int64_t{1} << problem.log_keys),
        max_key_(int64_t{1} << problem.log_max_key),
        ranks_(channel.size()),
        first_(keys_in_all_ * channel.rank() / ranks_),
        count_(keys_in_all_ * (channel.rank() + 1) / ranks_ - first_) {
    shift_ = problem.log_max_key - std::min(10, problem.log_max_key);
    buckets_ = channel.allocate((static_cast<size_t>(max_key_ >> shift_) + kChecks) * 4);
    keys_ = channel.allocate(static_cast<size_t>(count_) * 4);
    sorted_ = channel.allocate(static_cast<size_t>(count_) * 4);
    send_counts_ = channel.allocate(static_cast<size_t>(ranks_) * 8);
    receive_counts_ = channel.allocate(static_cast<size_t>(ranks_) * 8);
    Random random;
    random.skip(static_cast<uint64_t>(first_) * 4);
    for (int64_t i = 0; i < count_; ++i) {
      double sum = random.next();
      for (int more = 0; more < 3; ++more) sum += random.next();
      keys_.as<int32_t>()[i] = static_cast<int32_t>(sum * static_cast<double>(max_key_ / 4));
    }
  }

  // Ranks all keys once. False: a check failed; says which.
  bool iterate(int iteration, std::string& wrong) {
    set_key(iteration, iteration);
    set_key(iteration + kIterations, static_cast<int32_t>(max_key_ - iteration));
    count_buckets();
    divide_buckets();
    exchange_keys();
    count_keys();
    return check(iteration, wrong);
  }

  // Sorts by what the last iteration counted, and looks at every pair of neighbours.
  bool fully_sorted(std::string& wrong) {
    std::vector<int32_t> ordered;
    for (int64_t key = low_; key < high_; ++key)
      ordered.insert(ordered.end(), static_cast<size_t>(counts_[static_cast<size_t>(key - low_)]),
                     static_cast<int32_t>(key));
    std::vector<int32_t> expected(received_.as<int32_t>(),
                                  received_.as<int32_t>() + received_count_);
    std::sort(expected.begin(), expected.end());
    Block edges = channel_.allocate(16), all = channel_.allocate(static_cast<size_t>(ranks_) * 16);
    edges.as<int64_t>()[0] = ordered.empty() ? low_ : ordered.front();
    edges.as<int64_t>()[1] = ordered.empty() ? low_ : ordered.back();
    channel_.allgather(whole(edges), whole(all));
    const double total = channel_.sum(static_cast<double>(ordered.size()));
    bool good = ordered == expected && total == static_cast<double>(keys_in_all_);
    for (int rank = 0; rank + 1 < ranks_; ++rank)
      good = good && all.as<int64_t>()[2 * rank + 1] <= all.as<int64_t>()[2 * rank + 2];
    if (!good) wrong = "the keys are not sorted in the end";
    return good;
  }

  // One key alone may leave every checked rank as it is.
  void corrupt() { std::fill_n(keys_.as<int32_t>() + count_ / 2, count_ / 8, 0); }

 private:
  bool mine(int64_t index) const { return index >= first_ && index < first_ + count_; }
  void set_key(int64_t index, int32_t key) {
    if (mine(index)) keys_.as<int32_t>()[index - first_] = key;
  }
  size_t bucket_of(int32_t key) const { return static_cast<size_t>(key >> shift_); }

  void count_buckets() {
    auto* buckets = buckets_.as<int32_t>();
    std::memset(buckets, 0, buckets_.bytes);
    for (int64_t i = 0; i < count_; ++i) ++buckets[bucket_of(keys_.as<int32_t>()[i])];
    local_.assign(buckets, buckets + (max_key_ >> shift_));
    // The keys to check ride along, each from the rank that has it.
    for (int check = 0; check < kChecks; ++check)
      if (mine(problem_.index[check]))
        buckets[local_.size() + static_cast<size_t>(check)] =
            keys_.as<int32_t>()[problem_.index[check] - first_];
    channel_.allreduce(whole(buckets_), Type::kInt32, Op::kSum);
  }

  // Each rank gets a run of buckets with about as many keys as the others.
  void divide_buckets() {
    const auto* buckets = buckets_.as<int32_t>();
    const size_t count = local_.size();
    begin_.assign(static_cast<size_t>(ranks_) + 1, count);
    begin_[0] = 0;
    int64_t sum = 0;
    int rank = 1;
    below_ = 0;
    for (size_t bucket = 0; bucket < count && rank < ranks_; ++bucket) {
      sum += buckets[bucket];
      if (sum >= keys_in_all_ * rank / ranks_) begin_[static_cast<size_t>(rank++)] = bucket + 1;
    }
    const auto self = static_cast<size_t>(channel_.rank());
    for (size_t bucket = 0; bucket < begin_[self]; ++bucket) below_ += buckets[bucket];
    low_ = static_cast<int64_t>(begin_[self]) << shift_;
    high_ = static_cast<int64_t>(begin_[self + 1]) << shift_;
  }

  void exchange_keys() {
    std::vector<int64_t> at(local_.size() + 1);
    std::partial_sum(local_.begin(), local_.end(), at.begin() + 1,
                     [](int64_t a, int64_t b) { return a + b; });
    std::vector<uint64_t> send_bytes, receive_bytes;
    for (int rank = 0; rank < ranks_; ++rank) {
      const int64_t keys =
          at[begin_[static_cast<size_t>(rank) + 1]] - at[begin_[static_cast<size_t>(rank)]];
      send_counts_.as<int64_t>()[rank] = keys;
      send_bytes.push_back(static_cast<uint64_t>(keys) * 4);
    }
    for (int64_t i = 0; i < count_; ++i) {
      const int32_t key = keys_.as<int32_t>()[i];
      sorted_.as<int32_t>()[at[bucket_of(key)]++] = key;
    }
    channel_.alltoall(whole(send_counts_), whole(receive_counts_));
    received_count_ = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      const int64_t keys = receive_counts_.as<int64_t>()[rank];
      received_count_ += keys;
      receive_bytes.push_back(static_cast<uint64_t>(keys) * 4);
    }
    const size_t bytes = static_cast<size_t>(received_count_) * 4;
    if (received_.bytes < bytes) received_ = channel_.allocate(bytes + bytes / 8);
    channel_.alltoallv(whole(sorted_), send_bytes, part(received_, 0, bytes), receive_bytes);
  }

  void count_keys() {
    counts_.assign(static_cast<size_t>(high_ - low_), 0);
    for (int64_t i = 0; i < received_count_; ++i)
      ++counts_[static_cast<size_t>(received_.as<int32_t>()[i] - low_)];
  }

  bool check(int iteration, std::string& wrong) {
    for (int check = 0; check < kChecks; ++check) {
      const int64_t key = buckets_.as<int32_t>()[local_.size() + static_cast<size_t>(check)];
      if (key < low_ || key >= high_) continue;
      int64_t rank = below_;
      for (int64_t smaller = low_; smaller < key; ++smaller)
        rank += counts_[static_cast<size_t>(smaller - low_)];
      const int64_t expected = check < problem_.low_checks
                                   ? problem_.rank[check] + (iteration + problem_.up_shift)
                                   : problem_.rank[check] - (iteration + problem_.down_shift);
      if (rank == expected) continue;
      wrong = "iteration " + std::to_string(iteration) + ", check " + std::to_string(check) +
              ": rank " + std::to_string(rank) + ", not " + std::to_string(expected);
      return false;
    }
    return true;
  }

  Channel& channel_;
  const Problem& problem_;
  int64_t keys_in_all_, max_key_;
  int ranks_;
  int64_t first_, count_;  // of this rank's keys
  int shift_;              // key to bucket
  Block buckets_, keys_, sorted_, received_, send_counts_, receive_counts_;
  int64_t received_count_ = 0;
  std::vector<int32_t> local_;  // keys of this rank in each bucket
  std::vector<size_t> begin_;   // first bucket of each rank
  int64_t below_ = 0;           // keys of ranks below
  int64_t low_ = 0, high_ = 0;  // keys of this rank after the exchange
  std::vector<int32_t> counts_;
};

}  // namespace

Outcome run_is(Channel& channel, const Arguments& arguments) {
  const Problem& problem = of_class(arguments, kS, kW, kA);
  Outcome outcome;
  Sorter sorter(channel, problem);
  std::string wrong;
  bool good = sorter.iterate(1, wrong);  // untimed, as NPB does
  if (arguments.corrupt && channel.rank() == 0) sorter.corrupt();
  Timer timer(channel);
  timer.start();
  for (int iteration = 1; iteration <= kIterations; ++iteration)
    good = sorter.iterate(iteration, wrong) && good;
  timer.finish(outcome);
  good = sorter.fully_sorted(wrong) && good;
  outcome.verified = good;
  outcome.wrong = wrong;
  outcome.mops =
      kIterations * static_cast<double>(int64_t{1} << problem.log_keys) / outcome.seconds * 1e-6;
  return outcome;
}

}  // namespace npb
