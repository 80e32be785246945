// Tells a forked child from the process that made something.
#ifndef SLUICE_BASE_PROCESS_MARK_H_
#define SLUICE_BASE_PROCESS_MARK_H_

#include <atomic>
#include <cstdint>

#include <sluice/base/status.h>

namespace sluice {

// Taken when something is made that a child must not use. Cost of a check: one load.
class ProcessMark {
 public:
  // The running process.
  static ProcessMark current();
  // True in every child of the process that took the mark.
  bool in_forked_child() const { return cell_->load(std::memory_order_relaxed) != value_; }
  // kWrongState in such a child.
  Status check() const {
    if (!in_forked_child()) [[likely]]
      return Status();
    return refusal();
  }

 private:
  static Status refusal();
  ProcessMark(const std::atomic<uint32_t>* cell, uint32_t value) : cell_(cell), value_(value) {}
  const std::atomic<uint32_t>* cell_;  // lives as long as the process
  uint32_t value_;
};

}  // namespace sluice

#endif  // SLUICE_BASE_PROCESS_MARK_H_
