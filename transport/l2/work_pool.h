// Memory for what SLP sessions have under way. Few of many sessions have something, so it is lent
// (slp_ops.borrow), and what came back last goes out first: the processor's caches have it.
// Sending may have to allocate for it; a process that then gets no memory ends.
#ifndef SLUICE_L2_WORK_POOL_H_
#define SLUICE_L2_WORK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace sluice::l2 {

class WorkPool {
 public:
  using Block = std::unique_ptr<uint64_t[]>;
  // 52 KiB each: more are rarely under way in one turn, and are freed when they come back.
  static constexpr size_t kMostFree = 16;

  explicit WorkPool(size_t bytes) : words_((bytes + 7) / 8) { free_.reserve(kMostFree); }
  Block take() {
    if (free_.empty()) return std::make_unique_for_overwrite<uint64_t[]>(words_);
    Block block = std::move(free_.back());
    free_.pop_back();
    return block;
  }
  void give_back(Block block) {
    if (free_.size() < kMostFree) free_.push_back(std::move(block));
  }

 private:
  size_t words_;
  std::vector<Block> free_;
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_WORK_POOL_H_
