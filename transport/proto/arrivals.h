// Which bytes of a transfer have come, where several streams bring them. Knows no operation.
#ifndef SLUICE_PROTO_ARRIVALS_H_
#define SLUICE_PROTO_ARRIVALS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::proto {

class Arrivals {
 public:
  // The first `length` bytes are there, and no others.
  void reset(uint64_t length) {
    runs_.clear();
    if (length > 0) runs_.push_back({0, length});
  }
  // Gives its memory back.
  void clear() { std::vector<Run>().swap(runs_); }
  // Bytes [begin, end), not empty, are there. False: some of them were before.
  bool add(uint64_t begin, uint64_t end) {
    auto next = runs_.begin() + (behind(begin) - runs_.begin());
    const bool extends = next != runs_.begin() && (next - 1)->end == begin;
    if (next != runs_.begin() && (next - 1)->end > begin) return false;
    if (next != runs_.end() && next->begin < end) return false;
    const bool closes = next != runs_.end() && next->begin == end;
    if (extends && closes) {
      (next - 1)->end = next->end;
      runs_.erase(next);
    } else if (extends) {
      (next - 1)->end = end;
    } else if (closes) {
      next->begin = begin;
    } else {
      runs_.insert(next, {begin, end});
    }
    return true;
  }
  size_t runs() const { return runs_.size(); }

 private:
  // In order; they neither touch nor overlap.
  struct Run {
    uint64_t begin, end;
  };
  // The first run that begins behind `offset`.
  std::vector<Run>::const_iterator behind(uint64_t offset) const {
    return std::upper_bound(runs_.begin(), runs_.end(), offset,
                            [](uint64_t at, const Run& run) { return at < run.begin; });
  }

  std::vector<Run> runs_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_ARRIVALS_H_
