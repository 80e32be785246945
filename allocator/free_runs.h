// Free address ranges of one audience: best fit, neighbours joined. Offsets only.
#ifndef SLUICE_ALLOCATOR_FREE_RUNS_H_
#define SLUICE_ALLOCATOR_FREE_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace sluice {

class FreeRuns {
 public:
  void add(uint64_t offset, uint64_t length) {
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && offset + length == next->first) {
      length += next->second;
      next = drop(next);
    }
    if (next != by_offset_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        length += before->second;
        drop(before);
      }
    }
    total_ += length;
    if (spare_offsets_.empty()) {
      by_offset_.emplace(offset, length);
      by_length_.emplace(length, offset);
      return;
    }
    auto by_offset = std::move(spare_offsets_.back());
    auto by_length = std::move(spare_lengths_.back());
    spare_offsets_.pop_back();
    spare_lengths_.pop_back();
    by_offset.key() = offset;
    by_offset.mapped() = length;
    by_length.value() = {length, offset};
    by_offset_.insert(std::move(by_offset));
    by_length_.insert(std::move(by_length));
  }
  // The smallest run that holds `length`, lowest address first.
  std::optional<uint64_t> take(uint64_t length) {
    auto found = by_length_.lower_bound({length, 0});
    if (found == by_length_.end()) return std::nullopt;
    auto [run_length, offset] = *found;
    drop(by_offset_.find(offset));
    if (run_length > length) add(offset + length, run_length - length);
    return offset;
  }
  bool is_free(uint64_t offset, uint64_t length) const {
    auto after = by_offset_.upper_bound(offset);
    if (after == by_offset_.begin()) return false;
    auto run = std::prev(after);
    return offset + length <= run->first + run->second;
  }
  // True if [offset, offset + length) is free; it is not afterwards.
  bool take_exactly(uint64_t offset, uint64_t length) {
    auto after = by_offset_.upper_bound(offset);
    if (after == by_offset_.begin()) return false;
    auto run = std::prev(after);
    uint64_t run_offset = run->first, run_length = run->second;
    if (offset + length > run_offset + run_length) return false;
    drop(run);
    if (offset > run_offset) add(run_offset, offset - run_offset);
    uint64_t end = offset + length;
    if (run_offset + run_length > end) add(end, run_offset + run_length - end);
    return true;
  }
  // Length of the free run that ends at `offset`; 0 if there is none.
  uint64_t length_before(uint64_t offset) const {
    auto after = by_offset_.lower_bound(offset);
    if (after == by_offset_.begin()) return 0;
    auto run = std::prev(after);
    return run->first + run->second == offset ? run->second : 0;
  }
  uint64_t total() const { return total_; }
  uint64_t largest() const { return by_length_.empty() ? 0 : by_length_.rbegin()->first; }

 private:
  std::map<uint64_t, uint64_t>::iterator drop(std::map<uint64_t, uint64_t>::iterator run) {
    total_ -= run->second;
    auto next = std::next(run);
    auto by_length = by_length_.extract({run->second, run->first});
    auto by_offset = by_offset_.extract(run);
    if (spare_offsets_.size() < kMostSpares) {
      spare_lengths_.reserve(kMostSpares);
      spare_offsets_.reserve(kMostSpares);
      spare_lengths_.push_back(std::move(by_length));
      spare_offsets_.push_back(std::move(by_offset));
    }
    return next;
  }

  // Runs come and go with every large buffer: their nodes are used again.
  static constexpr size_t kMostSpares = 64;

  std::map<uint64_t, uint64_t> by_offset_;
  std::set<std::pair<uint64_t, uint64_t>> by_length_;
  std::vector<std::map<uint64_t, uint64_t>::node_type> spare_offsets_;
  std::vector<std::set<std::pair<uint64_t, uint64_t>>::node_type> spare_lengths_;
  uint64_t total_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_ALLOCATOR_FREE_RUNS_H_
